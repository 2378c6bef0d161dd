"""Clusters of brokers in scenario files: what is read and written, and what is wrong with them."""

from __future__ import annotations

import pytest

from triagemq.errors import ScenarioError
from triagemq.scenario import dumps, loads

CAMPUS = """\
brokers:
  bn: {cluster: library, head: true, downlink_bps: 20e6, uplink_bps: 20e6}
  b0: {cluster: library, downlink_bps: 6.5e6, uplink_bps: 6.5e6}
  b1: {cluster: library, uplink_bps: 8 Mbit/s}
broker_links:
  - {between: [bn, b0], propagation_seconds: 0.1}
  - {between: [bn, b1], propagation_seconds: 0.1}
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 1 Gbit/s}}
publishers:
  sensor: {cluster: library, publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}
subscribers:
  commander: {cluster: library, port: radio, subscribes: {smoke: log:10}}
  clerk: {broker: b1, port: radio, subscribes: {smoke: log:10}}
"""


def test_clients_of_a_cluster_begin_at_its_head_and_at_its_first_edge() -> None:
    scenario = loads(CAMPUS)
    names = scenario.brokers.name
    assert [names[each] for each in scenario.publishers.broker] == ["bn"]
    assert [names[each] for each in scenario.subscribers.broker] == ["b1", "b0"]
    assert scenario.brokers.head.tolist() == [0, 0, 1]
    assert scenario.brokers.uplink_bps.tolist() == [6.5e6, 8e6, 20e6]


def test_clusters_survive_being_written() -> None:
    scenario = loads(CAMPUS)
    assert loads(dumps(scenario)).fingerprint == scenario.fingerprint


def test_clusters_are_part_of_the_fingerprint_only_where_they_are() -> None:
    scenario = loads(CAMPUS)
    assert loads(CAMPUS.replace("8 Mbit/s", "9 Mbit/s")).fingerprint != scenario.fingerprint
    # That of a scenario as it was before brokers had clusters.
    plain = """
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 320000}}
publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
"""
    assert loads(plain).fingerprint == "90aa4b9dd45ef35852683a81dffec3d0"


@pytest.mark.parametrize(
    ("old", "new", "field", "fix"),
    [
        ("head: true, ", "", "brokers.b0.cluster", "head: true"),
        ("b1: {", "b1: {head: true, ", "brokers.bn.head", "keep one"),
        ("b1: {cluster: library", "b1: {head: true", "brokers.b1.head", "cluster"),
        ("  b1: {", "  b0: {", "brokers.b0", "remove one"),
        ("sensor: {cluster: library", "sensor: {cluster: libary", "publishers.sensor.cluster", "library"),
        ("commander: {cluster: library", "commander: {cluster: library, broker: b0",
         "subscribers.commander.cluster", "keep one"),
        ("clerk: {broker: b1", "clerk: {broker: bn", "subscribers.clerk.broker", "b0, b1"),
        ("sensor: {cluster: library", "sensor: {broker: b0", "publishers.sensor.broker", "bn"),
    ],
)  # fmt: skip
def test_clusters_that_do_not_fit_are_named(old: str, new: str, field: str, fix: str) -> None:
    assert CAMPUS.count(old) == 1
    with pytest.raises(ScenarioError) as caught:
        loads(CAMPUS.replace(old, new))
    problem = caught.value.problems[0]
    assert problem.field == field
    assert fix in problem.fix


def test_a_cluster_without_an_edge_serves_no_subscribers() -> None:
    text = CAMPUS.replace("b0: {cluster: library, ", "b0: {cluster: annex, head: true, ").replace(
        "commander: {cluster: library", "commander: {cluster: annex"
    )
    with pytest.raises(ScenarioError) as caught:
        loads(text)
    assert [problem.field for problem in caught.value.problems] == ["subscribers.commander.cluster"]
