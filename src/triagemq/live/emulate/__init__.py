"""The exchange in a network in a box: real packets through real queues and switches, on one machine."""
