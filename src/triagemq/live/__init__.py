"""Whole exchanges on this machine, run and measured: options come in, and processes, a Trace and figures go out.

rig          what every exchange is made of: gateway, coordinator, clients; each a process, ready after its ready line,
             started again when it ends, and ended in the opposite order
clients      a process of its own: the scenario's publishers or subscribers as real clients
carrying     `triage topics carry`: events with codes of topics, at ports of this machine or of OpenFlow switches
figures      the figures of `triage simulate`, from the Trace that is left

up/          `triage up` and `triage demo`: on the ports and interfaces of this machine, for any clients
"""
