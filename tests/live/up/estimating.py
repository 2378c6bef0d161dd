"""A scenario estimated from a live run of the building fire, beside the scenario itself."""

from __future__ import annotations

from tests.live.up.exchanging import BUILDING_FIRE

from triagemq.forecast.upstream import publication_ca2
from triagemq.pipeline import Tables, estimate_scenario
from triagemq.scenario import Scenario, load


def estimates_the_building_fire(tables: Tables, run_id: str | None = None) -> None:
    """The scenario that is estimated has every publisher with its own topics, and rates as they are.

    At most one of them may be outside of its 99 % interval: as wide as the variability of its arrivals makes it, and by
    one event at either end of what was observed.
    """
    original, estimated = load(BUILDING_FIRE), estimate_scenario(tables, run_id=run_id).scenario

    def rates(scenario: Scenario) -> dict[tuple[str, str], float]:
        rows = scenario.publications
        return {
            (scenario.publishers.name[publisher], scenario.topics.name[topic]): rate
            for publisher, topic, rate in zip(
                rows.publisher.tolist(), rows.topic.tolist(), rows.rate_per_second.tolist(), strict=True
            )
        }

    found, true = rates(estimated), rates(original)
    assert set(found) == set(true)
    assert len({publisher for publisher, _ in found}) == 13
    seconds = tables.records("publication_profile", run_id=run_id)[0]["observed_seconds"]
    ca2 = publication_ca2(original.publications)
    outside = {}
    for (key, rate), variability in zip(true.items(), ca2.tolist(), strict=True):
        expected, events = rate * seconds, found[key] * seconds
        if abs(events - expected) > 2.576 * (variability * expected) ** 0.5 + 1:
            outside[key] = (events, expected)
    assert len(outside) <= 1, outside
