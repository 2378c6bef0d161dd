"""The gateway as a process that is led: MQTT-SN gateway, data plane, control channel and trace put together.

* `process`, `config`: how it is started
* `managed`: takes the state that is wanted, puts it in force, keeps it, and says what it counts
* `kept`: that state on disk, from which it starts
* `joining`: how it finds a coordinator elsewhere, and is told from there
* `binder`: gives the addresses of clients their ports, and tells the data plane what has changed
* `follower`: a data plane elsewhere, in the kernel or on switches, that follows the orders
* `queue_control`, `delay_models`: the widths of ports, divided anew by the delays in their queues; what estimates these
* `trace`: the place, the ids and the rows of its trace
"""
