"""PrioDeX's own response times (eq. 10 to 16 and 37 to 44), as printed: the baseline that ours is compared with."""

from __future__ import annotations

import numpy as np

from triagemq.errors import ParameterError
from triagemq.plan import Plan, demand
from triagemq.plan.demands import total_by
from triagemq.scenario import Floats, Scenario
from triagemq.theory import mm1_sojourn


def paper_latency(scenario: Scenario, plan: Plan) -> Floats:
    """Mean response time of every subscription by the paper's formulas; infinite where a class is overloaded.

    The port's wait is eq. (39): all packets of a class are taken for one exponential size, the mean of the class,
    so that what is left of the packet in service comes out too short wherever sizes in a class differ. Eq. (43)
    is read as a sum, Lq + lambda/mu; as printed, a product, it is no number of events. The switch's inbound
    queue gets one flow's rate, as the text after eq. (15) says.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.lab.generators import table2
    >>> scenario = table2(seed=1)
    >>> latency = paper_latency(scenario, make_plan(scenario, drops="exponential"))
    >>> bool((latency > 0).all() and (latency < 0.1).all())
    True
    """
    if len(scenario.brokers) != 1 or len(scenario.switches) != 1 or len(scenario.unmanaged_switches):
        raise ParameterError("scenario", "has more than the one broker and one managed switch of PrioDeX 6.1")
    demanded = demand(scenario)
    ports, subscriber = scenario.ports, scenario.subscriptions.subscriber
    thru = demanded.notify_rate * plan.subscription_keep
    service = demanded.sizes.event_bytes * 8 / ports.bandwidth_bps[demanded.port]

    classes = int(plan.flows.priority_class.max(initial=0)) + 1
    cell = demanded.port.astype(np.int64) * classes + plan.subscription_class
    shape = (len(ports), classes)
    rate = total_by(cell, thru, shape[0] * shape[1]).reshape(shape)  # (37)
    load = total_by(cell, thru * service, shape[0] * shape[1]).reshape(shape)
    class_service = np.divide(load, rate, out=np.zeros_like(load), where=rate > 0)  # 1 over (38)
    residual = (load * class_service).sum(axis=1, keepdims=True)
    free = 1 - np.cumsum(load, axis=1)
    free_above = np.pad(free, ((0, 0), (1, 0)), constant_values=1.0)[:, :-1]
    wait = np.full(shape, np.inf)
    np.divide(residual, free_above * free, out=wait, where=free > 0)  # (39)

    broker, switch = scenario.brokers, scenario.switches
    inbound = mm1_sojourn(
        float(scenario.publications.rate_per_second.sum()), broker.inbound_rate_per_second[0]
    )
    outbound = mm1_sojourn(
        total_by(subscriber, demanded.notify_rate, len(scenario.subscribers)),
        broker.outbound_rate_per_second[0],
    )
    flow_rate = total_by(plan.flow, demanded.notify_rate, len(plan.flows))
    at_switch = mm1_sojourn(flow_rate, switch.inbound_rate_per_second[0])
    return np.asarray(
        inbound + outbound[subscriber] + at_switch[plan.flow] + wait.reshape(-1)[cell] + service
    )
