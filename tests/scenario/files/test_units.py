"""Numbers with units: they mean what the plain number in the key's own unit means, and wrong units are refused."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.errors import ScenarioError
from triagemq.scenario import dumps, load_with_conditions, loads
from triagemq.scenario.files.explain import (
    BANDWIDTH,
    PACKETS,
    PART,
    RATE,
    SHARE,
    SIZE,
    TIME,
    Quantity,
    number_text,
    parse_number,
)

WITH_UNITS = """\
mtu_bytes: 1.5 kB
fragmentation: true
overhead_bytes: 49 B
planning: {rho_tolerance: 10 %, judged_over_seconds: 1 min}
brokers: {hall: {inbound_rate_per_second: 1 MHz, outbound_rate_per_second: 500 kHz}, annex: {}}
broker_links: [{between: [hall, annex], bandwidth_bps: 1 Gbit/s, error_rate: 0.1%, propagation_seconds: 2 ms}]
unmanaged_switches: {sensors: {bandwidth_bps: 10Mbps}}
switches: {core: {inbound_rate_per_second: 1e6/s}}
ports:
  radio: {switch: core, bandwidth_bps: 320 kbit/s, buffer_packets: 200 packets, propagation_seconds: 150us}
  desk: {switch: core, bandwidth_bps: 40 kB/s}
topics: {smoke: {size_bytes: 60 bytes}}
publishers:
  room:
    broker: hall
    switch: sensors
    error_rate: 1 %
    publishes:
      smoke: {rate_per_second: 120/min}
      heat: {min_separation_seconds: 500 ms, max_separation_seconds: 0.1 min, size_bytes: "40 B"}
      video: {rate_per_second: 1 Hz, sizes: {values: [900, 2 KiB]}}
      crowd: {rate_per_second: 3600 per hour, size_bytes: 1 kB,
              arrivals: {process: on_off, on_seconds: 2 s, off_seconds: 8 sec}}
subscribers:
  commander:
    broker: annex
    port: radio
    subscribes:
      smoke: {utility: log:10, max_latency_seconds: 200 ms, max_latency_share: 95 %, max_separation_seconds: 1 h}
      heat: step:3@80%
      video: {utility: {shape: step, weight: 3, threshold: 80 percent, freshness_seconds: 4 seconds}}
conditions:
  - {at_seconds: 10 min, port: radio, bandwidth_bps: 160k}
  - {at_seconds: 90 s, publisher: room, topic: smoke, rate_per_second: 20 events/s}
  - {at_seconds: 1500 ms, subscriber: commander, error_rate: 10%}
"""
PLAIN = """\
mtu_bytes: 1500
fragmentation: true
overhead_bytes: 49
planning: {rho_tolerance: 0.1, judged_over_seconds: 60}
brokers: {hall: {inbound_rate_per_second: 1000000, outbound_rate_per_second: 500000}, annex: {}}
broker_links: [{between: [hall, annex], bandwidth_bps: 1000000000, error_rate: 0.001, propagation_seconds: 0.002}]
unmanaged_switches: {sensors: {bandwidth_bps: 10000000}}
switches: {core: {inbound_rate_per_second: 1000000}}
ports:
  radio: {switch: core, bandwidth_bps: 320000, buffer_packets: 200, propagation_seconds: 0.00015}
  desk: {switch: core, bandwidth_bps: 320000}
topics: {smoke: {size_bytes: 60}}
publishers:
  room:
    broker: hall
    switch: sensors
    error_rate: 0.01
    publishes:
      smoke: {rate_per_second: 2}
      heat: {min_separation_seconds: 0.5, max_separation_seconds: 6, size_bytes: 40}
      video: {rate_per_second: 1, sizes: {values: [900, 2048]}}
      crowd: {rate_per_second: 1, size_bytes: 1000, arrivals: {process: on_off, on_seconds: 2, off_seconds: 8}}
subscribers:
  commander:
    broker: annex
    port: radio
    subscribes:
      smoke: {utility: log:10, max_latency_seconds: 0.2, max_latency_share: 0.95, max_separation_seconds: 3600}
      heat: step:3@0.8
      video: {utility: {shape: step, weight: 3, threshold: 0.8, freshness_seconds: 4}}
conditions:
  - {at_seconds: 600, port: radio, bandwidth_bps: 160000}
  - {at_seconds: 90, publisher: room, topic: smoke, rate_per_second: 20}
  - {at_seconds: 1.5, subscriber: commander, error_rate: 0.1}
"""
SMALL = """\
brokers: {{hall: }}
switches: {{core: }}
ports: {{radio: {{switch: core, bandwidth_bps: {bandwidth}}}}}
publishers: {{sensor: {{publishes: {{smoke: {{rate_per_second: {rate}, size_bytes: {size}}}}}}}}}
subscribers:
  commander: {{port: radio, error_rate: {share}, propagation_seconds: {time}, subscribes: {{smoke: log:1}}}}
"""
QUANTITIES = {
    "bandwidth": BANDWIDTH,
    "rate": RATE,
    "size": SIZE,
    "share": SHARE,
    "time": TIME,
}
RIGHT = {"bandwidth": "8e6", "rate": "2", "size": "60", "share": "0.1", "time": "0.5"}
EVERY_UNIT = [
    (kind, unit) for kind in (BANDWIDTH, RATE, SIZE, SHARE, PART, TIME, PACKETS) for unit in kind.units
]
DECIMALS = st.decimals(
    min_value=Decimal("0.000001"),
    max_value=Decimal("999999"),
    places=6,
    allow_nan=False,
    allow_infinity=False,
)


def test_every_key_takes_units_and_means_the_plain_number(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("units")
    found = []
    for name, text in (("units", WITH_UNITS), ("plain", PLAIN)):
        (folder / f"{name}.yaml").write_text(text)
        found.append(load_with_conditions(folder / f"{name}.yaml"))
    (scenario, conditions), (plain, plain_conditions) = found
    assert scenario.fingerprint == plain.fingerprint
    assert conditions == plain_conditions


def test_what_is_saved_is_in_plain_base_units() -> None:
    text = dumps(loads(WITH_UNITS))
    assert "radio: {switch: core, bandwidth_bps: 320000, buffer_packets: 200" in text
    assert loads(text).fingerprint == loads(PLAIN).fingerprint


@given(st.sampled_from(EVERY_UNIT), DECIMALS, st.sampled_from(["", " ", "  "]))
def test_a_number_with_a_unit_is_the_number_nearest_to_the_product(
    kind_and_unit: tuple[Quantity, str], number: Decimal, between: str
) -> None:
    quantity, unit = kind_and_unit
    between = between if not unit.startswith("per") else between or " "
    exact = Fraction(number) * quantity.units[unit]
    read = quantity.read(f"{number:f}{between}{unit}")
    assert read == exact.numerator / exact.denominator


@given(st.sampled_from(sorted(QUANTITIES)), st.data())
def test_a_value_in_any_unit_survives_loading_and_saving(kind: str, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(QUANTITIES[kind].units)))
    number = data.draw(st.integers(1, 99))
    scenario = loads(SMALL.format(**{**RIGHT, kind: f"{number} {unit}"}))
    value = QUANTITIES[kind].read(f"{number} {unit}")
    columns = {
        "bandwidth": scenario.ports.bandwidth_bps,
        "rate": scenario.publications.rate_per_second,
        "size": scenario.publications.size_bytes,
        "share": scenario.subscribers.error_rate,
        "time": scenario.subscribers.propagation_seconds,
    }
    assert columns[kind].tolist() == [value]
    assert loads(dumps(scenario)).fingerprint == scenario.fingerprint
    assert loads(SMALL.format(**{**RIGHT, kind: number_text(value or 0)})).fingerprint == scenario.fingerprint


@given(st.sampled_from(sorted(QUANTITIES)), st.data())
def test_a_unit_of_something_else_is_refused_with_its_line_and_what_to_write(
    kind: str, data: st.DataObject
) -> None:
    quantity = QUANTITIES[kind]
    foreign = {unit for other in QUANTITIES.values() for unit in other.units} - set(quantity.units)
    unit = data.draw(st.sampled_from(sorted(foreign)))
    with pytest.raises(ScenarioError) as raised:
        loads(SMALL.format(**{**RIGHT, kind: f"7 {unit}"}))
    (problem,) = raised.value.problems
    assert problem.line == {"bandwidth": 3, "rate": 4, "size": 4, "share": 6, "time": 6}[kind]
    assert repr(f"7 {unit}") in problem.what
    assert problem.fix.startswith("write ")
    assert quantity.read(f"7 {unit}") is None


@given(st.text(max_size=12), st.sampled_from(sorted(QUANTITIES)))
def test_whatever_stands_where_a_number_should_is_read_or_advised_about(text: str, kind: str) -> None:
    quantity = QUANTITIES[kind]
    if quantity.read(text) is None:
        what, fix = quantity.advice(text)
        assert what
        assert fix.startswith("write ")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_written_of_a_number_is_that_number(value: float) -> None:
    assert parse_number(number_text(value)) == value


@pytest.mark.parametrize("text", ["1e999 kbit/s", "1e99999999999999999999 kbit/s", "-1e999 bit/s"])
def test_numbers_beyond_all_numbers_are_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="finite number"):
        loads(SMALL.format(**{**RIGHT, "bandwidth": text}))


@pytest.mark.parametrize("text", ["0 ms", "0e99999999999999999999 ms", "1e-999 ms"])
def test_nothing_in_any_unit_is_nothing(text: str) -> None:
    assert loads(SMALL.format(**{**RIGHT, "time": text})).subscribers.propagation_seconds.tolist() == [0.0]


@pytest.mark.parametrize(
    ("quantity", "text"),
    [(TIME, "5 m"), (SIZE, "1 K"), (SIZE, "1 KB"), (BANDWIDTH, "8 MB"), (BANDWIDTH, "8 MBps"), (TIME, "5 S")],
)
def test_what_two_readers_could_take_for_two_things_is_refused(quantity: Quantity, text: str) -> None:
    assert quantity.read(text) is None
