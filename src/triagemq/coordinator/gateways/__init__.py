"""The gateways of an exchange, all equal: desired state to them, measurements from them.

reconciler  the state is sent until the gateway confirms its version
handle      one gateway: its answers and health; and the counts of several as one
joined      all of them: the gateway of each client, and the part of each
"""
