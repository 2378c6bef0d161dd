"""Every error is reported with its line, its field and what to write instead; and all of a kind at once."""

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
class Case:
    """`VALID` with `old` replaced by `new`, the field that is then reported, and what its fix names.

    The line is that of `at`, and of the first line of `new` where that is not given.
    """

    old: str
    new: str
    field: str
    names: str = ""
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

CASES = {
    "bandwidth as a time": Case("bandwidth_bps: 320000", "bandwidth_bps: 8 ms", "ports.radio.bandwidth_bps"),
    "bandwidth in bytes of what": Case(
        "bandwidth_bps: 320000", "bandwidth_bps: 8 MB", "ports.radio.bandwidth_bps"
    ),
    "bandwidth with underscores": Case(
        "bandwidth_bps: 320000", "bandwidth_bps: 320_000", "ports.radio.bandwidth_bps"
    ),
    "delay as 10m": Case(
        "propagation_seconds: 0.001", "propagation_seconds: 10m", "ports.desk.propagation_seconds"
    ),
    "size as 1 KB": Case("size_bytes: 40", "size_bytes: 1 KB", f"{CO}.size_bytes"),
    "size with a unit below zero": Case("size_bytes: 40", "size_bytes: -2 kB", f"{CO}.size_bytes", "0"),
    "separation as a rate": Case(
        "min_separation_seconds: 0.5", "min_separation_seconds: 2/s", f"{CO}.min_separation_seconds"
    ),
    "rate in the wrong case": Case("rate_per_second: 2}", "rate_per_second: 2 hz}", f"{SMOKE}.rate_per_second"),
    "error rate above 100%": Case("error_rate: 0.01", "error_rate: 101%", "publishers.sensor-1.error_rate", "1"),
    "weight with a unit": Case("weight: 3,", "weight: 3 s,", f"{WANTED_VIDEO}.utility.weight"),
    "threshold of a short form with a unit": Case("smoke: log:10", "smoke: step:3@80 ms", WANTED_SMOKE),
    "bandwidth_mbps": Case(
        "radio: {switch: core, bandwidth_bps: 320000,",
        "radio: {switch: core, bandwidth_mbps: 8,",
        "ports.radio.bandwidth_mbps", "bandwidth_bps"
    ),
    "propagation_ms": Case(
        "propagation_seconds: 0.001", "propagation_ms: 10", "ports.desk.propagation_ms", "propagation_seconds"
    ),
    "rate_hz": Case("smoke: {rate_per_second: 2}", "smoke: {rate_hz: 2}", f"{SMOKE}.rate_hz", "rate_per_second"),
    "misspelled key": Case(
        "bandwidth_bps: 320000", "bandwith_bps: 320000", "ports.radio.bandwith_bps", "bandwidth_bps"
    ),
    "unknown key": Case("queues: 9", "colour: red", "ports.radio.colour"),
    "misspelled section": Case(
        "unmanaged_switches:", "unmanaged_switchs:", "unmanaged_switchs", "unmanaged_switches"
    ),
    "key twice": Case(
        "  trunk-1: {switch",
        "  desk: {switch: core, bandwidth_bps: 5}\n  trunk-1: {switch",
        "ports.desk", "", "desk: {switch: floor-1"
    ),
    "key twice in one entry": Case("queues: 9", "queues: 9, queues: 9", "ports.radio.queues"),
    "missing key": Case(
        "{switch: core, bandwidth_bps: 320000, buffer",
        "{switch: core, buffer",
        "ports.radio.bandwidth_bps", "bandwidth_bps"
    ),
    "entry that is no mapping": Case(
        "radio: {switch: core, bandwidth_bps: 320000, buffer_packets: 2000, queues: 9}",
        "radio: 320000",
        "ports.radio"
    ),
    "foreign tag": Case("desk: {switch", "desk: !port {switch", "ports.desk"),
    "zero bandwidth": Case("bandwidth_bps: 320000", "bandwidth_bps: 0", "ports.radio.bandwidth_bps", "0"),
    "negative bandwidth": Case("bandwidth_bps: 320000", "bandwidth_bps: -8e6", "ports.radio.bandwidth_bps", "0"),
    "NaN": Case("bandwidth_bps: 320000", "bandwidth_bps: .nan", "ports.radio.bandwidth_bps"),
    "nan as a word": Case("bandwidth_bps: 320000", "bandwidth_bps: nan", "ports.radio.bandwidth_bps"),
    "infinite buffer": Case("buffer_packets: 2000", "buffer_packets: .inf", "ports.radio.buffer_packets"),
    "overflow": Case("bandwidth_bps: 320000", "bandwidth_bps: 1e999", "ports.radio.bandwidth_bps"),
    "half a packet": Case("buffer_packets: 2000", "buffer_packets: 2.5", "ports.radio.buffer_packets"),
    "half a queue": Case("queues: 9", "queues: 9.5", "ports.radio.queues"),
    "truth as a number": Case("bandwidth_bps: 320000", "bandwidth_bps: true", "ports.radio.bandwidth_bps"),
    "zero rate": Case("rate_per_second: 2}", "rate_per_second: 0}", f"{SMOKE}.rate_per_second", "0"),
    "negative size": Case("size_bytes: 40", "size_bytes: -40", f"{CO}.size_bytes", "0"),
    "error rate of one": Case("error_rate: 0.01", "error_rate: 1", "publishers.sensor-1.error_rate", "1"),
    "negative error rate": Case("error_rate: 0.01", "error_rate: -0.1", "publishers.sensor-1.error_rate", "0"),
    "priority classes of zero": Case("priority_classes: 9", "priority_classes: 0", "planning.priority_classes", "1"),
    "rho tolerance of one": Case("rho_tolerance: 0.1", "rho_tolerance: 1.0", "planning.rho_tolerance", "1"),
    "event larger than a packet": Case("size_bytes: 40", "size_bytes: 1452", f"{CO}.size_bytes", "1451"),
    "largest sample larger than a packet": Case(
        "values: [900, 1100]", "values: [900, 1500]", f"{VIDEO}.size_bytes"
    ),
    "overhead as large as a packet": Case("overhead_bytes: 49", "overhead_bytes: 1500", "overhead_bytes", "1500"),
    "no such order of sending": Case("overhead_bytes: 49", "sending_order: by_size", "sending_order"),
    "fragmentation without an MTU": Case("mtu_bytes: 1500", "fragmentation: true", "fragmentation", "mtu_bytes"),
    "no size": Case("size_bytes: 40, ", "", f"{CO}.size_bytes", "size_bytes", "floor/1/co:"),
    "size beside samples": Case("sizes: {values", "size_bytes: 7, sizes: {values", f"{VIDEO}.size_bytes"),
    "weights for other values": Case("weights: [1, 3]", "weights: [1]", f"{VIDEO}.sizes.weights"),
    "negative weight": Case("weights: [1, 3]", "weights: [1, -3]", f"{VIDEO}.sizes.weights.2", "0"),
    "weights of nothing": Case("weights: [1, 3]", "weights: [0, 0]", f"{VIDEO}.sizes"),
    "weights beyond all numbers": Case("weights: [1, 3]", "weights: [1e308, 1e308]", f"{VIDEO}.sizes"),
    "separation beyond all numbers": Case(
        "min_separation_seconds: 0.5", "min_separation_seconds: 1e-310", f"{CO}.min_separation_seconds", "1e-9"
    ),
    "unknown distribution": Case(
        "sizes: {values: [900, 1100], weights: [1, 3]}", "size_bytes: 9, sizes: constnt", f"{VIDEO}.sizes", "constant"
    ),
    "unknown process": Case("arrivals: periodic", "arrivals: poison", f"{CO}.arrivals", "poisson"),
    "pareto without mean": Case(
        "arrivals: periodic", "arrivals: {process: pareto, shape: 1}", f"{CO}.arrivals.shape", "1"
    ),
    "pareto without shape": Case("arrivals: periodic", "arrivals: pareto", f"{CO}.arrivals"),
    "never on": Case(
        "arrivals: periodic",
        "arrivals: {process: on_off, on_seconds: 0, off_seconds: 8}",
        f"{CO}.arrivals.on_seconds", "0"
    ),
    "shape of a poisson process": Case(
        "arrivals: periodic", "arrivals: {process: poisson, shape: 2}", f"{CO}.arrivals.shape"
    ),
    "rate against separation": Case(
        "co: {min_separation_seconds: 0.5",
        "co: {rate_per_second: 3, min_separation_seconds: 0.5",
        f"{CO}.rate_per_second", "2"
    ),
    "separations the wrong way round": Case(
        "co: {min_separation_seconds: 0.5",
        "co: {max_separation_seconds: 0.1, min_separation_seconds: 0.5",
        f"{CO}.max_separation_seconds", "0.5"
    ),
    "no rate": Case("smoke: {rate_per_second: 2}", "smoke: {}", f"{SMOKE}.rate_per_second", "rate_per_second"),
    "utility as a number": Case("smoke: log:10", "smoke: 10", WANTED_SMOKE),
    "utility without a weight": Case("smoke: log:10", "smoke: log", WANTED_SMOKE),
    "unknown shape": Case("smoke: log:10", "smoke: lin:10", WANTED_SMOKE, "linear"),
    "negative weight of a utility": Case("smoke: log:10", "smoke: log:-1", WANTED_SMOKE, "0"),
    "threshold above one": Case("threshold: 0.8", "threshold: 1.5", f"{WANTED_VIDEO}.utility.threshold", "1"),
    "threshold of zero": Case("smoke: log:10", "smoke: step:3@0", WANTED_SMOKE, "0"),
    "step without a threshold": Case("smoke: log:10", "smoke: step:3", WANTED_SMOKE),
    "freshness of zero": Case(
        "freshness_seconds: 2", "freshness_seconds: 0", f"{WANTED_VIDEO}.utility.freshness_seconds", "0"
    ),
    "latency of zero": Case(
        "max_latency_seconds: 0.05", "max_latency_seconds: 0", f"{WANTED_CO}.max_latency_seconds", "0"
    ),
    "worth nothing and no promise": Case(
        "floor/+/co: {utility: linear:2, max_latency_seconds: 0.05}",
        "floor/+/co: {max_separation_seconds: 1}",
        f"{WANTED_CO}.utility", "utility"
    ),
    "unknown switch": Case("desk: {switch: floor-1", "desk: {switch: flor-1", "ports.desk.switch", "floor-1"),
    "unknown unmanaged switch": Case(
        "switch: sensor-net", "switch: sensornet", "publishers.sensor-1.switch", "sensor-net"
    ),
    "unknown port": Case("port: desk", "port: desc", "subscribers.clerk.port", "desk"),
    "unknown broker": Case("    broker: annex", "    broker: cellar", "subscribers.commander.broker", "it"),
    "no broker among two": Case("    broker: annex\n", "", "subscribers.commander.broker", "", "commander:"),
    "no port": Case("    port: desk\n", "", "subscribers.clerk.port", "port", "clerk:"),
    "unknown feeding port": Case("fed_by: trunk-1", "fed_by: trunk-2", "switches.floor-1.fed_by", "trunk-1"),
    "unknown topic": Case(
        "floor/1/smoke: log:10",
        "floor/1/smok: log:10",
        "subscribers.commander.subscribes.floor/1/smok", "floor/1/smoke"
    ),
    "pattern that matches nothing": Case(
        "floor/+/co:", "roof/+/co:", "subscribers.commander.subscribes.roof/+/co"
    ),
    "patterns that overlap": Case(
        "      floor/1/smoke: log:10", "      floor/1/+: log:10", WANTED_CO, "", "floor/+/co:"
    ),
    "pattern that is none": Case("floor/+/co:", "floor/1+/co:", "subscribers.commander.subscribes.floor/1+/co"),
    "publishing on a pattern": Case("floor/1/co: {min", "floor/#: {min", "publishers.sensor-1.publishes.floor/#"),
    "switch fed by itself": Case(
        "core: {inbound_rate_per_second: 1e6}", "core: {fed_by: radio}", "switches.core.fed_by"
    ),
    "loop of switches": Case(
        "core: {inbound_rate_per_second: 1e6}", "core: {fed_by: desk}", "switches.core.fed_by"
    ),
    "two switches on one port": Case(
        "  floor-1: {fed_by: trunk-1}",
        "  floor-1: {fed_by: trunk-1}\n  floor-2: {fed_by: trunk-1}",
        "switches.floor-2.fed_by", "", "floor-2:"
    ),
    "subscriber on a trunk": Case("port: desk", "port: trunk-1", "subscribers.clerk.port"),
    "fewer queues than classes": Case("queues: 9", "queues: 4", "ports.radio.queues", "{priority_classes: 4}"),
    "link to nowhere": Case("between: [hall, annex]", "between: [hall, annexe]", "broker_links.1.between", "annex"),
    "link to itself": Case("between: [hall, annex]", "between: [hall, hall]", "broker_links.1"),
    "link with one end": Case("between: [hall, annex]", "between: [hall]", "broker_links.1.between"),
    "link without ends": Case("between: [hall, annex], ", "", "broker_links.1", "between", "- {bandwidth"),
    "link twice": Case(
        "bandwidth_bps: 1e9}",
        "bandwidth_bps: 1e9}\n  - {from: annex, to: hall}",
        "broker_links.2", "", "- {from: annex"
    ),
    "no path between brokers": Case(
        "between: [hall, annex]", "from: annex, to: hall", WANTED_SMOKE, "a", "smoke: log:10"
    ),
}  # fmt: skip
SEVERAL = {"publishing on a pattern", "no path between brokers"}
"""Cases that leave more than one subscription without its events."""


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(ScenarioError) as raised:
        loads(text, file="fire.yaml")
    return list(raised.value.problems)


def only_problem(text: str) -> Problem:
    (problem,) = problems_of(text)
    return problem


def test_the_file_that_the_errors_are_made_in_is_valid() -> None:
    assert len(loads(VALID).subscriptions) == 3


@pytest.mark.parametrize("name", CASES)
def test_an_error_is_reported_once_with_its_line_its_field_and_its_fix(name: str) -> None:
    case = CASES[name]
    problems = problems_of(case.text())
    assert len(problems) == 1 or name in SEVERAL
    problem = problems[0]
    assert (problem.file, problem.line, problem.field) == ("fire.yaml", case.line(), case.field)
    assert problem.what
    assert problem.fix
    assert case.names in problem.fix


def test_a_listed_topic_that_nobody_publishes_cannot_be_subscribed_to() -> None:
    text = VALID.replace("topics:", "topics:\n  floor/1/heat:").replace("smoke: log:10", "heat: log:10")
    problem = only_problem(text)
    assert (problem.line, problem.field) == (36, "subscribers.commander.subscribes.floor/1/heat")


@pytest.mark.parametrize("section", ["brokers", "switches", "ports", "publishers", "subscribers"])
def test_a_missing_section_is_named_without_errors_about_what_refers_to_it(section: str) -> None:
    lines = VALID.split("\n")
    start = lines.index(f"{section}:")
    end = next((row for row in range(start + 1, len(lines)) if not lines[row].startswith(" ")), len(lines))
    problems = problems_of("\n".join(lines[:start] + lines[end:]))
    assert [problem.field for problem in problems] == [section]
    assert f"{section}:" in problems[0].fix


@pytest.mark.parametrize("section", ["brokers", "switches", "ports", "publishers", "subscribers"])
def test_a_misspelled_section_is_one_problem(section: str) -> None:
    problem = only_problem(VALID.replace(f"\n{section}:", f"\n{section}s:"))
    assert problem.field == f"{section}s"
    assert section in problem.fix


def test_an_empty_section_is_named() -> None:
    problem = only_problem(
        "brokers:\nswitches: {a: }\nports: {p: {switch: a, bandwidth_bps: 1}}\n"
        "publishers: {x: }\nsubscribers: {y: {port: p}}\n"
    )
    assert (problem.line, problem.field) == (1, "brokers")


@pytest.mark.parametrize(
    "names",
    [
        # Of entries by themselves,
        [
            "rho tolerance of one",
            "zero bandwidth",
            "half a queue",
            "delay as 10m",
            "error rate of one",
            "unknown process",
            "negative weight",
            "utility without a weight",
        ],
        # of names and rows,
        [
            "unknown feeding port",
            "no rate",
            "pattern that matches nothing",
            "unknown port",
            "freshness of zero",
        ],
        # and of what these lead to.
        ["event larger than a packet", "no path between brokers"],
    ],
)
def test_many_errors_in_one_file_are_reported_at_once_in_the_order_of_their_lines(names: list[str]) -> None:
    text = VALID
    for name in names:
        text = text.replace(CASES[name].old, CASES[name].new)
    problems = problems_of(text)
    fields = [problem.field for problem in problems]
    assert [field for field in fields if field in {CASES[name].field for name in names}] == [
        CASES[name].field for name in names
    ]
    assert len(problems) == len(names) or SEVERAL.intersection(names)
    lines = [problem.line or 0 for problem in problems]
    assert lines == sorted(lines)


def test_the_text_of_an_error_is_one_line_per_problem() -> None:
    text = VALID.replace("320000", "8 MB").replace("propagation_seconds: 0.001", "propagation_seconds: 10m")
    with pytest.raises(ScenarioError) as raised:
        loads(text, file="fire.yaml")
    first, second = str(raised.value).split("\n")
    assert first.startswith("fire.yaml:16: ports.radio.bandwidth_bps: ")
    assert second.startswith("fire.yaml:18: ports.desk.propagation_seconds: ")


def test_a_problem_is_one_line_whatever_the_names_are() -> None:
    problem = only_problem(VALID.replace("ports:", 'ports:\n  "de\\nsk": {switch: core, bandwidth_bps: 0}'))
    assert problem.field == r"ports.de\nsk.bandwidth_bps"
