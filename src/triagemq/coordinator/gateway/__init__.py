"""The gateway process: MQTT-SN gateway, data plane, control channel and trace put together.

* `process`, `config`: its start
* `managed`: puts the desired state in force, stores it, and reports counts
* `stored_state`: that state on disk, from which it starts
* `joining`: how it finds a coordinator elsewhere
* `binder`: the addresses of clients become flows of the data plane, in it or elsewhere
* `queue_control`: the widths of ports, divided anew by the delays in their queues, and their estimators
* `trace`: the place, the ids and the rows of its trace
"""
