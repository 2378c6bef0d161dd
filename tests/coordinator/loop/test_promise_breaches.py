"""What is said of publishers that exceed their terms, and of strangers at their addresses: each once a time."""

from __future__ import annotations

from triagemq.channel.messages import Measured
from triagemq.channel.orders import Promised
from triagemq.coordinator.loop.figures import QUIET_MEASUREMENTS, PromiseBreaches
from triagemq.plan.dataplane import FlowCounters, FlowKey

KEY = FlowKey("239.192.0.0", 17_000)
PROMISED = Promised({}, {"ecg pulse": KEY})


def measured(limited: int, foreign: int, epoch: str = "1") -> Measured:
    flows = {str(KEY): FlowCounters(7, 100, limited=limited, foreign=foreign)}
    return Measured(epoch, 0, {}, {}, {}, flows, 1, 0, True)


def test_a_stranger_is_told_of_once_and_the_publisher_is_not_blamed() -> None:
    breaches, foreign = PromiseBreaches(), 0
    before, news = measured(0, 0), []
    for _ in range(5):
        foreign += 900
        now = measured(0, foreign)
        news += breaches.news(before, now, PROMISED)
        before = now
    (decision,) = news
    assert (decision.kind, decision.subject, decision.after) == (
        "foreign",
        "ecg pulse",
        "900 packets of others",
    )
    for _ in range(QUIET_MEASUREMENTS):
        assert breaches.news(before, before, PROMISED) == []
    assert [each.kind for each in breaches.news(before, measured(3, foreign + 1), PROMISED)] == [
        "limited",
        "foreign",
    ]


def test_a_gateway_that_joins_or_begins_anew_has_nobody_blamed_for_what_it_counted_before() -> None:
    breaches = PromiseBreaches()
    assert breaches.news(measured(0, 0), measured(50, 50, epoch="1 2"), PROMISED) == []
    found = breaches.news(measured(50, 50, epoch="1 2"), measured(52, 50, epoch="1 2"), PROMISED)
    assert [(each.kind, each.after) for each in found] == [("limited", "2 packets cut")]
