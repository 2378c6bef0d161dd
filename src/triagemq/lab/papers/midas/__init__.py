"""MIDAS (King, Chen, Lee, ISORC 2014): `network` is its three topics over one port, and one window of observing them;
`simulated` has its figures in simulation at the paper's rates, `packets` with real packets at slower ones.
"""
