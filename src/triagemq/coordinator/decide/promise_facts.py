"""What is told of promises: all that were asked for, admitted or refused, by name."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from triagemq.client.coordinator import Promise, PromiseHop
from triagemq.coordinator.decide.decide import Decided
from triagemq.coordinator.decide.promised import names_of, publication_name
from triagemq.plan.admission import missed_flow


@lru_cache(2)
def promise_facts(decided: Decided) -> tuple[Promise, ...]:
    """Those admitted in the order of their admission, then those refused."""
    plan, scenario = decided.plan, decided.scenario
    promises, hops, ports = plan.promises, plan.hops, scenario.ports.name
    refused = np.flatnonzero(promises.admitted == 0)
    in_order = refused[np.lexsort((promises.publication[refused], promises.subscription[refused]))]
    reasons = [each.reason for each in plan.decisions if each.kind == "refused"]
    why = dict(zip(in_order.tolist(), reasons, strict=True))
    found = []
    for row in range(len(promises)):
        publisher, topic, subscriber = names_of(
            scenario, int(promises.publication[row]), int(promises.subscription[row])
        )
        latency = float(promises.max_latency_seconds[row])
        if row in why:
            offer = float(promises.offer_seconds[row]) or None
            missed = missed_flow(scenario, promises, row)
            found.append(
                Promise(
                    subscriber,
                    topic,
                    publisher,
                    False,
                    latency,
                    reason=why[row],
                    offer_seconds=offer,
                    **missed,
                )
            )
            continue
        bound = float(promises.bound_seconds[row])
        rows = plan.hops_of(row)
        way = zip(
            hops.port[rows].tolist(),
            hops.level[rows].tolist(),
            hops.bound_seconds[rows].tolist(),
            hops.deadline_seconds[rows].tolist(),
            strict=True,
        )
        found.append(
            Promise(
                subscriber,
                topic,
                publisher,
                True,
                latency,
                bound,
                latency - bound,
                str(decided.orders.promised.addresses[publication_name(publisher, topic)]),
                tuple(PromiseHop("" if port < 0 else ports[port], *figures) for port, *figures in way),
                since_generation=decided.orders.direct.get(subscriber, {}).get(topic, {}).get(publisher),
                max_size_bytes=int(scenario.publications.max_size_bytes[promises.publication[row]]),
            )
        )
    return tuple(found)
