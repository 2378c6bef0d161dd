"""What a right scenario file means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triagemq.errors import ScenarioError
from triagemq.scenario import (
    ArrivalProcess,
    Scenario,
    SizeDistribution,
    UtilityShape,
    load,
    load_with_conditions,
    loads,
)
from triagemq.scenario.files import reading

BUILDING = """\
name: Building fire
overhead_bytes: 49
planning: {priority_classes: 4}
brokers: {hall: {inbound_rate_per_second: 5e5}, annex: }
broker_links:
  - {between: [hall, annex], bandwidth_bps: 1e9, propagation_seconds: 0.001}
unmanaged_switches: {sensor-net: {bandwidth_bps: 10e6}}
switches: {core: {}, floor-1: {fed_by: trunk}}
ports:
  radio: {switch: floor-1, bandwidth_bps: 320000, buffer_packets: 2000, queues: 9, error_rate: 0.1}
  trunk: {switch: core, bandwidth_bps: 100e6}
topics:
  floor/1/smoke: {size_bytes: 60, sizes: constant}
publishers:
  sensor-1:
    broker: hall
    switch: sensor-net
    error_rate: 0.01
    propagation_seconds: 0.002
    publishes:
      floor/1/smoke: {rate_per_second: 2}
      floor/1/co: {min_separation_seconds: 0.5, max_separation_seconds: 5, size_bytes: 40, arrivals: periodic}
      floor/1/video: {rate_per_second: 1, sizes: {values: [900, 1100], weights: [1, 3]},
                      arrivals: {process: on_off, on_seconds: 2, off_seconds: 8}}
      floor/2/crowd: {rate_per_second: 1, size_bytes: 70, arrivals: {process: pareto, shape: 2.5}}
subscribers:
  commander:
    broker: annex
    port: radio
    error_rate: 0.2
    subscribes:
      floor/1/smoke: log:10
      floor/1/+: {utility: linear:2, max_latency_seconds: 0.05, max_separation_seconds: 1}
      floor/2/crowd: {utility: {shape: step, weight: 3, threshold: 0.8, freshness_seconds: 2}}
"""

MINIMAL = """\
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 8e6}}
publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
"""


@pytest.fixture(scope="module")
def building() -> Scenario:
    return loads(BUILDING)


def row_of_topic(scenario: Scenario, topic: str) -> int:
    return int(np.flatnonzero(scenario.publications.topic == scenario.topics.name.index(topic))[0])


def test_names_become_indices_of_sorted_tables(building: Scenario) -> None:
    assert building.brokers.name == ("annex", "hall")
    assert building.topics.name == ("floor/1/co", "floor/1/smoke", "floor/1/video", "floor/2/crowd")
    assert building.publishers.broker.tolist() == [1]
    assert building.publishers.unmanaged_switch.tolist() == [0]
    assert building.subscribers.broker.tolist() == [0]
    assert building.ports.name[building.switches.fed_by_port[1]] == "trunk"
    assert building.switches.fed_by_port[0] == -1


def test_what_is_left_out_is_without_limit_or_zero(building: Scenario) -> None:
    trunk = building.ports.name.index("trunk")
    assert building.ports.buffer_packets[trunk] == np.inf
    assert building.ports.queues[trunk] == 0
    assert building.brokers.outbound_rate_per_second.tolist() == [1e6, 1e6]
    assert building.planning.flows_per_subscriber == 9
    assert building.planning.priority_classes == 4
    assert building.mtu_bytes == np.inf
    smoke = row_of_topic(building, "floor/1/smoke")
    assert building.publications.min_separation_seconds[smoke] == 0
    assert building.publications.max_separation_seconds[smoke] == np.inf
    assert building.publications.size_samples[smoke] == -1


def test_a_link_between_brokers_goes_both_ways(building: Scenario) -> None:
    links = building.broker_links
    assert list(zip(links.source_broker.tolist(), links.target_broker.tolist(), strict=True)) == [
        (0, 1),
        (1, 0),
    ]
    assert links.bandwidth_bps.tolist() == [1e9, 1e9]


def test_sizes_come_from_the_publication_else_the_topic_else_the_samples(building: Scenario) -> None:
    publications = building.publications
    smoke, co = row_of_topic(building, "floor/1/smoke"), row_of_topic(building, "floor/1/co")
    video = row_of_topic(building, "floor/1/video")
    assert publications.size_bytes[[smoke, co, video]].tolist() == [60, 40, 1050]
    assert publications.size_distribution[[smoke, co, video]].tolist() == [
        SizeDistribution.CONSTANT,
        SizeDistribution.EXPONENTIAL,
        SizeDistribution.EMPIRICAL,
    ]
    assert building.size_samples.size_bytes[0].tolist() == [900, 1100]
    assert building.size_samples.weight[0].tolist() == [1, 3]


def test_arrivals_carry_their_parameters(building: Scenario) -> None:
    publications = building.publications
    co, video = row_of_topic(building, "floor/1/co"), row_of_topic(building, "floor/1/video")
    crowd = row_of_topic(building, "floor/2/crowd")
    assert publications.arrival_process[[co, video, crowd]].tolist() == [
        ArrivalProcess.PERIODIC,
        ArrivalProcess.ON_OFF,
        ArrivalProcess.PARETO,
    ]
    assert publications.rate_per_second[co] == 2
    assert (publications.on_seconds[video], publications.off_seconds[video]) == (2, 8)
    assert publications.pareto_shape.tolist() == [2.5 if row == crowd else 0 for row in range(4)]


def test_a_pattern_stands_for_every_topic_it_matches_that_has_no_entry_of_its_own(building: Scenario) -> None:
    wanted = building.subscriptions
    by_topic = {building.topics.name[topic]: row for row, topic in enumerate(wanted.topic)}
    assert len(by_topic) == len(wanted) == 4
    assert wanted.utility_shape[by_topic["floor/1/smoke"]] == UtilityShape.LOG
    assert wanted.utility_weight[[by_topic["floor/1/co"], by_topic["floor/1/video"]]].tolist() == [2, 2]
    assert wanted.max_latency_seconds[by_topic["floor/1/co"]] == 0.05
    crowd = by_topic["floor/2/crowd"]
    assert wanted.utility_threshold[crowd] == 0.8
    assert wanted.freshness_seconds[crowd] == 2


def test_the_order_of_a_file_does_not_matter(building: Scenario) -> None:
    lines = BUILDING.split("\n")
    start = lines.index("topics:")
    moved = "\n".join([*lines[start:], *lines[:start]])
    assert loads(moved).fingerprint == building.fingerprint
    ports = BUILDING.replace(lines[9] + "\n" + lines[10], lines[10] + "\n" + lines[9])
    assert ports != BUILDING
    assert loads(ports).fingerprint == building.fingerprint


def test_one_broker_need_not_be_named() -> None:
    assert (
        loads(MINIMAL).fingerprint
        == loads(MINIMAL.replace("port: radio", "port: radio, broker: hall")).fingerprint
    )


def test_an_mtu_without_fragmentation_is_a_check_and_no_more() -> None:
    assert loads(f"mtu_bytes: 1500\n{MINIMAL}").fingerprint == loads(MINIMAL).fingerprint
    fragmented = loads(f"mtu_bytes: 50\nfragmentation: true\n{MINIMAL}")
    assert fragmented.mtu_bytes == 50


def test_a_subscription_may_ask_for_a_promise_alone() -> None:
    wanted = loads(MINIMAL.replace("log:10", "{max_latency_seconds: 0.1}")).subscriptions
    assert wanted.utility_weight.tolist() == [0]
    assert wanted.max_latency_seconds.tolist() == [0.1]


def test_topics_may_be_a_list_and_may_be_unused() -> None:
    assert loads(f"topics: [smoke, heat, 7]\n{MINIMAL}").topics.name == ("7", "heat", "smoke")


def test_names_that_look_like_other_values_are_names() -> None:
    text = (
        MINIMAL.replace("hall", "null")
        .replace("core", "1e3")
        .replace("radio", "007")
        .replace("smoke", "true")
    )
    scenario = loads(text)
    assert scenario.brokers.name == ("null",)
    assert scenario.switches.name == ("1e3",)
    assert scenario.ports.name == ("007",)
    assert scenario.topics.name == ("true",)


def test_anchors_and_merge_keys_work() -> None:
    text = """\
brokers: {hall: }
switches: {core: }
ports:
  radio: &port {switch: core, bandwidth_bps: 8e6, queues: 9}
  desk: {<<: *port, bandwidth_bps: 1e6}
publishers:
  sensor: {publishes: {smoke: &rate {rate_per_second: 2, size_bytes: 60}, heat: *rate}}
subscribers:
  commander: {port: radio, subscribes: &wanted {smoke: log:10, heat: log:1}}
  clerk: {port: desk, subscribes: *wanted}
"""
    scenario = loads(text)
    assert scenario.ports.bandwidth_bps.tolist() == [1e6, 8e6]
    assert scenario.ports.queues.tolist() == [9, 9]
    assert len(scenario.subscriptions) == 4


@pytest.mark.parametrize(
    ("written", "value"),
    [("8e6", 8e6), ("+8.5E+6", 8.5e6), (".5", 0.5), ("8.", 8.0), ("0x10", 16.0), ("0o17", 15.0), ("08", 8.0)],
)
def test_numbers_are_those_of_yaml_1_2(written: str, value: float) -> None:
    assert loads(MINIMAL.replace("8e6", written)).ports.bandwidth_bps.tolist() == [value]


def test_a_scenario_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    path = tmp_path / "city.yaml"
    path.write_text("\ufeff" + MINIMAL, encoding="utf-8")
    assert load(path).name == "city"
    assert load(str(path)).fingerprint == loads(MINIMAL).fingerprint


def test_files_are_read_alike_without_the_compiled_parser(
    monkeypatch: pytest.MonkeyPatch, building: Scenario
) -> None:
    monkeypatch.delattr(reading.yaml, "CBaseLoader", raising=False)
    assert loads(BUILDING).fingerprint == building.fingerprint
    for text in ("a: [", "a: \x01", "a: *b", "\ta: 1", "[" * 5000):
        with pytest.raises(ScenarioError):
            loads(text)


def test_a_file_is_parsed_once_for_its_scenario_and_its_conditions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts: list[str] = []
    parse = reading.yaml.parse

    def counted(text: str, **options: Any) -> Iterator[Any]:
        texts.append(text)
        return parse(text, **options)

    monkeypatch.setattr(reading.yaml, "parse", counted)
    path = tmp_path / "fire.yaml"
    path.write_text(f"{MINIMAL}conditions: [{{at_seconds: 5, port: radio, bandwidth_bps: 1e6}}]\n")
    scenario, conditions = load_with_conditions(path)
    assert len(texts) == 1
    assert scenario.fingerprint == loads(MINIMAL).fingerprint
    assert len(conditions.timeline) == 1


def test_a_thousand_patterns_over_a_thousand_topics_are_fast() -> None:
    topics = "".join(f"      floor/{n}/smoke: {{rate_per_second: 1, size_bytes: 9}}\n" for n in range(1000))
    people = "".join(f"  s{n}: {{port: radio, subscribes: {{floor/{n}/#: log:1}}}}\n" for n in range(1000))
    scenario = loads(
        "brokers: {hall: }\nswitches: {core: }\nports: {radio: {switch: core, bandwidth_bps: 8e6}}\n"
        f"publishers:\n  sensor:\n    publishes:\n{topics}subscribers:\n{people}"
    )
    assert len(scenario.subscriptions) == 1000


def test_minus_zero_is_zero() -> None:
    delayed = MINIMAL.replace("bandwidth_bps: 8e6", "bandwidth_bps: 8e6, propagation_seconds: -0.0")
    assert loads(delayed).fingerprint == loads(MINIMAL).fingerprint
