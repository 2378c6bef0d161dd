"""What is saved and loaded again is the same scenario, and a person can read it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triagemq.errors import OutputError, ParameterError
from triagemq.scenario import (
    ArrivalProcess,
    BrokerLinks,
    Brokers,
    Discipline,
    Floats,
    Integers,
    LimiterKind,
    OutputPorts,
    PlanningSettings,
    Publications,
    Publishers,
    Scenario,
    SendingOrder,
    SizeDistribution,
    SizeSamples,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
    UnmanagedSwitches,
    UtilityShape,
    dumps,
    load,
    loads,
    save,
)
from triagemq.scenario.model import Codes, filled

positive = st.one_of(
    st.floats(1e-6, 1e12), st.integers(1, 10**7).map(float), st.sampled_from([1e6, 1e-300, 1e300, 1e22, 0.1])
)
moderate = st.one_of(st.floats(1e-3, 1e6), st.integers(1, 1500).map(float))
share = st.one_of(st.just(0.0), st.floats(0, 1, exclude_max=True, allow_subnormal=False))
seconds_or_none = st.one_of(st.just(np.inf), positive)
whole_or_none = st.one_of(st.just(np.inf), st.integers(1, 10**9).map(float))
name = st.one_of(
    st.sampled_from(
        ["hall", "no", "null", "1", "1e3", "a b", " a", "~", "true", "-", "<<", "x: y", "#", "é", "火/1"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
)
topic = name.map(lambda text: text.translate({ord("+"): "p", ord("#"): "h", 0: "0"})).filter(bool)


def names(draw: st.DrawFn, of: st.SearchStrategy[str], least: int, most: int) -> tuple[str, ...]:
    return tuple(draw(st.lists(of, min_size=least, max_size=most, unique=True)))


def floats(draw: st.DrawFn, of: st.SearchStrategy[float], count: int) -> Floats:
    return np.array([draw(of) for _ in range(count)], dtype=np.float64)


def rows(draw: st.DrawFn, first: int, last: int, count: int) -> Integers:
    return np.array([draw(st.integers(first, last)) for _ in range(count)], dtype=np.int32)


def pairs(draw: st.DrawFn, first: int, second: int, most: int) -> tuple[Integers, Integers]:
    both = st.tuples(st.integers(0, first - 1), st.integers(0, second - 1))
    drawn = draw(st.lists(both, max_size=most, unique=True)) if first and second else []
    columns = np.array(drawn, dtype=np.int32).reshape(len(drawn), 2)
    return columns[:, 0].copy(), columns[:, 1].copy()


def draw_queue_rates(
    draw: st.DrawFn, discipline: Codes, bandwidth: Floats, classes: int
) -> tuple[tuple[Floats, ...], tuple[Floats, ...], Codes]:
    """Queue rates and floors of the ports that have some, and whether their queues borrow."""
    has_queue_rates = discipline == Discipline.QUEUE_RATES
    shares = [
        np.array(draw(st.lists(st.integers(1, 9), min_size=classes, max_size=classes))) for _ in bandwidth
    ]
    queue_rates = [
        bps * share / share.sum() if there else np.empty(0)
        for bps, share, there in zip(bandwidth, shares, has_queue_rates, strict=True)
    ]
    floors = [each * draw(st.sampled_from([0.1, 0.25, 1.0])) for each in queue_rates]
    borrowing = has_queue_rates & (rows(draw, 0, 1, len(bandwidth)) == 1)
    return tuple(queue_rates), tuple(floors), borrowing.astype(np.int8)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Small scenarios that make sense, with every kind of table, number and distribution."""
    brokers = names(draw, name, 1, 3)
    unmanaged = names(draw, name, 0, 2)
    switches = names(draw, name, 1, 3)
    # Each switch but the first hangs at a trunk port of one before it; the other ports are for subscribers, and the
    # last ones for links beside the tree.
    trunks = len(switches) - 1
    ports = names(draw, name, trunks + 1, trunks + 3)
    besides = draw(st.integers(0, len(ports) - trunks - 1)) if trunks else 0
    fed_by = np.array([-1, *range(trunks)], dtype=np.int32)
    upstream = [draw(st.integers(0, number)) for number in range(trunks)]
    at_switch = np.array(
        [*upstream, *(draw(st.integers(0, len(switches) - 1)) for _ in ports[trunks:])], dtype=np.int32
    )
    to_switch = np.full(len(ports), -1, dtype=np.int32)
    for number in range(len(ports) - besides, len(ports)):
        to_switch[number] = (at_switch[number] + draw(st.integers(1, trunks))) % len(switches)
    classes = draw(st.integers(1, 12))
    discipline, bandwidth = rows(draw, 0, 2, len(ports)).astype(np.int8), floats(draw, positive, len(ports))
    queues = [draw(st.one_of(st.just(0), st.integers(classes, 20))) for _ in ports]
    publishers, subscribers = names(draw, name, 1, 3), names(draw, name, 1, 3)
    topics = names(draw, topic, 1, 4)
    access = rows(draw, -1, len(switches) - 1, len(publishers))
    publications, samples = draw_publications(draw, len(publishers), len(topics))
    published = np.unique(publications.topic)
    subscriber, wanted = pairs(draw, len(subscribers), len(published), 6)
    links = draw_links(draw, len(brokers))
    overhead = draw(st.one_of(st.just(0.0), moderate))
    return Scenario.of(
        name=draw(name),
        topics=Topics(topics),
        brokers=filled(
            Brokers,
            len(brokers),
            name=brokers,
            inbound_rate_per_second=floats(draw, positive, len(brokers)),
            outbound_rate_per_second=floats(draw, positive, len(brokers)),
            downlink_bps=floats(draw, positive, len(brokers)),
            uplink_bps=floats(draw, positive, len(brokers)),
        ),
        broker_links=links,
        unmanaged_switches=UnmanagedSwitches(unmanaged, floats(draw, positive, len(unmanaged))),
        switches=Switches(
            switches,
            floats(draw, positive, len(switches)),
            fed_by,
            ("",) * len(switches),
            floats(draw, share, len(switches)),
            floats(draw, positive, len(switches)),
            floats(draw, whole_or_none, len(switches)),
            np.array([draw(st.sampled_from(LimiterKind)) for _ in switches], dtype=np.int8),
            floats(draw, share, len(switches)),
            floats(draw, share, len(switches)),
            floats(draw, share, len(switches)),
            floats(draw, whole_or_none, len(switches)),
        ),
        ports=OutputPorts(
            ports,
            at_switch,
            bandwidth,
            floats(draw, st.one_of(st.just(np.inf), st.integers(1, 10**9).map(float)), len(ports)),
            np.array(queues, dtype=np.int32),
            floats(draw, share, len(ports)),
            floats(draw, share, len(ports)),
            to_switch,
            discipline,
            *draw_queue_rates(draw, discipline, bandwidth, classes),
        ),
        publishers=Publishers(
            publishers,
            rows(draw, 0, len(brokers) - 1, len(publishers)),
            rows(draw, -1, len(unmanaged) - 1, len(publishers)),
            floats(draw, share, len(publishers)),
            floats(draw, share, len(publishers)),
            access,
            np.where(access < 0, np.inf, floats(draw, seconds_or_none, len(publishers))),
        ),
        publications=publications,
        size_samples=samples,
        subscribers=Subscribers(
            subscribers,
            rows(draw, 0, len(brokers) - 1, len(subscribers)),
            rows(draw, trunks, len(ports) - besides - 1, len(subscribers)),
            floats(draw, share, len(subscribers)),
            floats(draw, share, len(subscribers)),
        ),
        subscriptions=draw_subscriptions(draw, subscriber, published[wanted].astype(np.int32)),
        planning=PlanningSettings(draw(st.integers(1, 20)), classes, draw(share), draw(st.floats(0.1, 1e6))),
        mtu_bytes=draw(st.one_of(st.just(np.inf), st.floats(1, 9000).map(lambda room: overhead + room))),
        overhead_bytes=overhead,
        sending_order=draw(st.sampled_from(SendingOrder)),
    )


def draw_links(draw: st.DrawFn, brokers: int) -> BrokerLinks:
    """A ring, so that every subscription has a path, and any others."""
    ring = {(number, (number + 1) % brokers) for number in range(brokers)} if brokers > 1 else set()
    others = {(a, b) for a in range(brokers) for b in range(brokers) if a != b and draw(st.booleans())}
    links = sorted(ring | others)
    alike = draw(st.booleans())
    numbers = [1 if alike else len(links)] * 3
    bandwidth, error, delay = (
        np.resize(floats(draw, of, count), len(links))
        for of, count in zip((seconds_or_none, share, share), numbers, strict=True)
    )
    return BrokerLinks(
        np.array([source for source, _ in links], dtype=np.int32),
        np.array([target for _, target in links], dtype=np.int32),
        bandwidth,
        error,
        delay,
    )


def draw_publications(draw: st.DrawFn, publishers: int, topics: int) -> tuple[Publications, SizeSamples]:
    publisher, topic_rows = pairs(draw, publishers, topics, 6)
    count = len(publisher)
    sample_count = draw(st.integers(0, 3))
    lists = [floats(draw, moderate, draw(st.integers(1, 3))) for _ in range(sample_count)]
    weights = [
        np.ones(len(sizes)) if draw(st.booleans()) else floats(draw, moderate, len(sizes)) for sizes in lists
    ]
    kinds = st.sampled_from(list(SizeDistribution) if sample_count else list(SizeDistribution)[:2])
    distribution = np.array([draw(kinds) for _ in range(count)], dtype=np.int8)
    sample = np.where(
        distribution == SizeDistribution.EMPIRICAL,
        rows(draw, 0, max(0, sample_count - 1), count),
        np.int32(-1),
    ).astype(np.int32)
    means = [float(np.average(sizes, weights=weight)) for sizes, weight in zip(lists, weights, strict=True)]
    size = np.where(sample >= 0, np.array([*means, 0.0])[sample], floats(draw, positive, count))
    process = np.array([draw(st.sampled_from(ArrivalProcess)) for _ in range(count)], dtype=np.int8)
    shortest = floats(draw, st.one_of(st.just(0.0), st.floats(1e-6, 10)), count)
    largest_rate = 1 / np.where(shortest > 0, shortest, 1e-9)
    rate = largest_rate * floats(draw, st.one_of(st.just(1.0), st.floats(1e-6, 1)), count)
    on_off = process == ArrivalProcess.ON_OFF
    publications = Publications(
        publisher=publisher,
        topic=topic_rows,
        rate_per_second=rate,
        size_bytes=size,
        size_distribution=distribution,
        size_samples=sample,
        arrival_process=process,
        pareto_shape=np.where(process == ArrivalProcess.PARETO, 1 + floats(draw, moderate, count), 0.0),
        on_seconds=np.where(on_off, floats(draw, positive, count), 0.0),
        off_seconds=np.where(on_off, floats(draw, positive, count), 0.0),
        min_separation_seconds=shortest,
        max_separation_seconds=np.maximum(shortest, floats(draw, seconds_or_none, count)),
        max_size_bytes=np.maximum(
            np.where(sample >= 0, np.array([*map(np.max, lists), 0.0])[sample], size),
            floats(draw, seconds_or_none, count),
        ),
    )
    return publications, SizeSamples(tuple(lists), tuple(weights))


def draw_subscriptions(draw: st.DrawFn, subscriber: Integers, wanted: Integers) -> Subscriptions:
    count = len(subscriber)
    shape = np.array([draw(st.sampled_from(UtilityShape)) for _ in range(count)], dtype=np.int8)
    threshold = floats(draw, st.floats(0, 1, exclude_min=True), count)
    latest = floats(draw, seconds_or_none, count)
    return Subscriptions(
        subscriber=subscriber,
        topic=wanted,
        utility_shape=shape,
        utility_weight=floats(draw, st.one_of(st.just(0.0), positive), count),
        utility_threshold=np.where(shape == UtilityShape.STEP, threshold, 0.0),
        freshness_seconds=floats(draw, seconds_or_none, count),
        max_latency_seconds=latest,
        max_separation_seconds=floats(draw, seconds_or_none, count),
        max_latency_share=np.where(np.isfinite(latest), floats(draw, st.floats(0, 1), count), 0.0),
        guaranteed=np.zeros(count, dtype=np.int8),
        min_share=floats(draw, st.floats(0, 1), count),
        max_rate_per_second=floats(draw, seconds_or_none, count),
        newest_only=np.array([draw(st.integers(0, 1)) for _ in range(count)], dtype=np.int8),
        expires_seconds=floats(draw, seconds_or_none, count),
        role_rank=np.array([draw(st.integers(0, 9)) for _ in range(count)], dtype=np.float64),
    )


many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(scenarios())
def test_a_scenario_survives_its_yaml_form(scenario: Scenario) -> None:
    again = loads(dumps(scenario))
    assert again.fingerprint == scenario.fingerprint
    assert again.name == scenario.name


@many
@given(scenarios())
def test_a_scenario_survives_its_directory_form(scenario: Scenario) -> None:
    with TemporaryDirectory() as folder:
        save(scenario, Path(folder) / "city")
        assert sorted(os.listdir(Path(folder) / "city")) == [
            "publications.parquet",
            "scenario.yaml",
            "subscriptions.parquet",
        ]
        assert load(Path(folder) / "city").fingerprint == scenario.fingerprint


@many
@given(scenarios())
def test_the_text_says_the_same_to_other_yaml_readers(scenario: Scenario) -> None:
    read = yaml.safe_load(dumps(scenario))
    assert read["name"] == scenario.name
    assert tuple(sorted(read["ports"])) == scenario.ports.name
    assert [read["ports"][port]["bandwidth_bps"] for port in scenario.ports.name] == list(
        scenario.ports.bandwidth_bps
    )


FIRE = """\
name: Building fire
mtu_bytes: 1500
fragmentation: true
overhead_bytes: 49
sending_order: random
planning: {priority_classes: 4}

brokers:
  annex: {}
  hall: {inbound_rate_per_second: 500000}

broker_links:
- {between: [annex, hall], bandwidth_bps: 1000000000, propagation_seconds: 0.001}

unmanaged_switches:
  sensor-net: {bandwidth_bps: 10000000}

switches:
  core: {}
  floor-1: {fed_by: trunk}

ports:
  radio: {switch: floor-1, bandwidth_bps: 320000, buffer_packets: 2000, queues: 9, error_rate: 0.1}
  trunk: {switch: core, bandwidth_bps: 100000000}

topics:
- floor/2/heat

publishers:
  sensor-1:
    broker: hall
    switch: sensor-net
    error_rate: 0.01
    publishes:
      floor/1/co: {min_separation_seconds: 0.5, max_separation_seconds: 5, size_bytes: 40, arrivals: periodic}
      floor/1/crowd: {rate_per_second: 1, size_bytes: 70, arrivals: {process: pareto, shape: 2.5}}
      floor/1/smoke: {rate_per_second: 2, size_bytes: 60, sizes: constant}
      floor/1/video: {rate_per_second: 0.1, sizes: {values: [900, 1100], weights: [1, 3]}}

subscribers:
  commander:
    broker: annex
    port: radio
    subscribes:
      floor/1/co: {utility: 'linear:2', max_latency_seconds: 0.05}
      floor/1/crowd: step:3@0.8
      floor/1/smoke: log:10
      floor/1/video: {utility: {shape: step, weight: 3, threshold: 0.8, freshness_seconds: 2}}
"""


def test_a_saved_file_reads_as_a_person_would_write_it(tmp_path: Path) -> None:
    save(loads(FIRE), tmp_path / "fire.yaml")
    assert (tmp_path / "fire.yaml").read_text(encoding="utf-8") == FIRE
    assert os.listdir(tmp_path) == ["fire.yaml"]


def test_a_path_without_an_ending_is_a_directory_and_another_ending_is_refused(tmp_path: Path) -> None:
    scenario = loads(FIRE)
    save(scenario, tmp_path / "deep" / "fire")
    save(scenario, tmp_path / "fire.yaml")
    for path in ("deep/fire", "fire.yaml"):
        assert load(tmp_path / path).fingerprint == scenario.fingerprint
    assert (tmp_path / "deep" / "fire").is_dir()
    with pytest.raises(ParameterError, match="yaml"):
        save(scenario, tmp_path / "fire.txt")


def test_what_exists_is_replaced_unless_told_otherwise(tmp_path: Path) -> None:
    scenario = loads(FIRE)
    for path in (tmp_path / "fire.yaml", tmp_path / "fire"):
        save(scenario, path)
        save(loads(FIRE.replace("log:10", "log:11")), path)
        assert load(path).fingerprint != scenario.fingerprint
        with pytest.raises(OutputError, match="exists already"):
            save(scenario, path, overwrite=False)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(loads(FIRE), tmp_path / "fire")
    before = {path.name: path.read_bytes() for path in (tmp_path / "fire").iterdir()}

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("triagemq.scenario.files.saving.write_subscription_table", full_disk)
    with pytest.raises(
        OutputError, match=r"subscriptions.parquet cannot be written: No space left on device"
    ):
        save(loads(FIRE.replace("log:10", "log:11")), tmp_path / "fire")
    assert {path.name: path.read_bytes() for path in (tmp_path / "fire").iterdir()} == before


def test_a_place_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    (tmp_path / "fire.yaml").mkdir()
    (tmp_path / "fire.yaml" / "inside").write_text("")
    for path in (tmp_path / "taken" / "fire.yaml", tmp_path / "taken", tmp_path / "fire.yaml"):
        with pytest.raises(OutputError, match="cannot be written"):
            save(loads(FIRE), path)
    assert sorted(os.listdir(tmp_path)) == ["fire.yaml", "taken"]


def test_names_longer_than_a_yaml_key_survive() -> None:
    scenario = loads(FIRE)
    long = replace(
        scenario,
        topics=Topics(tuple(name * 300 for name in scenario.topics.name)),
        subscribers=replace(scenario.subscribers, name=("commander " * 500,)),
    )
    assert loads(dumps(long)).fingerprint == long.fingerprint
