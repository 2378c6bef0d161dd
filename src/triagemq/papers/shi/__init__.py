"""Shi et al. (Sensors 2019): `network` is its port of three queues and what is seen of them in one run.

Each of the others is one experiment.
"""
