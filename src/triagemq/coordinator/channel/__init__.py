"""Desired state to gateways, and measurements back.

* `messages`: the records on the channel: the desired state, whole or as a change, and what was measured
* `handle`: one gateway: the state is sent until it confirms its version; its answers, its clock, its health
* `gateways`: all of them, equal: the home of each client, and the part of each; `merged`: their counts as one
* `link`: the coordinator's end of the socket; `server`: the gateway's end
"""
