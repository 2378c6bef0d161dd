"""The network that promises are compared with: nothing in it is managed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triagemq.scenario import Scenario, direct_paths, switch_links
from triagemq.simulate import DirectRoute, DirectRoutes


def unmanaged_routes(scenario: Scenario) -> DirectRoutes:
    """Guaranteed topics in an unmanaged network: the shortest routes, one class for all, and no limiters."""
    plain = scenario.with_tables(
        ports=replace(scenario.ports, discipline=np.zeros_like(scenario.ports.discipline))
    )
    links = switch_links(plain)
    wanted, publications = scenario.subscriptions, scenario.publications
    routes = []
    for subscription in np.flatnonzero(wanted.guaranteed).tolist():
        subscriber = int(wanted.subscriber[subscription])
        for publication in np.flatnonzero(publications.topic == wanted.topic[subscription]).tolist():
            publisher = int(publications.publisher[publication])
            ports = next(direct_paths(plain, publisher, subscriber, links), None)
            if ports is not None:
                routes.append(DirectRoute(publication, subscription, ports, (0,) * len(ports)))
    return DirectRoutes(tuple(routes))
