"""Data planes: what carries out a plan with packets. `embedded` needs nothing; `recorded` only remembers."""

from triagemq.network.alarm import Alarm, open_alarm
from triagemq.network.datagrams import DatagramSender
from triagemq.network.embedded import EmbeddedDataPlane, Sender, unix_clock
from triagemq.network.recorded import RecordedDataPlane
from triagemq.network.state import PlanState

__all__ = [
    "Alarm",
    "DatagramSender",
    "EmbeddedDataPlane",
    "PlanState",
    "RecordedDataPlane",
    "Sender",
    "open_alarm",
    "unix_clock",
]
