"""`triage emulate`: a scenario's exchange in a network in a box, measured, simulated and forecast.

run              build, run, take down, compare
boxed            the rig: which process is in which namespace, and the kernel's queues
openflow_agent   a process of its own: rules on the box's switches
conditions       what happens meanwhile, brought about
merging          one Trace of what publishers, gateway, queues and subscribers know
copying          what promised messages need of a box: bridges that copy them, and a port that is idle
clients          a process of its own: the scenario's clients in the box, and `receipts` of what they sent and got
promised         when promised messages are published, left their host and arrived
active_promises  the promises that are in force, by the coordinator
promises         what became of promised messages
passing          packets that left queues, as events; `wire` is what events take of a link
best_effort      the same messages in an unmanaged network, for comparison
"""
