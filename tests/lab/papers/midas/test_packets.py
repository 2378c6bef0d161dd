"""MIDAS's three topics with real packets: best effort loses, managed keeps what was promised."""

from __future__ import annotations

import json

import pytest

from triagemq.lab.papers import reproduce
from triagemq.lab.papers.midas.network import GIGABIT_BPS, MESSAGE_BYTES, TOPICS, midas_scenario
from triagemq.lab.papers.midas.packets import SLOWER, slower_scenario
from triagemq.plan import make_plan
from triagemq.scenario import Discipline

SHORT = {"seeds": 1, "seconds": 6.0}


def test_slower_links_are_promised_the_same_times_so_many_times_longer() -> None:
    fast, slow = (
        make_plan(made).promises.bound_seconds / slower
        for made, slower in ((midas_scenario(Discipline.PRIORITY), 1.0), (slower_scenario(), SLOWER))
    )
    # Control traffic and what a switch takes do not become slower.
    assert slow == pytest.approx(fast, rel=0.01)


@pytest.mark.slow
@pytest.mark.needs_root("it makes namespaces of the network")
@pytest.mark.parametrize("figure", ["6", "7", "8"])
def test_nothing_that_was_promised_is_lost_and_best_effort_loses(figure: str) -> None:
    made = reproduce("midas", figure, packets=True, **SHORT)  # type: ignore[arg-type]
    assert all(each.holds for each in made.findings.claims), made.findings.claims
    figures = json.loads(json.dumps(made.as_json(), allow_nan=False))["figures"]
    assert figures["slower"] == SLOWER
    for topic, size in zip(TOPICS, MESSAGE_BYTES, strict=True):
        # Messages that are too long for a gateway are not cut.
        assert figure != "7" or figures["worst_seconds"][topic] > size * 8 / GIGABIT_BPS
