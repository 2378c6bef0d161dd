"""Desired state to gateways, and measurements back.

* `messages`: the records on the channel: the desired state, whole or as a change, and what was measured
* `reconciler`: the state is sent until the gateway confirms its version
* `handle`: one gateway: its answers, its clock, its health; and the counts of several as one
* `gateways`: all of them, equal: the home of each client, and the part of each
* `link`: the coordinator's end of the socket; `server`: the gateway's end
"""
