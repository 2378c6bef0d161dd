"""Every mistake is reported with its line, its field and what to write instead; and all of them at once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from triagemq.errors import Problem, ScenarioError
from triagemq.scenario import loads

VALID = """\
name: Building fire
mtu_bytes: 1500
overhead_bytes: 49
planning: {flows_per_subscriber: 9, priority_classes: 9, rho_tolerance: 0.1}
brokers:
  hall: {inbound_rate_per_second: 1e6}
  annex:
broker_links:
  - {between: [hall, annex], bandwidth_bps: 1e9}
unmanaged_switches:
  sensor-net: {bandwidth_bps: 10e6}
switches:
  core: {inbound_rate_per_second: 1e6}
  floor-1: {fed_by: trunk-1}
ports:
  radio: {switch: core, bandwidth_bps: 320000, buffer_packets: 2000, queues: 9}
  trunk-1: {switch: core, bandwidth_bps: 100e6}
  desk: {switch: floor-1, bandwidth_bps: 1e6, propagation_seconds: 0.001}
topics:
  floor/1/smoke: {size_bytes: 60}
publishers:
  sensor-1:
    broker: hall
    switch: sensor-net
    error_rate: 0.01
    publishes:
      floor/1/smoke: {rate_per_second: 2}
      floor/1/co: {min_separation_seconds: 0.5, size_bytes: 40, arrivals: periodic}
      floor/1/video: {rate_per_second: 1, sizes: {values: [900, 1100], weights: [1, 3]}}
subscribers:
  commander:
    broker: annex
    port: radio
    subscribes:
      floor/1/smoke: log:10
      floor/+/co: {utility: linear:2, max_latency_seconds: 0.05}
  clerk:
    broker: hall
    port: desk
    subscribes:
      floor/1/video: {utility: {shape: step, weight: 3, threshold: 0.8, freshness_seconds: 2}}
"""


@dataclass(frozen=True)
class Mistake:
    """`VALID` with `old` replaced by `new`, what is then reported, and where.

    The line is that of `at`, and of the first line of `new` where that is not given.
    """

    old: str
    new: str
    field: str
    fix: str
    what: str = ""
    at: str | None = None

    def text(self) -> str:
        assert VALID.count(self.old) == 1, self.old
        return VALID.replace(self.old, self.new)

    def line(self) -> int:
        wanted = (self.at or self.new).split("\n")[0]
        lines = [number for number, line in enumerate(self.text().split("\n"), 1) if wanted in line]
        assert len(lines) == 1, (wanted, lines)
        return lines[0]


SMOKE = "publishers.sensor-1.publishes.floor/1/smoke"
CO = "publishers.sensor-1.publishes.floor/1/co"
VIDEO = "publishers.sensor-1.publishes.floor/1/video"
WANTED_SMOKE = "subscribers.commander.subscribes.floor/1/smoke"
WANTED_CO = "subscribers.commander.subscribes.floor/+/co"
WANTED_VIDEO = "subscribers.clerk.subscribes.floor/1/video"

MISTAKES = {
    # Numbers with units, and keys that name another unit.
    "bandwidth as a time": Mistake(
        "bandwidth_bps: 320000",
        "bandwidth_bps: 8 ms",
        "ports.radio.bandwidth_bps",
        "write a number, in bits per second, or such as 320 kbit/s",
        "'8 ms' is a time, not a bandwidth",
    ),
    "bandwidth in bytes of what": Mistake(
        "bandwidth_bps: 320000",
        "bandwidth_bps: 8 MB",
        "ports.radio.bandwidth_bps",
        "write 8 Mbit/s or 8 MB/s",
        "no clear unit",
    ),
    "bandwidth in quotes": Mistake(
        "bandwidth_bps: 320000", 'bandwidth_bps: "320000"', "ports.radio.bandwidth_bps", "write 320000"
    ),
    "bandwidth with underscores": Mistake(
        "bandwidth_bps: 320000", "bandwidth_bps: 320_000", "ports.radio.bandwidth_bps", "write 320000"
    ),
    "bandwidth with underscores and a unit": Mistake(
        "bandwidth_bps: 320000",
        "bandwidth_bps: 320_000 bit/s",
        "ports.radio.bandwidth_bps",
        "write 320000 bit/s",
    ),
    "delay as 10m": Mistake(
        "propagation_seconds: 0.001",
        "propagation_seconds: 10m",
        "ports.desk.propagation_seconds",
        "write 10 min or 10 ms",
        "no clear unit",
    ),
    "size as 1 KB": Mistake(
        "size_bytes: 40", "size_bytes: 1 KB", f"{CO}.size_bytes", "write 1 kB or 1 KiB", "no clear unit"
    ),
    "size in kilograms": Mistake(
        "size_bytes: 40", "size_bytes: 4 kg", f"{CO}.size_bytes", "in bytes, or such as 2 kB", "not known"
    ),
    "size with a unit below zero": Mistake(
        "size_bytes: 40", "size_bytes: -2 kB", f"{CO}.size_bytes", "above 0, in bytes", "is -2000"
    ),
    "separation as a rate": Mistake(
        "min_separation_seconds: 0.5",
        "min_separation_seconds: 2/s",
        f"{CO}.min_separation_seconds",
        "in seconds, or such as 5 ms",
        "'2/s' is a rate, not a time",
    ),
    "rate in the wrong case": Mistake(
        "rate_per_second: 2}", "rate_per_second: 2 hz}", f"{SMOKE}.rate_per_second", "write 2 Hz"
    ),
    "error rate above 100%": Mistake(
        "error_rate: 0.01", "error_rate: 101%", "publishers.sensor-1.error_rate", "below 1", "is 1.01"
    ),
    "weight with a unit": Mistake(
        "weight: 3,", "weight: 3 s,", f"{WANTED_VIDEO}.utility.weight", "write a number", "is a time"
    ),
    "threshold of a short form with a unit": Mistake(
        "smoke: log:10", "smoke: step:3@80 ms", WANTED_SMOKE, "or such as 95 %", "is a time, not a share"
    ),
    "bandwidth_mbps": Mistake(
        "radio: {switch: core, bandwidth_bps: 320000,",
        "radio: {switch: core, bandwidth_mbps: 8,",
        "ports.radio.bandwidth_mbps",
        "write bandwidth_bps: 8000000, in bits per second",
        "not a known key",
    ),
    "bandwidth without a unit": Mistake(
        "bandwidth_bps: 320000",
        "bandwidth: 8 Mbit/s",
        "ports.radio.bandwidth",
        "write bandwidth_bps: 8000000, in bits per second",
    ),
    "propagation_ms": Mistake(
        "propagation_seconds: 0.001",
        "propagation_ms: 10",
        "ports.desk.propagation_ms",
        "write propagation_seconds: 0.01, in seconds",
    ),
    "rate_hz": Mistake(
        "smoke: {rate_per_second: 2}", "smoke: {rate_hz: 2}", f"{SMOKE}.rate_hz", "write rate_per_second: 2"
    ),
    "rate": Mistake(
        "smoke: {rate_per_second: 2}", "smoke: {rate: 2}", f"{SMOKE}.rate", "write rate_per_second: 2"
    ),
    # Keys.
    "misspelled key": Mistake(
        "bandwidth_bps: 320000",
        "bandwith_bps: 320000",
        "ports.radio.bandwith_bps",
        "did you mean bandwidth_bps?",
        "not a known key",
    ),
    "unknown key": Mistake(
        "queues: 9", "colour: red", "ports.radio.colour", "remove it; known keys: switch, bandwidth_bps,"
    ),
    "misspelled section": Mistake(
        "unmanaged_switches:", "unmanaged_switchs:", "unmanaged_switchs", "did you mean unmanaged_switches?"
    ),
    "key twice": Mistake(
        "  trunk-1: {switch",
        "  desk: {switch: core, bandwidth_bps: 5}\n  trunk-1: {switch",
        "ports.desk",
        "remove one of the two",
        "twice, first in line 17",
        at="desk: {switch: floor-1",
    ),
    "key twice in one entry": Mistake(
        "queues: 9", "queues: 9, queues: 9", "ports.radio.queues", "remove one of the two", "twice"
    ),
    "missing key": Mistake(
        "{switch: core, bandwidth_bps: 320000, buffer",
        "{switch: core, buffer",
        "ports.radio.bandwidth_bps",
        "add bandwidth_bps: 8000000, in bits per second",
        "is missing",
    ),
    "entry that is no mapping": Mistake(
        "radio: {switch: core, bandwidth_bps: 320000, buffer_packets: 2000, queues: 9}",
        "radio: 320000",
        "ports.radio",
        "write a mapping",
        "is 320000",
    ),
    "foreign tag": Mistake("desk: {switch", "desk: !port {switch", "ports.desk", "remove the tag"),
    # Impossible numbers.
    "zero bandwidth": Mistake(
        "bandwidth_bps: 320000",
        "bandwidth_bps: 0",
        "ports.radio.bandwidth_bps",
        "write a number above 0",
        "is 0",
    ),
    "negative bandwidth": Mistake(
        "bandwidth_bps: 320000", "bandwidth_bps: -8e6", "ports.radio.bandwidth_bps", "above 0", "is -8000000"
    ),
    "NaN": Mistake(
        "bandwidth_bps: 320000", "bandwidth_bps: .nan", "ports.radio.bandwidth_bps", "finite number", "is NaN"
    ),
    "nan as a word": Mistake(
        "bandwidth_bps: 320000", "bandwidth_bps: nan", "ports.radio.bandwidth_bps", "write a number", "'nan'"
    ),
    "infinite buffer": Mistake(
        "buffer_packets: 2000",
        "buffer_packets: .inf",
        "ports.radio.buffer_packets",
        "leave it out for no limit",
    ),
    "overflow": Mistake(
        "bandwidth_bps: 320000",
        "bandwidth_bps: 1e999",
        "ports.radio.bandwidth_bps",
        "finite number",
        "is inf",
    ),
    "half a packet": Mistake(
        "buffer_packets: 2000", "buffer_packets: 2.5", "ports.radio.buffer_packets", "whole number", "is 2.5"
    ),
    "half a queue": Mistake("queues: 9", "queues: 9.5", "ports.radio.queues", "whole number", "9.5"),
    "truth as a number": Mistake(
        "bandwidth_bps: 320000",
        "bandwidth_bps: true",
        "ports.radio.bandwidth_bps",
        "write a number",
        "true is not",
    ),
    "zero rate": Mistake("rate_per_second: 2}", "rate_per_second: 0}", f"{SMOKE}.rate_per_second", "above 0"),
    "negative size": Mistake("size_bytes: 40", "size_bytes: -40", f"{CO}.size_bytes", "above 0", "is -40"),
    "error rate of one": Mistake(
        "error_rate: 0.01", "error_rate: 1", "publishers.sensor-1.error_rate", "below 1", "is 1"
    ),
    "negative error rate": Mistake(
        "error_rate: 0.01", "error_rate: -0.1", "publishers.sensor-1.error_rate", "at least 0", "is -0.1"
    ),
    "priority classes of zero": Mistake(
        "priority_classes: 9", "priority_classes: 0", "planning.priority_classes", "at least 1"
    ),
    "rho tolerance of one": Mistake(
        "rho_tolerance: 0.1", "rho_tolerance: 1.0", "planning.rho_tolerance", "below 1"
    ),
    # Sizes and packets.
    "event larger than a packet": Mistake(
        "size_bytes: 40", "size_bytes: 1452", f"{CO}.size_bytes", "write fragmentation: true, or at most 1451"
    ),
    "largest sample larger than a packet": Mistake(
        "values: [900, 1100]",
        "values: [900, 1500]",
        f"{VIDEO}.size_bytes",
        "fragmentation: true",
        "up to 1500",
    ),
    "overhead as large as a packet": Mistake(
        "overhead_bytes: 49", "overhead_bytes: 1500", "overhead_bytes", "write less than 1500"
    ),
    "no such order of sending": Mistake(
        "overhead_bytes: 49", "sending_order: by_size", "sending_order", "by_class"
    ),
    "fragmentation without an MTU": Mistake(
        "mtu_bytes: 1500", "fragmentation: true", "fragmentation", "add mtu_bytes: 1500"
    ),
    "no size": Mistake(
        "size_bytes: 40, ", "", f"{CO}.size_bytes", "add size_bytes", "is missing", at="floor/1/co:"
    ),
    "size beside samples": Mistake(
        "sizes: {values",
        "size_bytes: 7, sizes: {values",
        f"{VIDEO}.size_bytes",
        "leave size_bytes out",
        "mean",
    ),
    "weights for other values": Mistake(
        "weights: [1, 3]", "weights: [1]", f"{VIDEO}.sizes.weights", "write 2 numbers", "1 numbers for 2"
    ),
    "negative weight": Mistake(
        "weights: [1, 3]", "weights: [1, -3]", f"{VIDEO}.sizes.weights.2", "at least 0"
    ),
    "weights of nothing": Mistake(
        "weights: [1, 3]", "weights: [0, 0]", f"{VIDEO}.sizes", "at least one weight larger than 0"
    ),
    "weights beyond all numbers": Mistake(
        "weights: [1, 3]", "weights: [1e308, 1e308]", f"{VIDEO}.sizes", "no number huge", "has no mean"
    ),
    "separation beyond all numbers": Mistake(
        "min_separation_seconds: 0.5",
        "min_separation_seconds: 1e-310",
        f"{CO}.min_separation_seconds",
        "at least 1e-9",
    ),
    "unknown distribution": Mistake(
        "sizes: {values: [900, 1100], weights: [1, 3]}",
        "size_bytes: 9, sizes: constnt",
        f"{VIDEO}.sizes",
        "did you mean constant?",
    ),
    # Arrivals.
    "unknown process": Mistake(
        "arrivals: periodic", "arrivals: poison", f"{CO}.arrivals", "did you mean poisson?"
    ),
    "pareto without mean": Mistake(
        "arrivals: periodic",
        "arrivals: {process: pareto, shape: 1}",
        f"{CO}.arrivals.shape",
        "above 1",
        "is 1",
    ),
    "pareto without shape": Mistake(
        "arrivals: periodic",
        "arrivals: pareto",
        f"{CO}.arrivals",
        "{process: pareto, shape: 2.5}",
        "has no shape",
    ),
    "never on": Mistake(
        "arrivals: periodic",
        "arrivals: {process: on_off, on_seconds: 0, off_seconds: 8}",
        f"{CO}.arrivals.on_seconds",
        "above 0",
    ),
    "shape of a poisson process": Mistake(
        "arrivals: periodic", "arrivals: {process: poisson, shape: 2}", f"{CO}.arrivals.shape", "remove it"
    ),
    "rate against separation": Mistake(
        "co: {min_separation_seconds: 0.5",
        "co: {rate_per_second: 3, min_separation_seconds: 0.5",
        f"{CO}.rate_per_second",
        "write at most 2",
    ),
    "separations the wrong way round": Mistake(
        "co: {min_separation_seconds: 0.5",
        "co: {max_separation_seconds: 0.1, min_separation_seconds: 0.5",
        f"{CO}.max_separation_seconds",
        "write at least 0.5",
    ),
    "no rate": Mistake(
        "smoke: {rate_per_second: 2}",
        "smoke: {}",
        f"{SMOKE}.rate_per_second",
        "add rate_per_second",
        "is missing",
    ),
    # Utilities.
    "utility as a number": Mistake("smoke: log:10", "smoke: 10", WANTED_SMOKE, "write utility: log:10"),
    "utility without a weight": Mistake(
        "smoke: log:10", "smoke: log", WANTED_SMOKE, "write log:10, linear:2 or"
    ),
    "unknown shape": Mistake("smoke: log:10", "smoke: lin:10", WANTED_SMOKE, "did you mean linear?"),
    "negative weight of a utility": Mistake(
        "smoke: log:10", "smoke: log:-1", WANTED_SMOKE, "at least 0", "is -1"
    ),
    "threshold above one": Mistake(
        "threshold: 0.8", "threshold: 1.5", f"{WANTED_VIDEO}.utility.threshold", "at most 1", "is 1.5"
    ),
    "threshold of zero": Mistake("smoke: log:10", "smoke: step:3@0", WANTED_SMOKE, "above 0", "is 0"),
    "step without a threshold": Mistake("smoke: log:10", "smoke: step:3", WANTED_SMOKE, "write step:3@0.8"),
    "freshness of zero": Mistake(
        "freshness_seconds: 2", "freshness_seconds: 0", f"{WANTED_VIDEO}.utility.freshness_seconds", "above 0"
    ),
    "latency of zero": Mistake(
        "max_latency_seconds: 0.05", "max_latency_seconds: 0", f"{WANTED_CO}.max_latency_seconds", "above 0"
    ),
    "worth nothing and no promise": Mistake(
        "floor/+/co: {utility: linear:2, max_latency_seconds: 0.05}",
        "floor/+/co: {max_separation_seconds: 1}",
        f"{WANTED_CO}.utility",
        "add utility: log:10, or max_latency_seconds",
    ),
    # Names.
    "unknown switch": Mistake(
        "desk: {switch: floor-1", "desk: {switch: flor-1", "ports.desk.switch", "floor-1?"
    ),
    "unknown unmanaged switch": Mistake(
        "switch: sensor-net", "switch: sensornet", "publishers.sensor-1.switch", "did you mean sensor-net?"
    ),
    "unknown port": Mistake("port: desk", "port: desc", "subscribers.clerk.port", "did you mean desk?"),
    "unknown broker": Mistake(
        "    broker: annex",
        "    broker: cellar",
        "subscribers.commander.broker",
        "write one of hall, annex, or add it under brokers",
        "no broker 'cellar'",
    ),
    "no broker among two": Mistake(
        "    broker: annex\n", "", "subscribers.commander.broker", "write one of hall, annex", at="commander:"
    ),
    "no port": Mistake(
        "    port: desk\n", "", "subscribers.clerk.port", "add port: PORT", "missing", at="clerk:"
    ),
    "unknown feeding port": Mistake(
        "fed_by: trunk-1", "fed_by: trunk-2", "switches.floor-1.fed_by", "trunk-1?"
    ),
    "unknown topic": Mistake(
        "floor/1/smoke: log:10",
        "floor/1/smok: log:10",
        "subscribers.commander.subscribes.floor/1/smok",
        "did you mean floor/1/smoke?",
    ),
    "pattern that matches nothing": Mistake(
        "floor/+/co:",
        "roof/+/co:",
        "subscribers.commander.subscribes.roof/+/co",
        "published are: floor/1/smoke",
    ),
    "patterns that overlap": Mistake(
        "      floor/1/smoke: log:10",
        "      floor/1/+: log:10",
        WANTED_CO,
        "write an entry for floor/1/co itself",
        "matches floor/1/co, as floor/1/+ does",
        at="floor/+/co:",
    ),
    "pattern that is none": Mistake(
        "floor/+/co:",
        "floor/1+/co:",
        "subscribers.commander.subscribes.floor/1+/co",
        "stand alone between slashes",
    ),
    "publishing on a pattern": Mistake(
        "floor/1/co: {min", "floor/#: {min", "publishers.sensor-1.publishes.floor/#", "without + and #"
    ),
    # The network.
    "switch fed by itself": Mistake(
        "core: {inbound_rate_per_second: 1e6}",
        "core: {fed_by: radio}",
        "switches.core.fed_by",
        "nearer to the brokers",
        "a port of core itself",
    ),
    "loop of switches": Mistake(
        "core: {inbound_rate_per_second: 1e6}",
        "core: {fed_by: desk}",
        "switches.core.fed_by",
        "nearer to the brokers",
        "core is fed by floor-1 is fed by core",
    ),
    "two switches on one port": Mistake(
        "  floor-1: {fed_by: trunk-1}",
        "  floor-1: {fed_by: trunk-1}\n  floor-2: {fed_by: trunk-1}",
        "switches.floor-2.fed_by",
        "a port of its own",
        "feeds floor-1 already",
        at="floor-2:",
    ),
    "subscriber on a trunk": Mistake(
        "port: desk",
        "port: trunk-1",
        "subscribers.clerk.port",
        "on a port of its own",
        "feeds the switch floor-1",
    ),
    "fewer queues than classes": Mistake(
        "queues: 9", "queues: 4", "ports.radio.queues", "planning: {priority_classes: 4}", "fewer than the 9"
    ),
    "link to nowhere": Mistake(
        "between: [hall, annex]", "between: [hall, annexe]", "broker_links.1.between", "did you mean annex?"
    ),
    "link to itself": Mistake(
        "between: [hall, annex]", "between: [hall, hall]", "broker_links.1", "two different"
    ),
    "link with one end": Mistake(
        "between: [hall, annex]", "between: [hall]", "broker_links.1.between", "BROKER"
    ),
    "link without ends": Mistake(
        "between: [hall, annex], ", "", "broker_links.1", "add between", at="- {bandwidth"
    ),
    "link twice": Mistake(
        "bandwidth_bps: 1e9}",
        "bandwidth_bps: 1e9}\n  - {from: annex, to: hall}",
        "broker_links.2",
        "remove one of the two links",
        "joins annex to hall again",
        at="- {from: annex",
    ),
    "no path between brokers": Mistake(
        "between: [hall, annex]",
        "from: annex, to: hall",
        WANTED_SMOKE,
        "add a broker link that leads to annex",
        "no broker with a publisher of floor/1/smoke has a path",
        at="smoke: log:10",
    ),
}
SEVERAL = {"publishing on a pattern", "no path between brokers"}
"""Mistakes that leave more than one subscription without its events."""


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(ScenarioError) as raised:
        loads(text, file="fire.yaml")
    return list(raised.value.problems)


def only_problem(text: str) -> Problem:
    (problem,) = problems_of(text)
    return problem


def test_the_file_that_the_mistakes_are_made_in_is_right() -> None:
    assert len(loads(VALID).subscriptions) == 3


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_once_with_its_line_its_field_and_its_fix(name: str) -> None:
    mistake = MISTAKES[name]
    problems = problems_of(mistake.text())
    assert len(problems) == 1 or name in SEVERAL
    problem = problems[0]
    assert problem.file == "fire.yaml"
    assert problem.field == mistake.field
    assert problem.line == mistake.line()
    assert mistake.fix in problem.fix
    assert mistake.what in problem.what


def test_a_listed_topic_that_nobody_publishes_cannot_be_subscribed_to() -> None:
    text = VALID.replace("topics:", "topics:\n  floor/1/heat:").replace("smoke: log:10", "heat: log:10")
    problem = only_problem(text)
    assert (problem.line, problem.field) == (36, "subscribers.commander.subscribes.floor/1/heat")
    assert problem.what == "nobody publishes it"


@pytest.mark.parametrize("section", ["brokers", "switches", "ports", "publishers", "subscribers"])
def test_a_missing_section_is_named_without_complaints_about_what_refers_to_it(section: str) -> None:
    lines = VALID.split("\n")
    start = lines.index(f"{section}:")
    end = next((row for row in range(start + 1, len(lines)) if not lines[row].startswith(" ")), len(lines))
    problems = problems_of("\n".join(lines[:start] + lines[end:]))
    assert [problem.field for problem in problems] == [section]
    assert problems[0].what == "is missing"
    assert f"add a section {section}:" in problems[0].fix


@pytest.mark.parametrize("section", ["brokers", "switches", "ports", "publishers", "subscribers"])
def test_a_misspelled_section_is_one_problem(section: str) -> None:
    problem = only_problem(VALID.replace(f"\n{section}:", f"\n{section}s:"))
    assert problem.field == f"{section}s"
    assert problem.fix == f"did you mean {section}?"


def test_an_empty_section_is_named() -> None:
    problem = only_problem(
        "brokers:\nswitches: {a: }\nports: {p: {switch: a, bandwidth_bps: 1}}\n"
        "publishers: {x: }\nsubscribers: {y: {port: p}}\n"
    )
    assert (problem.line, problem.field, problem.what) == (1, "brokers", "is empty")


def test_ten_mistakes_in_one_file_are_reported_at_once_in_the_order_of_their_lines() -> None:
    names = [
        "overhead as large as a packet",
        "rho tolerance of one",
        "unknown feeding port",
        "zero bandwidth",
        "half a queue",
        "delay as 10m",
        "error rate of one",
        "no rate",
        "unknown process",
        "negative weight",
        "utility without a weight",
        "pattern that matches nothing",
        "unknown port",
        "freshness of zero",
    ]
    text = VALID
    for name in names:
        text = text.replace(MISTAKES[name].old, MISTAKES[name].new)
    problems = problems_of(text)
    assert [problem.field for problem in problems] == [MISTAKES[name].field for name in names]
    lines = [problem.line or 0 for problem in problems]
    assert lines == sorted(lines)


def test_the_text_of_an_error_is_one_line_per_problem() -> None:
    text = VALID.replace("320000", "8 MB").replace("port: desk", "port: desc")
    with pytest.raises(ScenarioError) as raised:
        loads(text, file="fire.yaml")
    assert str(raised.value).split("\n") == [
        "fire.yaml:16: ports.radio.bandwidth_bps: '8 MB' has no clear unit; write 8 Mbit/s or 8 MB/s",
        "fire.yaml:39: subscribers.clerk.port: there is no port 'desc'; did you mean desk?",
    ]


def test_a_problem_is_one_line_whatever_the_names_are() -> None:
    problem = only_problem(VALID.replace("ports:", 'ports:\n  "de\\nsk": {switch: core, bandwidth_bps: 0}'))
    assert problem.field == r"ports.de\nsk.bandwidth_bps"
