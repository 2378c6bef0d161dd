"""Shi et al. (Sensors 2019): `network` has its ports of three queues, and what is seen of them in one run.

The others are its experiments: `estimators` of delay (Fig. 5), `adjustment` of queue rates at one port (6, 7, 12),
`global_control` over three switches (8 to 10), `bit_rates` (13, 14).
"""
