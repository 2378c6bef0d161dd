"""`triage pipeline scenario`: a scenario that looks like what was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from triagemq.cli.main import run
from triagemq.cli.pipeline import app
from triagemq.errors import PipelineError
from triagemq.pipeline import Mapping, Tables, estimate_scenario, run_pipeline
from triagemq.pipeline.streaming.windows import _variability
from triagemq.scenario import (
    ArrivalProcess,
    Scenario,
    SizeDistribution,
    dumps,
    load,
    load_with_conditions,
    loads,
)
from triagemq.scenario.estimated import _arrivals, _size_distribution, _size_sample
from triagemq.theory import chance_of_variability, on_off_ca2, pareto_ca2
from triagemq.trace import Trace, TraceWriter

DATA = Path(__file__).parent / "data"


def test_the_network_is_the_trace_own_and_the_publications_are_the_measured_ones(
    tables: Tables, trace: Path, tmp_path: Path
) -> None:
    out = tables.place
    done = CliRunner().invoke(
        app, ["scenario", out, "-o", str(tmp_path / "s.yaml"), "--json"], catch_exceptions=False
    )
    assert done.exit_code == 0
    estimated, original = load(tmp_path / "s.yaml"), loads(Trace.open(trace).scenario_text)
    assert estimated.ports.name == original.ports.name
    assert estimated.topics.name == original.topics.name
    np.testing.assert_array_equal(
        estimated.subscriptions.utility_weight, original.subscriptions.utility_weight
    )
    profile = {(row["publisher_id"], row["topic_id"]): row for row in tables.records("publication_profile")}
    rows = estimated.publications
    for number in range(len(rows)):
        row = profile[int(rows.publisher[number]), int(rows.topic[number])]
        assert rows.rate_per_second[number] == pytest.approx(row["rate_per_second"])
        assert rows.size_bytes[number] == pytest.approx(row["mean_size_bytes"])


def test_publishers_and_topics_beyond_the_scenario_have_their_own_names() -> None:
    text = """
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 400000}}
publishers:
  a: {publishes: {smoke: {rate_per_second: 20, size_bytes: 60}, heat: {rate_per_second: 10, size_bytes: 200}}}
  b: {publishes: {heat: {rate_per_second: 10, size_bytes: 200}, door: {rate_per_second: 5, size_bytes: 40}}}
  c: {publishes: {door: {rate_per_second: 5, size_bytes: 40}}}
subscribers: {commander: {port: radio, subscribes: {smoke: log:10, heat: linear:2, door: log:1}}}
"""
    seen = {
        # Nobody says who published, but only one has this topic; two have the next.
        (None, "smoke"): 100,
        (None, "heat"): 200,
        ("b", "door"): 300,
        ("drone", "door"): 400,
        ("drone", "view"): 500,
    }

    class Measured:
        manifest = SimpleNamespace(runs={"one": None}, kind="run")
        rows: ClassVar = {"scenarios": 1, "publication_profile": len(seen)}

        def records(self, table: str, **_: Any) -> list[dict[str, Any]]:
            if table == "run_summary":
                return [{"measured_from_ns": 0}]
            return [
                measured(
                    publisher_id=None if publisher is None else 7,
                    publisher=publisher,
                    topic_id=9,
                    topic=topic,
                    publications=count,
                    observed_seconds=10.0,
                    rate_per_second=count / 10.0,
                    mean_size_bytes=50.0,
                    sizes=[],
                )
                for (publisher, topic), count in seen.items()
            ]

        def scenario(self, _: str) -> Scenario:
            return loads(text)

    found_out = estimate_scenario(cast("Tables", Measured()))
    assert found_out.guessed == (("a", "smoke"),)
    estimated = loads(dumps(found_out.scenario))
    rows = estimated.publications
    found = {
        (estimated.publishers.name[publisher], estimated.topics.name[topic]): rate
        for publisher, topic, rate in zip(rows.publisher, rows.topic, rows.rate_per_second, strict=True)
    }
    assert found == pytest.approx(
        {
            ("a", "smoke"): 10.0,
            ("unknown", "heat"): 20.0,
            ("b", "door"): 30.0,
            ("drone", "door"): 40.0,
            ("drone", "view"): 50.0,
            # Silent for all the ten seconds.
            ("c", "door"): 0.1,
        }
    )


def measured(**values: Any) -> dict[str, Any]:
    usual = {"publications": 50_000, "observed_seconds": 5_000.0, "rate_per_second": 10.0, "ca2": 1.0}
    nothing = {"regular_share": 0.1, "outages": 0, "longest_outages": [], "first_ns": 0, "last_ns": 10**10}
    return usual | nothing | {"size_scv": 1.0} | values


@pytest.mark.parametrize("ca2", [0.2, 0.6, 1.3, 4.0, 30.0])
def test_an_arrival_process_has_the_measured_variability(ca2: float) -> None:
    process, shape, seconds = _arrivals(measured(ca2=ca2), 5)
    if process == ArrivalProcess.PARETO:
        assert float(pareto_ca2(shape)) == pytest.approx(ca2)
    else:
        assert process == ArrivalProcess.ON_OFF
        assert float(on_off_ca2(10.0, seconds, seconds)) == pytest.approx(ca2)


def test_regular_and_random_arrivals_are_called_by_their_names() -> None:
    def process(**values: Any) -> ArrivalProcess:
        return _arrivals(measured(**values), 5)[0]

    assert process(ca2=0.001) == ArrivalProcess.PERIODIC
    assert process(ca2=0.4, regular_share=0.97) == ArrivalProcess.PERIODIC
    assert process(ca2=1.08) == ArrivalProcess.POISSON
    assert process(ca2=1.25, publications=100) == ArrivalProcess.POISSON
    assert process(ca2=None, publications=2) == ArrivalProcess.POISSON
    # Eight readings of a clock are enough, three say nothing.
    assert process(ca2=0.0001, regular_share=1.0, publications=8) == ArrivalProcess.PERIODIC
    assert process(ca2=0.0001, regular_share=1.0, publications=3) == ArrivalProcess.POISSON


def gap_variability(gaps: Any) -> Any:
    """Squared coefficients of variation of rows of gaps."""
    return np.mean(gaps**2, axis=1) / np.mean(gaps, axis=1) ** 2 - 1


@pytest.mark.parametrize("count", [5, 8, 20, 60, 150, 600])
def test_poisson_sources_are_hardly_ever_taken_for_others_however_few_their_events_are(count: int) -> None:
    random = np.random.default_rng(count)
    # In pieces, as a large array would be slow.
    found = np.concatenate(
        [gap_variability(random.standard_exponential((2_000, count))) for _ in range(1_000 // count + 20)]
    )
    low, high = np.quantile(found, [0.01, 0.99])
    some = np.concatenate([found[(found <= low) | (found >= high)], [found.min(), found.max()]])
    chances = np.array([chance_of_variability(float(each), count) for each in some])
    # Not more than is said, but for what chance may do in so many trials (four deviations).
    for level in (0.01, 0.001, 0.0001):
        alarms, expected = np.sum(chances[:-2] <= level), level * len(found)
        assert alarms <= 1.5 * expected + 4 * np.sqrt(1.5 * expected), level
    # And not much less, or nothing would ever be found.
    assert np.sum(chances[:-2] <= 0.01) >= 0.3 * 0.01 * len(found)


def told_by_a_stream(topics: Sequence[Sequence[Any]]) -> list[ArrivalProcess]:
    """What each topic is taken for, by the times of its events in windows of 10 s."""
    rows = [
        (topic, f"topic-{topic}", len(times), float(gap_variability(np.diff(np.sort(times))[None])[0]))
        for topic, windows in enumerate(topics)
        for times in windows
        if len(times) >= 3
    ]
    columns = zip(*rows, strict=True)
    table = pa.table(dict(zip(("topic_id", "topic", "publications", "ca2"), columns, strict=True)))
    found = _variability(table)
    return [_arrivals(measured(**found[key], regular_share=None), 5)[0] for key in sorted(found)]


@pytest.mark.parametrize("rate", [0.4, 4.0, 30.0])
def test_a_stream_of_poisson_topics_is_hardly_ever_taken_for_another(rate: float) -> None:
    """30 s of a thousand topics. One in 5,000 is allowed, and four deviations; it was a tenth and more."""
    random = np.random.default_rng(6)
    topics = [[random.uniform(0, 10, count) for count in random.poisson(rate * 10, 3)] for _ in range(1_000)]
    others = [each for each in told_by_a_stream(topics) if each != ArrivalProcess.POISSON]
    assert len(others) <= 0.2 + 4 * np.sqrt(0.2)


def test_a_stream_tells_bursts_from_a_machine_that_stood_still_once() -> None:
    random = np.random.default_rng(7)
    # In one of four windows everything of 1.5 s comes at its end.
    steady = [random.uniform(0, 10, 300) for _ in range(4)]
    stood_still = [*steady[:3], np.where((steady[3] > 4) & (steady[3] < 5.5), 5.5, steady[3])]
    bursts = [each[each % 2 < 0.5] for each in steady]
    found = told_by_a_stream([steady, stood_still, bursts])
    assert found == [ArrivalProcess.POISSON, ArrivalProcess.POISSON, ArrivalProcess.ON_OFF]


@pytest.mark.parametrize("seed", range(20))
def test_a_bursty_source_is_found_among_others_in_half_a_minute(seed: int) -> None:
    """One second on, four off, at 50 a second while on: 300 events."""
    random = np.random.default_rng(seed)
    bursts = [start + random.uniform(0, 1, random.poisson(50)) for start in range(0, 30, 5)]
    gaps = np.diff(np.sort(np.concatenate(bursts)))
    row = measured(ca2=float(gap_variability(gaps[None])[0]), publications=len(gaps) + 1)
    assert _arrivals(row, 250)[0] == ArrivalProcess.ON_OFF


def test_sizes_are_constant_exponential_or_those_seen() -> None:
    assert _size_distribution(measured(size_scv=1e-8)) == SizeDistribution.CONSTANT
    assert _size_distribution(measured(size_scv=0.95)) == SizeDistribution.EXPONENTIAL
    assert _size_distribution(measured(size_scv=0.3)) == SizeDistribution.EMPIRICAL
    random = np.random.default_rng(1)
    bins = [{"size_bytes": float(size), "count": int(random.integers(1, 99))} for size in range(10, 700, 7)]
    values, weights = _size_sample(bins)
    assert len(values) <= 32
    mean = sum(each["size_bytes"] * each["count"] for each in bins) / sum(each["count"] for each in bins)
    assert np.average(values, weights=weights) == pytest.approx(mean)


def test_a_log_becomes_one_port_with_one_subscriber_to_everything(spark: object, tmp_path: Path) -> None:
    mapping = Mapping.model_validate(
        {
            "time": {"column": "date"},
            "topic": "office/{column}",
            "values": ["CO2", "Light"],
            "publisher": "office",
        }
    )
    run_pipeline([DATA / "occupancy.txt"], tmp_path / "out", mapping=mapping)
    with pytest.raises(PipelineError, match="--bandwidth-bps"):
        estimate_scenario(Tables(tmp_path / "out"))
    estimated = estimate_scenario(Tables(tmp_path / "out"), bandwidth_bps=32_000).scenario
    assert estimated.topics.name == ("office/CO2", "office/Light")
    assert estimated.publishers.name == ("office",)
    assert set(estimated.publications.arrival_process.tolist()) == {int(ArrivalProcess.PERIODIC)}
    np.testing.assert_allclose(estimated.publications.rate_per_second, 1 / 60, rtol=0.01)
    assert len(estimated.subscriptions) == 2


SECONDS_2026 = 1_767_225_600
UNSET = [0, 7]
"""What a clock says that was not set when the device started."""


def test_epoch_0_in_a_log_is_no_time(spark: object, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    # One device never set its clock, the other one began before it did.
    lines = [f"{second},idle" for second in UNSET] + [f"{second},pump" for second in UNSET]
    lines += [f"{SECONDS_2026 + 5 * number},pump" for number in range(1, 101)]
    log.write_text("\n".join(["time,device", *lines]) + "\n")
    mapping = Mapping.model_validate(
        {
            "time": {"column": "time", "unit": "s"},
            "topic": "{device}",
            "publisher": "{device}",
            "size_bytes": 40,
        }
    )
    done = run_pipeline([log], tmp_path / "out", mapping=mapping)
    assert done.reasons == {"clock not set": 4}
    bad = Tables(tmp_path / "out").records("quarantine")
    assert sorted(row["raw"] for row in bad) == sorted(lines[:4]), "kept as they were"
    estimated = estimate_scenario(Tables(tmp_path / "out"), bandwidth_bps=32_000).scenario
    assert estimated.topics.name == ("pump",)
    assert estimated.publications.rate_per_second[0] == pytest.approx(0.2, rel=0.02)


HOURS = 3600
OUTAGE = (2 * HOURS, 7 * HOURS)


def building(random: np.random.Generator) -> dict[tuple[str, str], Any]:
    """Times of events in seconds over half a day, by publisher and topic."""
    end = 12 * HOURS
    clock = np.arange(0.0, end, 5) + random.normal(0, 0.05, end // 5)
    there = (clock < OUTAGE[0]) | (clock >= OUTAGE[1])
    periods = random.exponential(30, 1600).cumsum()
    bursts = np.sort(random.uniform(0, end, 200_000))
    period = np.searchsorted(periods, bursts)
    return {
        # One reading in 500 is missed, and once there is none for five hours.
        ("hall", "hall/co2"): clock[there & (random.random(len(clock)) > 0.002)],
        ("roof", "roof/wind"): clock[there],
        ("roof", "roof/rain"): clock,
        ("door", "door/opened"): np.sort(random.uniform(0, end, 3000)),
        # Built in for the last hour.
        ("cam", "cam/motion"): np.sort(random.uniform(end - HOURS, end, 900)),
        ("crowd", "crowd/near"): bursts[period % 2 == 0][::20],
    }


@pytest.fixture(scope="module")
def half_a_day(spark: object, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    place = tmp_path_factory.mktemp("building")
    events = [(time, *names) for names, times in building(np.random.default_rng(4)).items() for time in times]
    lines = [f"{SECONDS_2026 + time:.6f},{who},{topic}" for time, who, topic in sorted(events)]
    (place / "log.csv").write_text("\n".join(["time,who,topic", *lines]) + "\n")
    mapping = {"time": {"column": "time", "unit": "s"}, "topic": "{topic}", "publisher": "{who}"}
    known = Mapping.model_validate({**mapping, "size_bytes": 40})
    done = run_pipeline([place / "log.csv"], place / "out", mapping=known)
    assert (done.rows_in, done.quarantined) == (len(events), 0)
    return Tables(place / "out")


def test_an_outage_of_five_hours_leaves_clockwork_clockwork_and_each_topic_has_its_own_span(
    half_a_day: Tables,
) -> None:
    scenario = estimate_scenario(half_a_day, bandwidth_bps=32_000).scenario
    rows = scenario.publications
    found = {
        scenario.topics.name[topic]: (ArrivalProcess(process), rate)
        for topic, process, rate in zip(rows.topic, rows.arrival_process, rows.rate_per_second, strict=True)
    }
    for topic in ("hall/co2", "roof/wind", "roof/rain"):
        assert found[topic] == (ArrivalProcess.PERIODIC, pytest.approx(0.2, rel=0.005))
    assert found["door/opened"] == (ArrivalProcess.POISSON, pytest.approx(3000 / (12 * HOURS), rel=0.01))
    assert found["cam/motion"] == (ArrivalProcess.POISSON, pytest.approx(900 / HOURS, rel=0.01))
    assert found["crowd/near"][0] == ArrivalProcess.ON_OFF
    assert found["crowd/near"][1] == pytest.approx(200_000 / 20 / 2 / (12 * HOURS), rel=0.15)


def test_rates_with_and_without_outages_differ_by_what_topic_summary_says(half_a_day: Tables) -> None:
    profile = {row["topic"]: row for row in half_a_day.records("publication_profile")}
    summary = half_a_day.records("topic_summary")
    assert sum(row["outages"] for row in summary) == 3
    for row in summary:
        own = profile[row["topic"]]
        assert (row["outages"], row["outage_seconds"]) == (
            own["outages"],
            pytest.approx(own["outage_seconds"]),
        )
        observed = row["publications"] / row["rate_per_second"]
        assert observed - row["outage_seconds"] == pytest.approx(own["observed_seconds"])


def test_outages_are_conditions_of_the_scenario(half_a_day: Tables, tmp_path: Path) -> None:
    arguments = ["scenario", half_a_day.place, "-o", str(tmp_path / "s.yaml"), "--bandwidth-bps", "32000"]
    said = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert {"outages: 3", "conditions: 5"} <= set(said.stdout.splitlines())
    timeline = [
        (round(condition.at_seconds / HOURS, 2), condition)
        for condition in load_with_conditions(tmp_path / "s.yaml")[1].timeline
    ]
    states = [(at, each.publisher, each.state) for at, each in timeline if each.state]
    assert sorted(states) == [(2.0, "hall", "fails"), (7.0, "hall", "returns"), (11.0, "cam", "returns")]
    # The roof sent rain all the time: it was not away, only its wind was.
    rates = [(at, each.topic, each) for at, each in timeline if each.topic]
    assert [(at, topic) for at, topic, _ in rates] == [(2.0, "roof/wind"), (7.0, "roof/wind")]
    assert rates[0][2].rate_per_second == pytest.approx(1 / (5 * HOURS), rel=0.01)
    assert rates[1][2].rate_factor == 1


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "pipeline.md"


@pytest.mark.slow
def test_a_strangers_log_of_250_files_becomes_a_checked_scenario_by_the_guide_alone(
    spark: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = GUIDE.read_text().partition("```yaml building.yaml\n")[2].partition("```")[0]
    (tmp_path / "building.yaml").write_text(mapping)
    random = np.random.default_rng(8)
    sensors = ("co2", "humidity", "light", "pir", "temperature")
    for room in range(400, 450):
        (tmp_path / "building" / str(room)).mkdir(parents=True)
        # Whole seconds, a reading missed now and then, and no power for five hours.
        clock = SECONDS_2026 + np.arange(0, 6 * HOURS, 40) + random.integers(0, 5)
        away = SECONDS_2026 + random.integers(HOURS // 4, HOURS // 2)
        clock = clock[(clock < away) | (clock >= away + 5 * HOURS)]
        for sensor in sensors:
            seen = clock[random.random(len(clock)) > 0.002] + (random.random() < 0.5)
            lines = [f"{time},{random.integers(1, 999)}" for time in (*seen, *([0] if room == 400 else []))]
            (tmp_path / "building" / str(room) / f"{sensor}.csv").write_text("\n".join(lines) + "\n")
    out, scenario = str(tmp_path / "out"), str(tmp_path / "building-413.yaml")
    place = str(tmp_path / "building")
    arguments = ["run", place, "--mapping", str(tmp_path / "building.yaml"), "--out", out, "--json"]
    assert run(["pipeline", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["reasons"] == {"clock not set": 5}
    assert run(["pipeline", "scenario", out, "-o", scenario, "--bandwidth-bps", "1e6"]) == 0
    assert run(["check", scenario]) == 0
    found, conditions = load_with_conditions(scenario)
    assert len(found.topics) == len(found.publications) == 250
    assert found.publishers.name[0] == "room-400"
    assert set(found.publications.arrival_process.tolist()) == {int(ArrivalProcess.PERIODIC)}
    np.testing.assert_allclose(found.publications.rate_per_second, 1 / 40, rtol=0.05)
    assert len(conditions.timeline) == 100
    assert all(condition.publisher and condition.state for condition in conditions.timeline)


SCENARIO = """
brokers: {b: }
switches: {s: }
ports: {p: {switch: s, bandwidth_bps: 32000}}
publishers: {pump: {publishes: {pressure: {rate_per_second: 1, size_bytes: 40}}}}
subscribers: {crew: {port: p, subscribes: {pressure: log:1}}}
"""


def test_epoch_0_in_a_trace_is_no_time(spark: object, tmp_path: Path) -> None:
    times = np.array([*UNSET, *(SECONDS_2026 + 5 * np.arange(1, 101))]) * 10**9
    count = len(times)
    with TraceWriter(tmp_path / "run", scenario_text=SCENARIO, plan_text=None, producer="test") as writer:
        publications = {
            "publication_id": np.arange(count),
            "topic_id": np.zeros(count, dtype=np.int64),
            "publisher_id": np.zeros(count, dtype=np.int64),
            "published_ns": times,
            "size_bytes": np.full(count, 40),
        }
        writer.publications(publications)
        writer.deliveries(
            {
                **{
                    name: publications[name]
                    for name in ("publication_id", "topic_id", "published_ns", "size_bytes")
                },
                **{
                    name: np.zeros(count, dtype=np.int64)
                    for name in ("subscription_id", "subscriber_id", "flow_id", "priority_class", "outcome")
                },
                **{
                    name: np.maximum(times, SECONDS_2026 * 10**9) + 10**6
                    for name in ("enqueued_ns", "dequeued_ns", "delivered_ns")
                },
            }
        )
        writer.finish(measured_from_ns=0)
    done = run_pipeline([tmp_path / "run"], tmp_path / "out")
    assert done.reasons == {"clock not set": 2 * len(UNSET)}
    tables = Tables(tmp_path / "out")
    estimated = estimate_scenario(tables).scenario
    assert estimated.publications.rate_per_second[0] == pytest.approx(0.2, rel=0.02)
    assert tables.records("class_performance")[0]["mean_latency_seconds"] == pytest.approx(0.001)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_table_2_with_ten_million_publications_is_recovered(tmp_path: Path) -> None:
    """Rate and mean size of every topic within 2 %, ca2 within 5 %, from the trace alone."""
    from triagemq.forecast import forecast, summary
    from triagemq.lab.generators import table2
    from triagemq.plan import make_plan
    from triagemq.scenario import dumps
    from triagemq.trace import TraceWriter

    original = table2(seed=1)
    publications = original.publications
    random = np.random.default_rng(7)
    total = publications.rate_per_second.sum()
    count = 10_000_000
    with TraceWriter(
        tmp_path / "run", scenario_text=dumps(original), plan_text=None, producer="test"
    ) as writer:
        now = 0.0
        for first in range(0, count, 500_000):
            times = now + np.cumsum(random.exponential(1 / total, 500_000))
            now = times[-1]
            which = random.choice(len(publications), 500_000, p=publications.rate_per_second / total)
            writer.publications(
                {
                    "publication_id": np.arange(first, first + 500_000),
                    "topic_id": publications.topic[which],
                    "publisher_id": publications.publisher[which],
                    "published_ns": (times * 1e9).astype(np.int64),
                    "size_bytes": np.rint(random.exponential(publications.size_bytes[which])).astype(
                        np.int64
                    ),
                }
            )
        writer.finish(measured_from_ns=0)
    run_pipeline([tmp_path / "run"], tmp_path / "out")
    found = estimate_scenario(Tables(tmp_path / "out")).scenario.publications

    def by_topic(rows: Any, values: Any) -> Any:
        return np.bincount(rows.topic, values, minlength=len(original.topics))

    rate, true_rate = (by_topic(rows, rows.rate_per_second) for rows in (found, publications))
    load, true_load = (
        by_topic(rows, rows.rate_per_second * rows.size_bytes) for rows in (found, publications)
    )
    # Some topics have no publisher. The rarest of the others has 8,000 events: chance alone is 1.1 % (one deviation).
    published = true_rate > 0
    np.testing.assert_allclose(rate[published], true_rate[published], rtol=0.02)
    size, true_size = load[published] / rate[published], true_load[published] / true_rate[published]
    np.testing.assert_allclose(size, true_size, rtol=0.02)
    # Every publication is found to be Poisson, so its ca2 is exactly the true one.
    assert (found.arrival_process == ArrivalProcess.POISSON).all()
    estimated = estimate_scenario(Tables(tmp_path / "out")).scenario
    results = []
    for each in (original, estimated):
        plan = make_plan(each, priorities="cluster", drops="exponential")
        results.append(summary(each, plan, forecast(each, plan, formulas=True)))
    assert results[1]["utility"]["rate"] == pytest.approx(results[0]["utility"]["rate"], rel=0.03)
    for one, other in zip(results[0]["classes"], results[1]["classes"], strict=True):
        assert other["success_rate"] == pytest.approx(one["success_rate"], rel=0.03)
        assert other["mean_latency_seconds"] == pytest.approx(one["mean_latency_seconds"], rel=0.03)
