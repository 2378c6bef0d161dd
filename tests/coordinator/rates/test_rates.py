"""Rates are watched: a stationary hour raises no alarm, and what changes is noticed as soon as statistics allow."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import poisson
from tests.coordinator.announcing import publisher_intents

from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.rates.burstiness import Arrivals, dispersion, longest_silence_seconds
from triagemq.coordinator.rates.horizons import Seen, count_surprise
from triagemq.coordinator.rates.watch import DeclaredRate, RateChange, RateWatch
from triagemq.scenario import ArrivalProcess, Scenario, load, loads
from triagemq.scenario.generators import table2
from triagemq.simulate.source import PublicationStream

EXAMPLE = Path(__file__).parents[3] / "examples" / "building-fire.yaml"
WINDOW = 0.2

Counts = NDArray[np.int64]


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
    """Cumulative counts of a scenario's topics, window by window, as a gateway would tell them."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.stream = PublicationStream(scenario, seed=seed)
        self.now = 0.0
        self.events = np.zeros(len(scenario.topics), dtype=np.int64)
        self.octets = np.zeros(len(scenario.topics), dtype=np.int64)

    def windows(self, seconds: float) -> Iterator[tuple[float, dict[str, tuple[int, int]]]]:
        """(time, counts) for the next seconds, drawn a minute at a time."""
        names, topics = self.scenario.topics.name, len(self.scenario.topics)
        end = self.now + seconds
        while self.now < end - 1e-9:
            until = min(end, self.now + 60.0)
            windows = round((until - self.now) / WINDOW)
            events = self.stream.until(until)
            topic = self.scenario.publications.topic[events["publication"]].astype(np.int64)
            window = np.clip((events["published_ns"] * 1e-9 - self.now) / WINDOW, 0, windows - 1).astype(
                np.int64
            )
            cell = window * topics + topic
            counts = np.bincount(cell, minlength=windows * topics).reshape(windows, topics)
            octets = np.bincount(cell, np.ceil(events["size_bytes"]), minlength=windows * topics)
            counts = self.events + np.cumsum(counts, axis=0)
            octets = self.octets + np.cumsum(octets.reshape(windows, topics), axis=0).astype(np.int64)
            for number in range(windows):
                pairs = zip(counts[number].tolist(), octets[number].tolist(), strict=True)
                yield self.now + (number + 1) * WINDOW, dict(zip(names, pairs, strict=True))
            self.events, self.octets, self.now = counts[-1], octets[-1], until

    def counts(self) -> dict[str, tuple[int, int]]:
        """As they are now."""
        pairs = zip(self.events.tolist(), self.octets.tolist(), strict=True)
        return dict(zip(self.scenario.topics.name, pairs, strict=True))

    def multiply(self, factors: Mapping[str, float]) -> None:
        """Let topics go on with another rate."""
        published = self.scenario.publications
        factor = np.array([factors.get(name, 1.0) for name in self.scenario.topics.name])
        self.stream.change_rate(published.rate_per_second * factor[published.topic], self.now)


def since(
    earlier: Mapping[str, tuple[int, int]], counts: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """What was counted since, as a gateway that began to count then would tell it."""
    return {
        topic: (count - earlier[topic][0], octets - earlier[topic][1])
        for topic, (count, octets) in counts.items()
    }


def watching(published: Published, *, known: bool = True) -> RateWatch:
    watch = RateWatch()
    said = declared(published.scenario)
    if not known:
        said = {topic: DeclaredRate(each.rate_per_second, each.size_bytes) for topic, each in said.items()}
    watch.declare(said)
    nothing = dict.fromkeys(published.scenario.topics.name, (0, 0))
    watch.observe(published.now, nothing)
    return watch


def changes(watch: RateWatch, published: Published, seconds: float) -> list[tuple[float, RateChange]]:
    return [(at, change) for at, counts in published.windows(seconds) for change in watch.observe(at, counts)]


ON_OFF = "arrivals: {{process: on_off, on_seconds: {}, off_seconds: {}}}"


def every_process() -> Scenario:
    laws = {}
    for rate in (0.2, 1, 5, 20):
        laws |= {
            f"poisson-{rate}": f"rate_per_second: {rate}",
            f"periodic-{rate}": f"rate_per_second: {rate}, arrivals: periodic",
            f"pareto-{rate}": f"rate_per_second: {rate}, arrivals: {{process: pareto, shape: 2.5}}",
            f"heavy-{rate}": f"rate_per_second: {rate}, arrivals: {{process: pareto, shape: 1.8}}",
            f"bursts-{rate}": f"rate_per_second: {rate}, {ON_OFF.format(2, 3)}",
            f"rare-bursts-{rate}": f"rate_per_second: {rate}, {ON_OFF.format(10, 30)}",
        }
    return processes(**laws)


@pytest.mark.parametrize(("scenario", "seed"), [("fire", 1), ("every process", 2)])
def test_a_stationary_hour_raises_no_alarm(scenario: str, seed: int) -> None:
    published = Published(load(EXAMPLE) if scenario == "fire" else every_process(), seed)
    watch = watching(published)
    assert changes(watch, published, 3600.0) == []
    assert not watch.rates().per_second


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_stationary_hour_of_table_2_raises_no_alarm(seed: int) -> None:
    published = Published(table2(seed=seed), seed)
    watch = watching(published, known=seed == 1)
    assert changes(watch, published, 3600.0) == []


@pytest.mark.parametrize(
    ("law", "known", "before", "within", "share"),
    [
        ("rate_per_second: 5, arrivals: periodic", True, 20.0, 2.0, 0.99),
        ("rate_per_second: 5.37, arrivals: periodic", False, 200.0, 2.0, 0.99),
        ("rate_per_second: 20, arrivals: periodic", False, 60.0, 1.0, 0.99),
        ("rate_per_second: 64", True, 20.0, 2.0, 0.99),
        # Events at 5 and at 10 a second differ by 1.9 nats a second, and 21 are needed: no test is faster than 11 s.
        ("rate_per_second: 5", True, 20.0, 30.0, 0.99),
    ],
)
def test_a_doubling_is_noticed(law: str, known: bool, before: float, within: float, share: float) -> None:
    topics = [f"t{number:03d}" for number in range(300)]
    published = Published(processes(**dict.fromkeys(topics, law)), seed=11)
    watch = watching(published, known=known)
    assert changes(watch, published, before) == []
    rate = float(published.scenario.publications.rate_per_second[0])
    published.multiply(dict.fromkeys(topics, 2.0))
    found: dict[str, float] = {}
    for at, change in changes(watch, published, within):
        assert change.topic in found or change.after > 1.2 * rate
        found.setdefault(change.topic, at)
    assert len(found) >= share * len(topics)
    assert watch.rates().per_second.keys() == found.keys()
    # Estimates from little are looked at again, until they rest on a minute.
    changes(watch, published, 100.0)
    settled = np.array(list(watch.rates().per_second.values()))
    assert np.abs(settled / (2 * rate) - 1).max() < 0.35
    assert abs(settled.mean() / (2 * rate) - 1) < 0.1


def test_one_topic_that_doubles_in_the_fire_is_the_only_one_reported() -> None:
    published = Published(load(EXAMPLE), seed=5)
    watch = watching(published)
    assert changes(watch, published, 30.0) == []
    published.multiply({"crew/1/location": 2.0})
    news = changes(watch, published, 60.0)
    assert {change.topic for _, change in news} == {"crew/1/location"}
    assert news[0][0] - 30.0 < 2.0
    assert str(news[0][1]).startswith("rate of topic crew/1/location from 12 to 2")
    assert watch.rates().per_second["crew/1/location"] == pytest.approx(24.0, rel=0.1)


def test_a_topic_that_stops_is_noticed_and_so_is_its_return() -> None:
    published = Published(load(EXAMPLE), seed=6)
    watch = watching(published)
    changes(watch, published, 30.0)
    published.multiply({"crew/1/location": 0.0, "floor-2/west/smoke": 0.5})
    news = changes(watch, published, 20.0)
    assert {change.topic for _, change in news} == {"crew/1/location", "floor-2/west/smoke"}
    assert watch.rates().per_second["crew/1/location"] == 0.0
    assert watch.rates().per_second["floor-2/west/smoke"] == pytest.approx(10.0, rel=0.2)
    published.multiply({"floor-2/west/smoke": 0.5})
    back = changes(watch, published, 5.0)
    assert back[0][1].before == 0.0
    assert back[0][0] - 50.0 < 2.0
    assert watch.rates().per_second["crew/1/location"] == pytest.approx(12.0, rel=0.2)


def test_a_slow_topic_takes_as_long_as_it_must() -> None:
    laws = {f"t{number:02d}": "rate_per_second: 0.1" for number in range(40)}
    published = Published(processes(**laws), seed=7)
    watch = watching(published)
    assert changes(watch, published, 600.0) == []
    published.multiply(dict.fromkeys(laws, 0.0))
    news = changes(watch, published, 600.0)
    assert {change.topic for _, change in news} == set(laws)
    assert min(at for at, _ in news) > 600 + 100
    assert set(watch.rates().per_second.values()) == {0.0}


def test_a_topic_that_nobody_announced_is_measured_from_its_first_event() -> None:
    published = Published(processes(fast="rate_per_second: 40", slow="rate_per_second: 0.4"), seed=8)
    watch = RateWatch()
    watch.observe(0.0, {})
    news = changes(watch, published, 300.0)
    assert next(at for at, change in news if change.topic == "fast") < 2.0
    assert len([change for _, change in news if change.topic == "fast"]) <= 2
    assert len([change for _, change in news if change.topic == "slow"]) <= 6
    rates = watch.rates()
    assert rates.per_second["fast"] == pytest.approx(40.0, rel=0.25)
    assert 0.1 < rates.per_second["slow"] < 1.0
    assert rates.size_bytes["fast"] == pytest.approx(60.0, rel=0.2)
    assert watch.estimates()["fast"].publications == published.events[0]


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
    watch.observe(0.0, {"a": (0, 0)})
    news, octets = [], 0
    for window in range(1, 400):
        octets += 4 * (100 if window < 200 else 250)
        news += [(window, change) for change in watch.observe(window * WINDOW, {"a": (4 * window, octets)})]
    assert {change.what for _, change in news} == {"size"}
    assert len(news) <= 3
    assert 200 < news[0][0] < 230
    assert watch.rates().size_bytes["a"] == pytest.approx(250, rel=0.2)
    assert not watch.rates().per_second


def test_publishers_have_time_to_begin() -> None:
    watch = RateWatch()
    watch.declare({"a": DeclaredRate(50.0, 10.0)})
    today = 1.8e9
    quiet = [watch.observe(today + window * WINDOW, {}) for window in range(45)]
    assert not any(quiet)
    late = [change for window in range(45, 150) for change in watch.observe(today + window * WINDOW, {})]
    assert [(change.topic, change.after) for change in late] == [("a", 0.0)]


def test_topics_to_which_nobody_listens_are_not_judged() -> None:
    published = Published(processes(a="rate_per_second: 30", b="rate_per_second: 30"), seed=14)
    watch = watching(published)
    watch.listen(["a"])
    # The counter sees only what somebody is subscribed to.
    for at, counts in published.windows(60.0):
        assert watch.observe(at, {"a": counts["a"]}) == ()
    watch.listen(["a", "b"])
    before = published.events[1], published.octets[1]
    news = []
    for at, counts in published.windows(60.0):
        since = counts["b"][0] - before[0], counts["b"][1] - before[1]
        # It takes the subscriber five seconds to subscribe.
        news += watch.observe(at, {"a": counts["a"]} | ({"b": since} if at > 65.0 else {}))
    assert news == []
    watch.listen(["b"])
    for at, counts in published.windows(60.0):
        since = counts["b"][0] - before[0], counts["b"][1] - before[1]
        news += watch.observe(at, {"b": since})
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


def test_a_gateway_that_restarts_is_no_news() -> None:
    published = Published(load(EXAMPLE), seed=12)
    watch = watching(published)
    assert changes(watch, published, 30.0) == []
    lost = published.counts()
    news = []
    for at, counts in published.windows(60.0):
        fresh = since(lost, counts)
        # Five seconds pass before the new one is asked for the first time.
        news += watch.observe(at + 5.0, fresh, "second life")
    assert news == []


@pytest.mark.parametrize("away", [1.4, 20.0])
@pytest.mark.parametrize("backlog", ["kept", "lost", "of half the topics"])
@pytest.mark.parametrize(
    "what", ["gateway killed", "broker killed", "gateway stopped", "coordinator stopped"]
)
def test_what_was_published_in_a_pause_is_no_rate_of_the_time_after_it(
    away: float, backlog: str, what: str
) -> None:
    published = Published(load(EXAMPLE), seed=15)
    watch = watching(published)
    assert changes(watch, published, 30.0) == []
    before = published.counts()
    (*_, (_, now)) = published.windows(away)
    names = list(before)
    lost = {"kept": [], "lost": names, "of half the topics": names[::2]}[backlog]
    base = {topic: now[topic] if topic in lost else before[topic] for topic in names}
    if what == "coordinator stopped":
        base = before
    back = published.now
    news = []
    for at, counts in published.windows(20.0):
        # The backlog comes over a second; if the gateway was away, some publishers are back after three.
        arrived = {}
        for number, (topic, (count, octets)) in enumerate(counts.items()):
            share = min(1.0, at - back)
            behind = tuple(
                round((1 - share) * (after - first))
                for after, first in zip(now[topic], base[topic], strict=True)
            )
            arrived[topic] = count - behind[0], octets - behind[1]
            if what == "gateway killed" and number % 3 == 0 and at - back < 3.0:
                arrived[topic] = base[topic]
        told = since(base, arrived)
        if what == "gateway killed":
            news += watch.observe(at, told, "second life", heard_since=back)
            continue
        # The others count on from what they had.
        told = {
            topic: (told[topic][0] + before[topic][0], told[topic][1] + before[topic][1]) for topic in told
        }
        if what == "broker killed":
            if not news and at - back < 0.3:
                assert watch.observe(back - 0.1, before, heard_since=None) == ()
            news += watch.observe(at, told, heard_since=back)
        else:
            news += watch.observe(at, told)
    assert news == []
    # And what changes after it is noticed.
    published.multiply({"crew/1/location": 2.0})
    for at, counts in published.windows(5.0):
        told = since(base, counts)
        if what != "gateway killed":
            told = {
                topic: (told[topic][0] + before[topic][0], told[topic][1] + before[topic][1])
                for topic in told
            }
        epoch = "second life" if what == "gateway killed" else ""
        heard = back if what in ("gateway killed", "broker killed") else -np.inf
        news += watch.observe(at, told, epoch, heard_since=heard)
    assert {change.topic for change in news} == {"crew/1/location"}


def test_a_broker_that_is_away_is_no_silence() -> None:
    published = Published(load(EXAMPLE), seed=16)
    watch = watching(published)
    changes(watch, published, 30.0)
    before = published.counts()
    for at, _ in published.windows(120.0):
        assert watch.observe(at, before, heard_since=None) == ()
    assert not watch.rates().per_second


def test_a_topic_of_which_nothing_is_known_is_not_measured_by_a_backlog() -> None:
    watch = RateWatch()
    watch.observe(0.0, {}, "first", heard_since=-5.0)
    for window in range(1, 40):
        count = 0 if window < 10 else 300 if window == 10 else 300 + 2 * (window - 10)
        told = {"a": (count, 10 * count)} if count else {}
        for change in watch.observe(
            window * WINDOW + (4.0 if window >= 10 else 0.0),
            told,
            "first" if window < 10 else "second",
            heard_since=-5.0 if window < 10 else 5.8,
        ):
            assert change.after < 13.0
    assert watch.rates().per_second["a"] == pytest.approx(10.0, rel=0.1)


def test_topics_that_are_silent_cost_no_work_and_are_forgotten() -> None:
    topics = 5_000
    watch = RateWatch()
    watch.declare({"declared": DeclaredRate(0.001, 10.0)})
    watch.observe(0.0, {})
    rows = []
    advance = watch._horizons.advance

    def counted(at: float, events: NDArray[np.float64], octets: NDArray[np.float64]) -> list[Seen]:
        rows.append(len(events))
        return advance(at, events, octets)

    watch._horizons.advance = counted  # type: ignore[method-assign]
    at = 0.0
    tracemalloc.start()
    for window in range(1, 100):
        at = window * WINDOW
        many = (
            {f"once/{window % 50}/{number}": (1, 10) for number in range(topics // 50)}
            if window <= 50
            else {}
        )
        often = {f"often/{number}": (window, 10 * window) for number in range(20)}
        watch.observe(at, many | often)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / topics < 1_000
    assert max(rows) == 20, "those of which one event came are not counted closely"
    assert len(watch.estimates()) == topics + 21
    for _ in range(500):
        at += 0.9
        watch.observe(at, {})
    assert rows[-1] == 0
    # Who comes back is noticed at once, at rest or not.
    for window in range(1, 8):
        at += WINDOW
        news = watch.observe(at, {"often/3": (99 + 10 * window, 990 + 100 * window)})
        if any(change.topic == "often/3" and change.after > 10 for change in news):
            break
    else:
        pytest.fail("not noticed")
    for _ in range(6_800):
        at += 0.99
        watch.observe(at, {})
    assert set(watch.estimates()) == {"declared"}
    # One that the gateway has forgotten, too, counts from 0 again.
    assert watch.observe(at + 0.2, {"often/3": (1, 10)}, begun=["often/3"]) == ()
    assert watch.estimates()["often/3"].publications == 1


def test_slow_topics_at_rest_raise_no_alarm_and_are_judged_when_they_hurry() -> None:
    published = Published(processes(**{f"t{n:02d}": "rate_per_second: 0.02" for n in range(40)}), seed=17)
    watch = watching(published)
    assert changes(watch, published, 800.0) == []
    published.multiply({"t07": 500.0})
    news = changes(watch, published, 10.0)
    assert {change.topic for _, change in news} == {"t07"}
    assert news[0][0] - 800.0 < 5.0


def test_a_busy_machine_that_stands_still_for_two_seconds_is_no_news() -> None:
    published = Published(load(EXAMPLE), seed=13)
    watch = watching(published)
    assert changes(watch, published, 30.0) == []
    (*_, standing) = published.windows(WINDOW)
    news = [*watch.observe(*standing)]
    for at, counts in published.windows(30.0):
        stopped = 32.0 < at < 34.0
        news += watch.observe(at, standing[1] if stopped else counts)
        if at <= 32.0:
            standing = at, counts
    assert news == []


def test_counts_that_go_back_or_times_that_do_are_ignored() -> None:
    watch = RateWatch()
    watch.declare({"a": DeclaredRate(5.0, 10.0)})
    watch.observe(10.0, {"a": (100, 1000)})
    assert watch.observe(9.0, {"a": (101, 1010)}) == ()
    assert watch.observe(10.2, {"a": (50, 500)}) == ()
    assert watch.observe(10.4, {"a": (51, 510)}) == ()


@given(st.floats(0.01, 200), st.integers(0, 600))
def test_the_surprise_bounds_the_chance_of_a_poisson_count(mean: float, count: int) -> None:
    surprise = float(count_surprise(np.array([mean]), np.array([float(count)]), np.ones(1))[0])
    tail = poisson.sf(count - 1, mean) if count > mean else poisson.cdf(count, mean)
    assert tail <= np.exp(-surprise) * (1 + 1e-9)


@cache
def two_hours() -> tuple[Scenario, Counts]:
    published = Published(every_process(), seed=3)
    rows = [[count for count, _ in counts.values()] for _, counts in published.windows(7200.0)]
    return published.scenario, np.array(rows)


@pytest.mark.parametrize("seconds", [1.6, 12.8])
@pytest.mark.parametrize("name", ["poisson-5", "periodic-5", "bursts-5", "rare-bursts-5", "pareto-5"])
def test_known_processes_vary_as_said(name: str, seconds: float) -> None:
    scenario, counts = two_hours()
    blocks = np.diff(counts[:: round(seconds / WINDOW), scenario.topics.name.index(name)])
    arrivals = declared(scenario)[name].arrivals
    said = float(dispersion(arrivals, np.array([seconds]))[0])
    found = blocks.var() / blocks.mean()
    # A bound for clocks and Pareto gaps, the value itself for the others.
    assert found < said * 1.35 + 0.01
    if name.startswith(("poisson", "bursts", "rare")):
        assert found > said * 0.65


def test_silences_of_known_processes() -> None:
    clock, crowd = Arrivals(ArrivalProcess.PERIODIC, 2.0), Arrivals(ArrivalProcess.POISSON, 2.0)
    heavy = Arrivals(ArrivalProcess.PARETO, 2.0, pareto_shape=2.0)
    assert longest_silence_seconds((clock,), 20.0) == 0.5
    assert longest_silence_seconds((crowd,), 20.0) == pytest.approx(10.0)
    assert longest_silence_seconds((heavy,), 20.0) == pytest.approx(0.25 * np.exp(10.0))
    assert longest_silence_seconds((heavy, crowd), 20.0) == pytest.approx(10.0)
    assert longest_silence_seconds((), 20.0) == 0.0
