"""The Scenario is one canonical, frozen thing, whatever order its rows come in."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.errors import ParameterError
from triagemq.scenario import (
    Scenario,
    SizeDistribution,
    SizeSamples,
    UnmanagedSwitches,
    loads,
    port_depths,
    port_paths,
)
from triagemq.scenario.model import take

TEXT = """\
brokers: {hall: , annex: }
broker_links: [{between: [hall, annex]}]
switches: {core: , floor-1: {fed_by: trunk}}
ports:
  radio: {switch: floor-1, bandwidth_bps: 320000}
  trunk: {switch: core, bandwidth_bps: 1e8}
publishers:
  sensor: {broker: hall, publishes: {smoke: {rate_per_second: 2, sizes: {values: [9, 11]}}}}
  camera: {broker: annex, publishes: {video: {rate_per_second: 1, sizes: {values: [900]}},
                                      smoke: {rate_per_second: 3, size_bytes: 8}}}
subscribers:
  commander: {broker: annex, port: radio, subscribes: {smoke: log:10, video: linear:1}}
  clerk: {broker: hall, port: radio, subscribes: {video: step:3@0.5}}
"""


def shuffled(scenario: Scenario, seed: int) -> Scenario:
    """The same situation with the rows of every table in another order, put together again."""
    rng = np.random.default_rng(seed)
    tables = {}
    moved = {}
    for name in ("topics", "brokers", "switches", "ports", "publishers", "subscribers"):
        order = rng.permutation(len(getattr(scenario, name)))
        tables[name] = take(getattr(scenario, name), order)
        moved[name] = np.append(np.argsort(order), -1).astype(np.int32)
    tables["switches"] = replace(
        tables["switches"], fed_by_port=moved["ports"][tables["switches"].fed_by_port]
    )
    tables["ports"] = replace(tables["ports"], switch=moved["switches"][tables["ports"].switch])
    for name, column, target in (
        ("publishers", "broker", "brokers"),
        ("subscribers", "broker", "brokers"),
        ("subscribers", "port", "ports"),
    ):
        tables[name] = replace(tables[name], **{column: moved[target][getattr(tables[name], column)]})
    for name, columns in (
        ("broker_links", {"source_broker": "brokers", "target_broker": "brokers"}),
        ("publications", {"publisher": "publishers", "topic": "topics"}),
        ("subscriptions", {"subscriber": "subscribers", "topic": "topics"}),
    ):
        table = take(getattr(scenario, name), rng.permutation(len(getattr(scenario, name))))
        changed = {column: moved[target][getattr(table, column)] for column, target in columns.items()}
        tables[name] = replace(table, **changed)
    return Scenario.of(name="other", size_samples=scenario.size_samples, **tables)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_the_order_of_rows_does_not_change_the_fingerprint(seed: int) -> None:
    scenario = loads(TEXT)
    assert shuffled(scenario, seed).fingerprint == scenario.fingerprint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("log:10", "log:11"),
        ("320000", "320001"),
        ("[9, 11]", "[9, 12]"),
        ("smoke", "smoak"),
        ("0.5", "0.6"),
        ("brokers:", "sending_order: random\nbrokers:"),
    ],
)
def test_everything_that_matters_changes_the_fingerprint(old: str, new: str) -> None:
    assert loads(TEXT.replace(old, new)).fingerprint != loads(TEXT).fingerprint


def test_the_name_of_a_scenario_does_not_change_its_fingerprint() -> None:
    assert loads(f"name: other\n{TEXT}").fingerprint == loads(TEXT).fingerprint


def test_tables_cannot_be_changed() -> None:
    scenario = loads(TEXT)
    with pytest.raises(ValueError, match="read-only"):
        scenario.ports.bandwidth_bps[0] = 1
    with pytest.raises(FrozenInstanceError):
        scenario.name = "other"  # type: ignore[misc]


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(ParameterError, match="unequal length"):
        UnmanagedSwitches(("hall",), np.ones(2))


def test_equal_size_samples_are_one_row_and_unused_ones_go() -> None:
    scenario = loads(TEXT.replace("values: [900]", "values: [9, 11]"))
    assert len(scenario.size_samples) == 1
    table = scenario.publications
    empirical = table.size_distribution == SizeDistribution.EMPIRICAL
    assert table.size_samples[empirical].tolist() == [0, 0]
    three = SizeSamples((np.array([1.0]), *[np.array([9.0, 11.0])] * 2), (np.ones(1), np.ones(2), np.ones(2)))
    other = np.where(empirical, np.cumsum(empirical), -1).astype(np.int32)
    parts = {name: getattr(scenario, name) for name in SCENARIO_PARTS}
    again = Scenario.of(
        name="again", publications=replace(table, size_samples=other), size_samples=three, **parts
    )
    assert again.fingerprint == scenario.fingerprint


SCENARIO_PARTS = (
    "topics",
    "brokers",
    "broker_links",
    "switches",
    "ports",
    "publishers",
    "subscribers",
    "subscriptions",
)


def test_a_path_leads_from_the_broker_through_the_trunk_to_the_port() -> None:
    scenario = loads(TEXT)
    radio, trunk = scenario.ports.name.index("radio"), scenario.ports.name.index("trunk")
    assert port_paths(scenario)[radio].tolist() == [trunk, radio]
    assert port_depths(scenario)[[radio, trunk]].tolist() == [1, 0]
