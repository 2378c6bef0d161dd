"""The peers of benchmarks/peers.py: how each is set up, its clients, and the network and evaluation that all share.

settings      what each peer is set to, with the reason and where its makers say so
contenders    who takes part: programs, packages, and how their processes are started
network       a box whose ports nobody manages: one FIFO, and queues for packets that are marked
evaluation    what was sent and what arrived, as TriageMQ's own figures
client        what the client programs share: what they are told, when events are due, what they note
with_mqtt     a process of its own: clients of Mosquitto,
with_nats     of NATS,
with_zenoh    of Zenoh, and its router,
with_dds      and of Cyclone DDS
"""
