"""The compiled queueing-network simulator: PrioDeX Fig. 3 with every queue, event by event, millions a second."""

from triagemq.simulate.changes import Change
from triagemq.simulate.result import ClassResults, PortResults, SimulationResult, SubscriptionResults
from triagemq.simulate.run import simulate
from triagemq.simulate.single import QueueResults, single_queue
from triagemq.simulate.sink import Sink
from triagemq.simulate.worth import PhaseResults, SimulatedUtility

__all__ = [
    "Change",
    "ClassResults",
    "PhaseResults",
    "PortResults",
    "QueueResults",
    "SimulatedUtility",
    "SimulationResult",
    "Sink",
    "SubscriptionResults",
    "simulate",
    "single_queue",
]
