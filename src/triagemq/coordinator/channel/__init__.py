"""How coordinator and gateway talk, and how the one leads the other.

What comes in are the orders and grants that are wanted, what comes out is a gateway that follows them, and what it
measures:

* `messages`: what they say to each other; the state that is wanted, whole or as a change, and what was measured
* `lead`: the coordinator's mind: the gateway is told until it has confirmed the version that is wanted
* `gateways`: all of them, who is at home where, and the part of each; `merged`: what they measure, as if it were one
* `clocks`: how far the clock of a gateway is from the coordinator's
* `link`: the coordinator's end of the socket
* `server`: the gateway's end
"""
