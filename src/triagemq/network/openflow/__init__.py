"""OpenFlow 1.3 switches that follow a plan: rules and marks, with the queues of a data plane behind their ports.

switches      instructions in, the counters of switches out; called from other threads
controller    the event loop's side: keeps the rules of all switches as network and plan ask, while both change
topology      the network as known, and paths through it; `discovery` finds it out, by frames that it sends
rules         what a rule is, and the steps from the rules there are to those there should be
rule_sets     the rules of every switch, from a network and flows
switch_table  the rules and meters of one switch
session       a connection to a switch, and the server to which switches connect
encoding, decoding      messages to octets and back
"""

from triagemq.network.openflow.controller import Timing
from triagemq.network.openflow.session import SwitchTls
from triagemq.network.openflow.switches import OpenFlowSwitches, SwitchCounters

__all__ = ["OpenFlowSwitches", "SwitchCounters", "SwitchTls", "Timing"]
