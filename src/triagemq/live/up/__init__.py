"""`triage up`: an exchange that lasts, with its broker, for any clients or a scenario's.

run             with a scenario: start to figures, and what can be seen meanwhile
exchange        the rig: which processes, at which addresses, with which keys
state           the directory that it remembers itself in, and a copy of that
kernel_ports    its output ports as interfaces of this machine, where the kernel queues
"""
