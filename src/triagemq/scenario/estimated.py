"""A Scenario of what was measured: so that a building's real log can be planned, forecast and simulated.

Rates and mean sizes are those measured while a source was there; its absence becomes conditions. An arrival
process is periodic, Poisson, Pareto or on-off, whichever has the measured variability of gaps, but Poisson as long as
chance may have made that of Poisson's: of a thousand scenarios of Poisson sources about one is to have a source that is
taken for anything else, however many sources it has and however few their events. A size distribution is constant,
exponential, or the sizes that were seen. Network and subscriptions are those of the run's own scenario, or one port
with one subscriber who wants everything. Publishers are those of the trace; where it does not say who published on a
topic, the only one that the scenario has for it is a guess, and called one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario.conditions import Condition, Conditions
from triagemq.scenario.kinds import ArrivalProcess, SizeDistribution
from triagemq.scenario.model import (
    Brokers,
    OutputPorts,
    Publications,
    Publishers,
    Scenario,
    SizeSamples,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
    filled,
    joined,
    take,
)
from triagemq.theory.variability import chance_of_variability

_CLOCKWORK_SHARE = 0.95
_PERIODIC_BELOW = 0.05
_CONSTANT_BELOW = 1e-6
_POISSON_BAND = 0.1
_EXPONENTIAL_BAND = 0.3
_FALSE_ALARMS = 0.001
"""Of so many scenarios with nothing but Poisson sources one has a source that is taken for something else."""
_REGULAR_BY_CHANCE = 0.2
"""More than the share of a Poisson source's gaps that lie within a quarter of their median (0.174)."""
_MOST_SIZES = 32
_UNKNOWN = "unknown"

Row = dict[str, Any]
Span = tuple[int, int]
"""From and until, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A scenario, what happened during the run that it is estimated from, and what is not known but guessed."""

    scenario: Scenario
    conditions: Conditions
    outages: int
    """Of all publications together; the conditions hold the longest of each."""
    guessed: tuple[tuple[str, str], ...]
    """Publisher and topic where the trace does not say who published, and the scenario has only one who might have."""
    assumed: tuple[tuple[str, str], ...]
    """Publisher and topic of what is taken for Poisson because its events are too few to show anything else."""


def measured(
    profile: Sequence[Row], base: Scenario | float, *, name: str, measured_from_ns: int | None = None
) -> Estimate:
    """The scenario that measured publications look like: rows of the table publication_profile, at least one.

    `base` is what the run came with: its scenario, or only the bits per second to the one subscriber.
    """
    known = base if isinstance(base, Scenario) else None
    guessed = _guessed(profile, known)
    named = [row | {"topic": _topic(row), "publisher": _publisher(row, guessed)} for row in profile]
    begins_ns = measured_from_ns or min(row["first_ns"] for row in profile)
    timeline = sorted(_outages(named, begins_ns), key=lambda condition: condition.at_seconds)
    network = base if isinstance(base, Scenario) else _one_port(named, base, name)
    return Estimate(
        scenario=_measured_in(network, named, name),
        conditions=Conditions(tuple(timeline)),
        outages=sum(row["outages"] for row in profile),
        guessed=tuple((publisher, topic) for topic, publisher in guessed.items()),
        assumed=tuple((row["publisher"], row["topic"]) for row in named if _is_assumed(row, len(named))),
    )


def _measured_in(base: Scenario, profile: list[Row], name: str) -> Scenario:
    """The base with the measured publications instead of its own; names that are new to it stand behind its own."""
    topics = _numbered([*base.topics.name, *(row["topic"] for row in profile)])
    publishers = _numbered([*base.publishers.name, *(row["publisher"] for row in profile)])
    measured, samples = _publications(profile, topics, publishers)
    # Where it is not known who published, it may have been anybody.
    found = set(_pairs(measured))
    anybody = {topics[row["topic"]] for row in profile if row["publisher"] == _UNKNOWN}
    silent = [
        number
        for number, pair in enumerate(_pairs(base.publications))
        if pair[0] not in anybody and pair not in found
    ]
    # What was silent all the time: at most one event in as long as was observed.
    rarely = 1.0 / max(max(row["observed_seconds"] for row in profile), 1e-9)
    rest = take(base.publications, np.array(silent, dtype=np.int64))
    rest = replace(
        rest,
        rate_per_second=np.minimum(rest.rate_per_second, rarely),
        size_samples=np.where(rest.size_samples >= 0, rest.size_samples + len(samples), -1).astype(np.int32),
    )
    # Those that are new publish to the first broker.
    names = tuple(publishers)[len(base.publishers) :]
    strangers = filled(Publishers, len(names), name=names, broker=0)
    return base.with_tables(
        name=name,
        topics=Topics(tuple(topics)),
        publishers=joined(base.publishers, strangers),
        publications=joined(measured, rest),
        size_samples=joined(samples, base.size_samples),
    )


def _pairs(publications: Publications) -> Iterator[tuple[int, int]]:
    """Topic and publisher of each."""
    return zip(publications.topic.tolist(), publications.publisher.tolist(), strict=True)


def _guessed(profile: Sequence[Row], base: Scenario | None) -> dict[str, str]:
    """Who publishes on topics of which the trace does not say it, and the scenario has only one who might have."""
    if base is None:
        return {}
    of: dict[str, set[str]] = {}
    for topic, publisher in _pairs(base.publications):
        of.setdefault(base.topics.name[topic], set()).add(base.publishers.name[publisher])
    named = {_topic(row) for row in profile if row["publisher"] is not None}
    unnamed = {_topic(row) for row in profile} - named
    return {topic: min(those) for topic, those in of.items() if topic in unnamed and len(those) == 1}


def _numbered(names: list[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _one_port(profile: list[Row], bandwidth_bps: float, name: str) -> Scenario:
    """One broker, one port, one subscriber to everything, and nothing published yet."""
    topics = sorted({row["topic"] for row in profile})
    publishers = sorted({row["publisher"] for row in profile})
    return Scenario.of(
        name=name,
        topics=Topics(tuple(topics)),
        brokers=filled(Brokers, 1, name=("broker",)),
        switches=filled(Switches, 1, name=("switch",)),
        ports=filled(OutputPorts, 1, name=("port",), switch=0, bandwidth_bps=bandwidth_bps),
        publishers=filled(Publishers, len(publishers), name=publishers, broker=0),
        publications=_publications([], {}, {})[0],
        subscribers=filled(Subscribers, 1, name=("subscriber",), broker=0, port=0),
        subscriptions=filled(
            Subscriptions, len(topics), subscriber=0, topic=np.arange(len(topics)), utility_weight=1.0
        ),
    )


def _topic(row: Row) -> str:
    return row["topic"] if row["topic"] is not None else f"topic-{row['topic_id']}"


def _publisher(row: Row, guessed: dict[str, str]) -> str:
    unknown = _UNKNOWN if row["publisher_id"] is None else f"publisher-{row['publisher_id']}"
    return str(row["publisher"] or guessed.get(_topic(row), unknown))


def _outages(profile: list[Row], begins_ns: int) -> Iterator[Condition]:
    """When publishers, or single topics of theirs, were not there, in seconds from the beginning of what was measured.

    A publisher was away while all its topics were; conditions know no rate of 0, so that a topic that was silent alone
    has at most one event in that time.
    """

    def seconds(time_ns: int) -> float:
        return round((time_ns - begins_ns) * 1e-9, 6)

    of_publisher: dict[str, list[Row]] = {}
    for row in profile:
        of_publisher.setdefault(row["publisher"], []).append(row)
    for publisher, rows in of_publisher.items():
        last_ns, away = max(row["last_ns"] for row in rows), _spans(rows[0])
        for row in rows[1:]:
            away = _common(away, _spans(row))
        for begin, end in away:
            if begin > begins_ns:
                yield Condition(seconds(begin), publisher=publisher, state="fails")
            if begin < last_ns:
                yield Condition(seconds(end), publisher=publisher, state="returns")
        for row in rows:
            for span in _spans(row):
                if _common([span], away):
                    continue
                rarely = min(_rate(row), 1e9 / (span[1] - span[0]))
                source = {"topic": row["topic"], "publisher": publisher}
                yield Condition(seconds(span[0]), **source, rate_per_second=rarely)
                if span[0] < row["last_ns"]:
                    yield Condition(seconds(span[1]), **source, rate_factor=1.0)


def _spans(row: Row) -> list[Span]:
    return [(each["from_ns"], each["until_ns"]) for each in row["longest_outages"]]


def _common(some: list[Span], others: list[Span]) -> list[Span]:
    """The times that lie in spans of both."""
    shared = [
        (max(begin, other_begin), min(end, other_end))
        for begin, end in some
        for other_begin, other_end in others
    ]
    return [(begin, end) for begin, end in shared if begin < end]


def _publications(
    profile: list[Row], topics: dict[str, int], publishers: dict[str, int]
) -> tuple[Publications, SizeSamples]:
    arrivals = [_arrivals(row, len(profile)) for row in profile]
    kinds = [_size_distribution(row) for row in profile]
    means = [max(row["mean_size_bytes"], 1.0) for row in profile]
    sample = [-1] * len(profile)
    sizes: list[NDArray[np.float64]] = []
    weights: list[NDArray[np.float64]] = []
    for number in (number for number, kind in enumerate(kinds) if kind == SizeDistribution.EMPIRICAL):
        values, shares = _size_sample(profile[number]["sizes"])
        sample[number] = len(sizes)
        means[number] = math.fsum(values * shares) / math.fsum(shares)
        sizes.append(values)
        weights.append(shares)
    publications = filled(
        Publications,
        len(profile),
        publisher=[publishers[row["publisher"]] for row in profile],
        topic=[topics[row["topic"]] for row in profile],
        rate_per_second=[_rate(row) for row in profile],
        size_bytes=means,
        size_distribution=kinds,
        size_samples=sample,
        arrival_process=[process for process, *_ in arrivals],
        pareto_shape=[shape for _, shape, _ in arrivals],
        on_seconds=[seconds for *_, seconds in arrivals],
        off_seconds=[seconds for *_, seconds in arrivals],
    )
    return publications, SizeSamples(tuple(sizes), tuple(weights))


def _rate(row: Row) -> float:
    # All events in one instant leave no time to divide by.
    return float(row["rate_per_second"] or row["publications"])


def _is_near(scv: float | None) -> bool:
    return scv is not None and abs(scv - 1) <= _POISSON_BAND


def _gaps(row: Row) -> int:
    """Between how many events the variability was measured."""
    return int(row["gaps"] if "gaps" in row else row["publications"] - 1 - row["outages"])


def _is_assumed(row: Row, sources: int) -> bool:
    return _arrivals(row, sources)[0] == ArrivalProcess.POISSON and not _is_near(row["ca2"])


def _arrivals(row: Row, sources: int) -> tuple[ArrivalProcess, float, float]:
    """Process, Pareto shape, and mean seconds on and off, so that the variability of gaps is the measured one."""
    ca2, gaps, level = row["ca2"], _gaps(row), _FALSE_ALARMS / sources
    # A few late or missed readings do not make clockwork anything else.
    is_regular = (row["regular_share"] or 0.0) >= _CLOCKWORK_SHARE
    if ca2 is not None and is_regular and _REGULAR_BY_CHANCE ** (gaps - 1) < level:
        return ArrivalProcess.PERIODIC, 0.0, 0.0
    if ca2 is None or _is_near(ca2) or chance_of_variability(ca2, gaps) > level:
        return ArrivalProcess.POISSON, 0.0, 0.0
    if ca2 < _PERIODIC_BELOW:
        return ArrivalProcess.PERIODIC, 0.0, 0.0
    if ca2 < 1:
        # 1/(a (a - 2)) = ca2, THEORY.md section 2.
        return ArrivalProcess.PARETO, 1 + math.sqrt(1 + 1 / ca2), 0.0
    if "others" in row and chance_of_variability(*row["others"]) > level:
        return ArrivalProcess.POISSON, 0.0, 0.0
    # 1 + 2 rate off^2/(on + off) = ca2 with equal on and off times (Kuczura 1973).
    return ArrivalProcess.ON_OFF, 0.0, (ca2 - 1) / _rate(row)


def _size_distribution(row: Row) -> SizeDistribution:
    scv = row["size_scv"]
    if scv is None or scv < _CONSTANT_BELOW:
        return SizeDistribution.CONSTANT
    # Of few sizes those that were seen say more than any distribution.
    is_like = (
        abs(scv - 1) <= _EXPONENTIAL_BAND and chance_of_variability(scv, row["publications"]) > _FALSE_ALARMS
    )
    return SizeDistribution.EXPONENTIAL if _is_near(scv) or is_like else SizeDistribution.EMPIRICAL


def _size_sample(bins: list[Row]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most 32 sizes and how often they were seen; neighbours are merged, so that the mean stays the same."""
    sizes, counts = np.array(sorted((entry["size_bytes"], float(entry["count"])) for entry in bins)).T
    if len(sizes) > _MOST_SIZES:
        middle = np.cumsum(counts) - counts / 2
        group = np.minimum((middle / counts.sum() * _MOST_SIZES).astype(int), _MOST_SIZES - 1)
        merged = np.bincount(group, weights=counts).astype(np.float64)
        sizes = np.bincount(group, weights=sizes * counts)[merged > 0] / merged[merged > 0]
        counts = merged[merged > 0]
    # An event of no bytes is still an event; a scenario knows none.
    return np.maximum(sizes, 1.0), counts
