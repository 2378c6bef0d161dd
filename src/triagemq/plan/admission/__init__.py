"""Admission: which guaranteed subscriptions are promised their latency, proven, and which are refused (after MIDAS).

In come a scenario and what was promised before, out go the promises, hops and limiters of a Plan, and why the others
are refused. `promises` finds the pairs that match and what their messages are on the links of the network; the `ledger`
decides one by one, over `links` that are judged each for itself, and whose levels change in an order that keeps every
promise; `carrying` brings in what an earlier plan promised, and `planning` does it all for a plan, and explains it.
"""

from triagemq.plan.admission.carrying import ledger_of, reconfiguration
from triagemq.plan.admission.ledger import Admitted, Ledger, Refused
from triagemq.plan.admission.links import LevelStep
from triagemq.plan.admission.planning import (
    AdmissionResult,
    admit_promises,
    explain_promises,
    missed_flow,
    promise_rows,
)
from triagemq.plan.admission.promises import (
    PromisedMessage,
    PromiseNetwork,
    PromiseRequest,
    matching,
    promise_request,
)

__all__ = [
    "AdmissionResult",
    "Admitted",
    "Ledger",
    "LevelStep",
    "PromiseNetwork",
    "PromiseRequest",
    "PromisedMessage",
    "Refused",
    "admit_promises",
    "explain_promises",
    "ledger_of",
    "matching",
    "missed_flow",
    "promise_request",
    "promise_rows",
    "reconfiguration",
]
