"""Rates are watched: changes are noticed in seconds, chance is not, and few events are no rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.coordinator.announcing import publisher_intents

from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.gateways.handle import TopicIncrements
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.rates import (
    GRACE_SECONDS,
    DeclaredRate,
    RateChange,
    Rates,
    RateWatch,
)
from triagemq.scenario import Scenario, load, loads
from triagemq.simulate.source import PublicationStream

EXAMPLE = Path(__file__).parents[2] / "examples" / "building-fire.yaml"
WINDOW = 0.2


def processes(**laws: str) -> Scenario:
    """A scenario with one topic per law, published as the law says."""
    topics = "\n".join(f"      {name}: {{size_bytes: 60, {law}}}" for name, law in laws.items())
    return loads(
        f"""
name: processes
brokers: {{broker: {{}}}}
switches: {{switch: {{}}}}
ports: {{port: {{switch: switch, bandwidth_bps: 1e9}}}}
publishers:
  source:
    publishes:
{topics}
subscribers: {{listener: {{port: port, subscribes: {{"#": log:1}}}}}}
"""
    )


def declared(scenario: Scenario) -> dict[str, DeclaredRate]:
    book = IntentBook()
    for intent in publisher_intents(scenario):
        book.announce(intent)
    return book.declared(Network(scenario))


class Published:
    """Events of a scenario's topics, window by window."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.stream = PublicationStream(scenario, seed=seed)
        self.now = 0.0
        self.events = dict.fromkeys(scenario.topics.name, 0)

    def windows(self, seconds: float) -> Iterator[tuple[float, dict[str, tuple[int, int]]]]:
        """Time, and events and bytes of that window."""
        names, published = self.scenario.topics.name, self.scenario.publications
        for _ in range(round(seconds / WINDOW)):
            self.now += WINDOW
            found: dict[str, tuple[int, int]] = {}
            events = self.stream.until(self.now)
            for row, size in zip(
                published.topic[events["publication"]].tolist(), np.ceil(events["size_bytes"]), strict=True
            ):
                count, octets = found.get(names[row], (0, 0))
                found[names[row]] = count + 1, octets + int(size)
                self.events[names[row]] += 1
            yield self.now, found

    def multiply(self, factors: Mapping[str, float]) -> None:
        """Let topics go on with another rate."""
        published = self.scenario.publications
        factor = np.array([factors.get(name, 1.0) for name in self.scenario.topics.name])
        self.stream.change_rate(published.rate_per_second * factor[published.topic], self.now)


def watching(published: Published) -> RateWatch:
    watch = RateWatch()
    watch.declare(declared(published.scenario))
    watch.observe(published.now, {})
    return watch


def changes(watch: RateWatch, published: Published, seconds: float) -> list[tuple[float, RateChange]]:
    return [(at, change) for at, counts in published.windows(seconds) for change in watch.observe(at, counts)]


def test_a_stationary_quarter_of_an_hour_of_the_fire_raises_hardly_any_alarm() -> None:
    published = Published(load(EXAMPLE), seed=3)
    news = changes(watching(published), published, 900.0)
    assert len(news) <= 5, [str(change) for _, change in news]


@pytest.mark.parametrize("rate", [5.0, 20.0, 100.0])
def test_a_doubling_is_noticed(rate: float) -> None:
    published = Published(processes(a=f"rate_per_second: {rate}"), seed=4)
    watch = watching(published)
    changes(watch, published, 60.0)
    published.multiply({"a": 2.0})
    news = changes(watch, published, 30.0)
    assert news[0][0] - 60.0 < 10.0
    assert watch.rates().per_second["a"] == pytest.approx(2 * rate, rel=0.25)


def test_one_topic_that_doubles_in_the_fire_is_the_only_one_reported() -> None:
    published = Published(load(EXAMPLE), seed=5)
    watch = watching(published)
    assert changes(watch, published, 30.0) == []
    published.multiply({"crew/1/location": 2.0})
    news = changes(watch, published, 60.0)
    assert {change.topic for _, change in news} == {"crew/1/location"}
    assert news[0][0] - 30.0 < 5.0
    assert str(news[0][1]).startswith("rate of topic crew/1/location from 12 to 2")
    assert watch.rates().per_second["crew/1/location"] == pytest.approx(24.0, rel=0.2)


def test_a_topic_that_stops_is_noticed_and_so_is_its_return() -> None:
    published = Published(processes(a="rate_per_second: 12", b="rate_per_second: 20"), seed=6)
    watch = watching(published)
    changes(watch, published, 30.0)
    published.multiply({"a": 0.0})
    news = changes(watch, published, 20.0)
    assert [(change.topic, change.after) for _, change in news] == [("a", 0.0)]
    assert watch.rates().per_second == {"a": 0.0}
    published.multiply({})
    back = changes(watch, published, 5.0)
    assert back[0][1].before == 0.0
    assert back[0][0] - 50.0 < 2.0
    assert watch.rates().per_second["a"] == pytest.approx(12.0, rel=0.4)


def test_single_events_of_topics_never_seen_are_no_rate() -> None:
    watch = RateWatch()
    watch.observe(0.0, {})
    burst = {f"b1/fire/{number}": (1, 20) for number in range(40)}
    news = list(watch.observe(0.2, burst))
    news += [change for window in range(2, 100) for change in watch.observe(window * WINDOW, {})]
    assert news == []
    assert watch.rates() == Rates()
    assert watch.publications("b1/fire/7") == 1


def test_a_short_burst_has_a_rate_for_seconds_only() -> None:
    watch = RateWatch()
    watch.observe(0.0, {})
    news = [
        change
        for window in range(1, 150)
        for change in watch.observe(window * WINDOW, {"alarm": (2, 40)} if window <= 3 else {})
    ]
    assert 0 < news[0].after <= 4.0
    assert news[-1].after == 0.0
    assert watch.rates().per_second == {}


def test_a_topic_that_is_not_announced_is_measured_within_two_seconds() -> None:
    published = Published(processes(fast="rate_per_second: 40", slow="rate_per_second: 0.4"), seed=8)
    watch = RateWatch()
    watch.observe(0.0, {})
    news = changes(watch, published, 300.0)
    assert next(at for at, change in news if change.topic == "fast") < 2.0
    rates = watch.rates()
    assert rates.per_second["fast"] == pytest.approx(40.0, rel=0.25)
    assert 0.1 < rates.per_second["slow"] < 1.0
    assert rates.size_bytes["fast"] == pytest.approx(60.0, rel=0.2)
    assert watch.publications("fast") == published.events["fast"]


def test_a_rate_left_to_be_measured_is_measured() -> None:
    published = Published(processes(a="rate_per_second: 25"), seed=9)
    watch = RateWatch()
    watch.declare({"a": DeclaredRate(None, 60.0), "b": DeclaredRate(None, None)})
    watch.observe(0.0, {})
    news = changes(watch, published, 10.0)
    assert news[0][0] <= 2.0
    assert set(watch.rates().per_second) == {"a"}
    assert watch.rates().per_second["a"] == pytest.approx(25.0, rel=0.3)


def test_events_that_grow_are_noticed() -> None:
    watch = RateWatch()
    watch.declare({"a": DeclaredRate(20.0, 100.0)})
    watch.observe(0.0, {})
    news = []
    for window in range(1, 400):
        octets = 4 * (100 if window < 200 else 250)
        news += [(window, change) for change in watch.observe(window * WINDOW, {"a": (4, octets)})]
    assert {change.what for _, change in news} == {"size"}
    assert len(news) <= 5
    assert 200 <= news[0][0] < 230
    assert watch.rates().size_bytes["a"] == pytest.approx(250, rel=0.2)
    assert not watch.rates().per_second


def test_empty_messages_have_a_rate_and_no_size() -> None:
    watch = RateWatch()
    for window in range(1, 20):
        watch.observe(window * WINDOW, {"lamp/7": (2, 0)})
    assert watch.rates().per_second["lamp/7"] == pytest.approx(10.0)
    assert "lamp/7" not in watch.rates().size_bytes


def test_publishers_have_time_to_begin() -> None:
    watch = RateWatch()
    watch.declare({"a": DeclaredRate(50.0, 10.0)})
    today = 1.8e9
    quiet = [watch.observe(today + window * WINDOW, {}) for window in range(45)]
    assert not any(quiet)
    late = [change for window in range(45, 150) for change in watch.observe(today + window * WINDOW, {})]
    assert [(change.topic, change.after) for change in late] == [("a", 0.0)]


def test_topics_without_a_subscription_are_not_taken_to_be_silent() -> None:
    watch = RateWatch()
    watch.declare({"a": DeclaredRate(30.0, 60.0), "b": DeclaredRate(30.0, 60.0)})
    watch.listen(["a"])
    news = [change for window in range(1, 300) for change in watch.observe(window * WINDOW, {"a": (6, 360)})]
    assert news == []
    watch.listen(["a", "b"])
    # It takes the subscriber five seconds to subscribe.
    for window in range(300, 600):
        counts = {"a": (6, 360)} | ({"b": (6, 360)} if window > 325 else {})
        news += watch.observe(window * WINDOW, counts)
    assert news == []
    assert not watch.rates().per_second


def test_news_from_publishers_overrules_what_was_measured() -> None:
    published = Published(processes(a="rate_per_second: 40"), seed=10)
    watch = RateWatch()
    watch.declare({"a": DeclaredRate(10.0, 60.0)})
    watch.observe(0.0, {})
    changes(watch, published, 30.0)
    assert watch.rates().per_second["a"] == pytest.approx(40.0, rel=0.25)
    watch.declare({"a": DeclaredRate(10.0, 60.0)})
    assert watch.rates().per_second["a"] == pytest.approx(40.0, rel=0.25)
    watch.declare({"a": DeclaredRate(41.0, 60.0)})
    assert not watch.rates().per_second
    assert changes(watch, published, 60.0) == []
    # Withdrawn, and yet they come: measured like events that nobody announced.
    watch.declare({})
    assert changes(watch, published, 5.0)
    assert watch.rates().per_second["a"] == pytest.approx(40.0, rel=0.25)


def test_rates_survive_a_restart_and_end_with_silence() -> None:
    watch = RateWatch({"a": {"rate_per_second": 12.0, "size_bytes": 80.0}, "b": {"rate_per_second": 5.0}})
    assert watch.rates() == Rates({"a": 12.0, "b": 5.0}, {"a": 80.0})
    news = []
    for window in range(150):
        news += watch.observe(window * WINDOW, {"a": (12, 960)} if window % 5 == 0 else {})
    assert [(change.topic, change.after) for change in news] == [("b", 0.0)]


def test_topics_that_fell_silent_before_a_restart_are_measured_after_it() -> None:
    watch = RateWatch()
    watch.declare({"alarm": DeclaredRate(20.0, 50.0)})
    for window in range(150):
        watch.observe(window * WINDOW, {})
    assert watch.rates().per_second == {"alarm": 0.0}
    for window in range(150, 160):
        watch.observe(window * WINDOW, {"alarm": (4, 200)})
    assert watch.rates().per_second["alarm"] == pytest.approx(20.0, rel=0.2)


@pytest.mark.parametrize("away", [1.4, 20.0])
@pytest.mark.parametrize("backlog", ["kept", "lost"])
def test_an_interruption_is_no_silence_and_its_backlog_no_rate(away: float, backlog: str) -> None:
    published = Published(load(EXAMPLE), seed=15)
    watch = watching(published)
    assert changes(watch, published, 60.0) == []
    missed: dict[str, tuple[int, int]] = {}
    news: list[RateChange] = []
    for at, counts in published.windows(away):
        news += watch.observe(at, {}, complete=False)
        for topic, (events, octets) in counts.items():
            before = missed.get(topic, (0, 0))
            missed[topic] = before[0] + events, before[1] + octets
    news += watch.observe(published.now, missed if backlog == "kept" else {})
    for at, counts in published.windows(GRACE_SECONDS + 10.0):
        news += watch.observe(at, counts)
    assert news == []


def test_a_gateway_that_pauses_or_joins_again_brings_no_rate_out_of_nothing() -> None:
    topics, watch = TopicIncrements(), RateWatch()
    watch.declare({"labs/gas": DeclaredRate(20.0, 50.0)})
    counted = {"hall": [0, 0], "labs": [0, 0]}
    news: list[RateChange] = []
    for window in range(1, 600):
        now = window * WINDOW
        counted["labs"][0] += 4
        counted["labs"][1] += 200
        answering = ["hall"] if 200 <= window < 400 else ["hall", "labs"]
        for name in answering:
            # One that joins again tells everything from the start.
            events, octets = counted["labs"] if name == "labs" else (0, 0)
            topics.add(name, f"epoch of {name}", int(now * 1e9), {"labs/gas": (events, octets)})
        news += watch.observe(now, topics.take(), complete=len(answering) == 2)
    assert news == []


def test_counts_of_a_gateway_that_restarts_are_new_and_those_before_the_first_answer_are_not() -> None:
    topics = TopicIncrements()
    topics.add("hall", "first", 0, {"smoke": (1000, 50_000)})
    topics.add("hall", "first", 1, {"smoke": (1002, 50_100)})
    topics.add("hall", "second", 2, {"smoke": (3, 150)})
    assert topics.take() == {"smoke": (5, 250)}
    topics.add("hall", "second", 3, {"smoke": (6, 300)}, caught_up=False)
    assert topics.take() == {}
    topics.add("hall", "second", 4, {"smoke": (9, 450)})
    assert topics.take() == {"smoke": (6, 300)}
    topics.add("hall", "second", 5, {"smoke": (2, 100)}, begun=["smoke"])
    assert topics.take() == {"smoke": (2, 100)}


def test_ever_new_topics_are_forgotten() -> None:
    watch = RateWatch()
    for window in range(1, 10_000):
        watch.observe(window * WINDOW, {f"once/{window}": (1, 10)})
        watch.take_arrived()
    # Those of the last twenty minutes, looked at once a minute.
    assert len(watch.counted()) <= 5 * (1200 + 60) + 1


def test_times_that_go_back_are_ignored() -> None:
    watch = RateWatch()
    watch.observe(10.0, {"a": (5, 50)})
    watch.observe(9.0, {"a": (5, 50)})
    for window in range(51, 60):
        watch.observe(window * WINDOW, {"a": (2, 20)})
    assert watch.rates().per_second["a"] > 0
