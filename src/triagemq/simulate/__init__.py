"""The compiled queueing-network simulator: PrioDeX Fig. 3 with every queue, event by event, millions a second.

In come a scenario, a plan and what changes meanwhile; out comes a SimulationResult, and a Trace into a Sink.

- `run` checks its arguments and runs replications side by side; `engine` is one of them, block by block in time.
- Before a run: `network` and `changes` lay the scenario and its changes out as arrays; `random` draws by counter. Which
  copies are dropped and lost is drawn as they go, or recorded and part of `network`.
- The path of an event (`path`): `source` or `replay` publishes it, `brokers` match and copy it, `switches` look it up,
  `ports` queue and send its packets, and `endings` counts what became of it. `records` holds what is under way.
- Where there are promises, or ports that are fair, `promised` runs all ports on one list of events.
- After a run: `result` turns counts into figures and what they are worth; `sink` turns endings into rows of a Trace.
"""

from triagemq.simulate.changes import Change, Control, Steering
from triagemq.simulate.promised.direct import DirectRoute, DirectRoutes, Limit, promised_routes
from triagemq.simulate.result import (
    ClassResults,
    PhaseResults,
    PortResults,
    PromiseResults,
    SimulatedUtility,
    SimulationResult,
    SubscriptionResults,
)
from triagemq.simulate.run import simulate
from triagemq.simulate.sink import Sink

__all__ = [
    "Change",
    "ClassResults",
    "Control",
    "DirectRoute",
    "DirectRoutes",
    "Limit",
    "PhaseResults",
    "PortResults",
    "PromiseResults",
    "SimulatedUtility",
    "SimulationResult",
    "Sink",
    "Steering",
    "SubscriptionResults",
    "promised_routes",
    "simulate",
]
