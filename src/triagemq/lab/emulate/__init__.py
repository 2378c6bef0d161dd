"""`triage emulate`: a scenario's exchange in a network in a box, measured beside simulation and forecast.

run               build, run, take down, compare
boxed             the rig: which process is in which namespace, and the kernel's queues
openflow_agent    a process of its own: rules on the box's switches
conditions        what happens meanwhile, brought about
merging           one Trace of what publishers, gateway, queues and subscribers know
copying           what promised messages need of a box: bridges that copy them, and a port that is idle
promises          what became of promised messages
best_effort       the same messages in a network that nobody manages, for comparison
"""
