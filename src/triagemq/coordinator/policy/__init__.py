"""The operator's policy: who may say what a subscription is worth, and what is said for clients that say nothing.

* `record`: roles, clients and phases, and the role of a client by its identity
* `claims`: what a client claims, as it is planned for, and what of it is refused
* `files`: the YAML of it, checked with the lines of mistakes
* `in_force`: what the coordinator goes by, with the phase of now; stored and recorded
"""
