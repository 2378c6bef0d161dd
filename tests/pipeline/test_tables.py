"""Every table against the same figures computed with pandas from the rows of the trace."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.pipeline.exact import frame_of

from triagemq.cli.simulate import simulate as simulate_command
from triagemq.forecast import figures_by_class, forecast, subscription_rows
from triagemq.pipeline import Tables, run_pipeline
from triagemq.pipeline.dimensions import dimensions
from triagemq.pipeline.inputs import TraceInput, find_inputs
from triagemq.pipeline.report import report_tables
from triagemq.plan.files import parse_plan
from triagemq.scenario import achieved_utility, loads, maximum_utility
from triagemq.trace import NOT_WANTED, Outcome, Trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEASURED_FROM_NS = 2_000_000_000
OUTCOMES = [outcome.name for outcome in Outcome]


def frame(tables: Tables, name: str) -> pd.DataFrame:
    return pd.DataFrame(tables.records(name))


def test_publications_keep_every_row_and_mark_warm_up(tables: Tables, trace: Path) -> None:
    rows = frame(tables, "publications").sort_values("publication_id").reset_index(drop=True)
    recorded = frame_of(trace, "publications")
    for column in ("publication_id", "topic_id", "publisher_id", "published_ns", "size_bytes"):
        assert rows[column].tolist() == recorded[column].tolist()
    assert rows["measured"].tolist() == (recorded["published_ns"] >= MEASURED_FROM_NS).tolist()
    assert set(rows["topic"]) == {"smoke", "heat", "door"}
    assert set(rows["publisher"]) == {"sensor-a", "sensor-b"}


def test_deliveries_keep_every_row_and_every_null(tables: Tables, trace: Path) -> None:
    order = ["publication_id", "subscription_id"]
    rows = tables.table("deliveries").to_pandas(integer_object_nulls=True).sort_values(order)
    recorded = Trace.open(trace).table("deliveries").to_pandas(integer_object_nulls=True).sort_values(order)
    for column in recorded.columns:
        assert rows[column].astype(str).tolist() == recorded[column].astype(str).tolist(), column


@pytest.mark.parametrize(
    ("name", "key"),
    [("class_performance", "priority_class"), ("subscription_performance", "subscription_id")],
)
def test_performance_counts_exactly_and_means_to_a_nanosecond(
    name: str,
    key: str,
    tables: Tables,
    measured_deliveries: pd.DataFrame,
    binned_percentile: Callable[[list[int], float], float],
) -> None:
    rows = frame(tables, name).set_index(key)
    assert sorted(rows.index) == sorted(measured_deliveries[key].unique())
    for value, copies in measured_deliveries.groupby(key):
        row = rows.loc[value]
        latencies = [int(latency) for latency in copies["latency_ns"].dropna()]
        assert row["count"] == len(copies)
        assert [row[outcome] for outcome in OUTCOMES] == [
            (copies["outcome"] == each).sum() for each in OUTCOMES
        ]
        wanted = ~copies["outcome"].isin([each.name for each in NOT_WANTED])
        assert row["success_rate"] == len(latencies) / wanted.sum()
        assert row["mean_latency_seconds"] == pytest.approx(sum(latencies) / len(latencies) * 1e-9, abs=1e-9)
        assert row["max"] == pytest.approx(max(latencies) * 1e-9, abs=1e-12)
        for percentile, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert row[percentile] == pytest.approx(binned_percentile(latencies, share), rel=1e-12)
            exact = sorted(latencies)[max(1, int(np.ceil(share * len(latencies)))) - 1] * 1e-9
            assert row[percentile] == pytest.approx(exact, rel=1 / 128)


def test_utility_is_that_of_the_scenario_module(tables: Tables, trace: Path) -> None:
    rows = frame(tables, "subscription_performance").sort_values("subscription_id")
    wanted = loads(Trace.open(trace).scenario_text).subscriptions
    expected = achieved_utility(
        wanted, rows["success_rate"].to_numpy(), rows["mean_latency_seconds"].to_numpy(dtype=float)
    )
    np.testing.assert_allclose(rows["utility"], expected, rtol=1e-12)
    np.testing.assert_allclose(rows["maximum_utility"], maximum_utility(wanted), rtol=1e-12)
    summary = tables.records("run_summary")[0]
    assert summary["utility_rate"] == pytest.approx(expected.sum() / maximum_utility(wanted).sum())


def test_topic_rates_in_short_windows(tables: Tables, measured_publications: pd.DataFrame) -> None:
    rows = frame(tables, "topic_rates").query("window_seconds < 1")
    events = measured_publications.assign(
        start=measured_publications["published_ns"] // 200_000_000 * 200_000_000
    )
    expected = events.groupby(["topic_id", "start"])["size_bytes"].agg(["count", "sum"])
    found = rows.set_index(["topic_id", "window_start_ns"]).sort_index()
    assert found["publications"].tolist() == expected["count"].tolist()
    assert found["bytes"].tolist() == expected["sum"].tolist()
    np.testing.assert_allclose(found["rate_per_second"], expected["count"] / 0.2)


def test_topic_rates_in_long_windows_know_burstiness(
    tables: Tables, measured_publications: pd.DataFrame
) -> None:
    rows = frame(tables, "topic_rates").query("window_seconds > 1").set_index(["topic_id", "window_start_ns"])
    events = measured_publications.assign(start=measured_publications["published_ns"] // 10**10 * 10**10)
    assert len(rows) == len(events.groupby(["topic_id", "start"]))
    for (topic, start), group in events.groupby(["topic_id", "start"]):
        row = rows.loc[(topic, start)]
        counts = np.bincount((group["published_ns"] - start) // 200_000_000, minlength=50)
        assert row["publications"] == len(group)
        assert row["index_of_dispersion"] == pytest.approx(counts.var(ddof=1) / counts.mean())
        gaps = np.diff(np.sort(group["published_ns"])) * 1e-9
        assert row["ca2"] == pytest.approx(gaps.var() / gaps.mean() ** 2, rel=1e-6)


def test_short_windows_are_told_only_where_ten_events_came_in_10_seconds(spark: object) -> None:
    from triagemq.pipeline.tables import topic_rates

    second = 1_000_000_000
    # Topic 0 has nine events in its first window and ten in its third, topic 1 one every hour.
    times = [(0, number * second) for number in range(9)]
    times += [(0, 20 * second + number * second // 10) for number in range(10)]
    times += [(1, hour * 3600 * second) for hour in range(3)]
    published = spark.createDataFrame(  # type: ignore[attr-defined]
        [(0, topic, time, 8, True) for topic, time in times],
        "run int, topic_id int, published_ns bigint, size_bytes int, measured boolean",
    )
    rows = topic_rates.transform(published).toArrow().to_pylist()
    keys = ("topic_id", "window_seconds", "window_start_ns", "publications")
    found = sorted(tuple(row[key] for key in keys) for row in rows)
    assert found == [
        *((0, 0.2, 20 * second + part * 200_000_000, 2) for part in range(5)),
        (0, 10.0, 0, 9),
        (0, 10.0, 20 * second, 10),
        *((1, 10.0, hour * 3600 * second, 1) for hour in range(3)),
    ]


def test_summaries_hold_what_a_report_of_any_length_of_run_needs(
    tables: Tables, measured_publications: pd.DataFrame
) -> None:
    seconds = (measured_publications["published_ns"].max() - MEASURED_FROM_NS) * 1e-9
    short = frame(tables, "topic_rates").query("window_seconds < 1")
    for row in tables.records("topic_summary"):
        own = measured_publications[measured_publications["topic_id"] == row["topic_id"]]
        assert row["publications"] == len(own)
        assert row["rate_per_second"] == pytest.approx(len(own) / seconds)
        assert row["bytes_per_second"] == pytest.approx(own["size_bytes"].sum() / seconds)
        assert (
            row["peak_rate_per_second"]
            == short[short["topic_id"] == row["topic_id"]]["rate_per_second"].max()
        )
    samples, stretches = frame(tables, "port_load"), frame(tables, "port_summary")
    for port, own in stretches.groupby("port"):
        expected = samples[samples["port"] == port]
        assert own["samples"].sum() == len(expected)
        assert np.average(own["load"], weights=own["samples"]) == pytest.approx(expected["load"].mean())
        assert own["seconds"].max() == pytest.approx(
            (expected["sampled_ns"].max() - expected["sampled_ns"].min()) * 1e-9
        )


def test_a_long_run_has_as_many_stretches_of_port_load_as_a_figure_shows(spark: object) -> None:
    from triagemq.pipeline.tables import port_load

    samples = pd.DataFrame({"sampled_ns": np.arange(10_000) * 200_000_000, "load": np.arange(10_000) / 1e4})
    samples = samples.assign(run=0, port_id=3, port=None, offered_load=1.5, backlog_packets=7)
    loads = spark.createDataFrame(  # type: ignore[attr-defined]
        samples,
        "sampled_ns bigint, load double, run int, port_id int, port string, offered_load double, "
        "backlog_packets bigint",
    )
    rows = port_load.summarize(loads).orderBy("seconds").collect()
    assert len(rows) == port_load.MOST_STRETCHES
    assert {row.port for row in rows} == {"port 3"}
    assert sum(row.samples for row in rows) == 10_000
    assert rows[0].load == pytest.approx(12 / 1e4, abs=1e-4)
    assert rows[-1].seconds == pytest.approx(9_987 * 0.2, abs=0.3)


def test_publication_profile_has_gaps_and_sizes_of_every_publisher_and_topic(
    tables: Tables, measured_publications: pd.DataFrame
) -> None:
    rows = frame(tables, "publication_profile").set_index(["publisher_id", "topic_id"])
    seconds = (measured_publications["published_ns"].max() - MEASURED_FROM_NS) * 1e-9
    groups = measured_publications.groupby(["publisher_id", "topic_id"])
    assert len(rows) == len(groups)
    for key, group in groups:
        row = rows.loc[key]
        gaps, sizes = (
            np.diff(np.sort(group["published_ns"])) * 1e-9,
            group["size_bytes"].to_numpy(dtype=float),
        )
        assert row["rate_per_second"] == pytest.approx(len(group) / seconds)
        assert row["ca2"] == pytest.approx(gaps.var() / gaps.mean() ** 2, rel=1e-9)
        assert row["mean_size_bytes"] == pytest.approx(sizes.mean())
        assert row["size_scv"] == pytest.approx(sizes.var() / sizes.mean() ** 2, rel=1e-9)
        assert sum(entry["count"] for entry in row["sizes"]) == len(group)


def test_a_profile_is_the_same_to_the_last_bit_in_whatever_pieces_its_events_come(
    spark: SparkSession,
) -> None:
    from triagemq.pipeline.partitions import to_spark
    from triagemq.pipeline.tables import publication_profile

    random = np.random.default_rng(4)
    clockwork, lazy = np.full(900, 10**9), random.exponential(1e9, 700).astype(np.int64)
    clockwork[::7] += random.integers(0, 1000, 129)
    clockwork[400] *= 600
    often = np.full(3000, 10**7)
    often[::20] = random.integers(10**9, 2 * 10**9, 150)
    columns = []
    for topic, gaps in enumerate((clockwork, lazy, often, np.zeros(40, np.int64), [10**10])):
        length = len(gaps)
        publisher = pa.array(np.full(length, topic, np.int32), mask=np.full(length, topic == 1))
        sizes = random.integers(0, 400, length).astype(np.int32)
        columns.append([np.full(length, topic, np.int32), publisher, np.cumsum(gaps), sizes])
    names = ["topic_id", "publisher_id", "published_ns", "size_bytes"]
    events = pa.concat_tables([pa.table(dict(zip(names, each, strict=True))) for each in columns])
    events = events.take(pa.array(random.permutation(len(events))))
    events = events.append_column("run", pa.array(np.zeros(len(events), np.int32)))
    events = events.append_column("measured", pa.array(np.ones(len(events), bool)))
    rows = to_spark(spark, events)
    times = publication_profile.run_times(rows, {0: 0})

    def profile() -> list[str]:
        found = publication_profile.transform(rows, times)
        return sorted(map(repr, found.toArrow().to_pylist()))

    in_one_piece = profile()
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.execution.arrow.maxRecordsPerBatch": "61"}
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        assert publication_profile.run_times(rows, {0: 0}) == times
        assert profile() == in_one_piece
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))
    found = publication_profile.transform(rows, times).toArrow().to_pylist()
    outages = {row["topic_id"]: (row["outages"], len(row["longest_outages"])) for row in found}
    # The busy one is away more often than is told one by one.
    assert outages[0] == (1, 1)
    assert outages[2][0] > 100
    assert outages[2][1] == 100


def test_port_load_adds_up_the_queues_of_a_port(tables: Tables, trace: Path) -> None:
    rows = frame(tables, "port_load").set_index(["port_id", "sampled_ns"])
    samples = frame_of(trace, "queue_samples").sort_values(["port_id", "queue", "sampled_ns"])
    samples["gained"] = samples.groupby(["port_id", "queue"])["bytes_out"].diff()
    samples = samples[samples["sampled_ns"] >= MEASURED_FROM_NS]
    expected = samples.groupby(["port_id", "sampled_ns"])["gained"].sum()
    assert len(rows) == len(expected)
    for key, gained in expected.items():
        row = rows.loc[key]
        assert row["bytes_out"] == gained
        assert row["load"] == pytest.approx(gained * 8 / row["bandwidth_bps"] / 0.2)
    assert set(rows["port"]) == {"radio", "wire"}


def test_queue_features_have_increments_and_the_target_is_the_next_window(
    tables: Tables, trace: Path, measured_deliveries: pd.DataFrame
) -> None:
    rows = frame(tables, "queue_features").query("port_id == 0 and queue == 1").sort_values("sampled_ns")
    samples = frame_of(trace, "queue_samples").query("port_id == 0 and queue == 1")
    gained = samples.set_index("sampled_ns")["packets_in"].diff()
    last = rows.iloc[-1]
    instant = int(last["sampled_ns"])
    assert last["packets_in_gained"] == gained[instant]
    scenario = loads(Trace.open(trace).scenario_text)
    packets = frame_of(trace, "deliveries").query("priority_class == 1")
    packets = packets[packets["subscriber_id"].isin(np.flatnonzero(scenario.subscribers.port == 0))]
    packets = packets.dropna(subset=["enqueued_ns", "dequeued_ns"])
    checked = 0
    for _, row in rows.iterrows():
        next_window = packets["enqueued_ns"].between(row["sampled_ns"], row["sampled_ns"] + 200_000_000 - 1)
        waits = (packets["dequeued_ns"] - packets["enqueued_ns"])[next_window]
        if len(waits):
            checked += 1
            assert row["next_packets"] == len(waits)
            assert row["next_queueing_delay_seconds"] == pytest.approx(waits.astype(float).mean() * 1e-9)
        else:
            assert pd.isna(row["next_queueing_delay_seconds"])
    assert checked > 10


def test_rows_that_contradict_themselves_are_quarantined_and_counted(
    spark: object, write_trace: Callable[..., Path], tmp_path: Path
) -> None:
    done = run_pipeline([write_trace(tmp_path / "run", damage=True)], tmp_path / "out")
    assert done.reasons["duplicate"] == 3
    assert done.reasons["unknown topic"] == 5
    assert 1 <= done.reasons["clock going backwards"] <= 4
    assert done.rows_read == done.rows_in + done.quarantined
    tables = Tables(tmp_path / "out")
    trace = Trace.open(tmp_path / "run")
    assert done.rows_read == sum(trace.manifest.rows(table) for table in trace.manifest.tables)
    kept = tables.rows["publications"] + tables.rows["deliveries"] + trace.manifest.rows("queue_samples")
    assert kept == done.rows_in
    reasons = {row["reason"]: row for row in tables.records("quarantine_summary")}
    assert {reason: row["rows"] for reason, row in reasons.items()} == done.reasons
    assert reasons["duplicate"]["line"] == 11
    repeated = sorted(row["line"] for row in tables.records("quarantine", where={"reason": "duplicate"}))
    assert repeated == [11, 12, 13]
    assert all(
        "publications" in row["source"]
        for row in tables.records("quarantine", where={"reason": "unknown topic"})
    )


def test_topics_that_peak_together_are_found_and_others_are_not(spark: object) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from triagemq.pipeline.tables import topic_correlation

    random = np.random.default_rng(3)
    busy = random.random(600) < 0.3
    rates = {0: 5 + 20 * busy, 1: 9 + 10 * busy, 2: 30 - 20 * busy, 3: np.full(600, 12)}
    counts = np.array([[random.poisson(rate[window]) for window in range(600)] for rate in rates.values()])
    rows = [
        (0, topic, window * 200_000_000 + number, True)
        for topic, window in np.ndindex(counts.shape)
        for number in range(counts[topic, window])
    ]
    published = spark.createDataFrame(  # type: ignore[attr-defined]
        pd.DataFrame(rows, columns=["run", "topic_id", "published_ns", "measured"]),
        "run int, topic_id int, published_ns bigint, measured boolean",
    )
    profile = published.groupBy("run", "topic_id").agg(
        F.count("*").alias("publications"),
        F.min("published_ns").alias("first_ns"),
        F.max("published_ns").alias("last_ns"),
    )
    found = {
        (row["topic_id"], row["other_topic_id"]): row["correlation"]
        for row in topic_correlation.transform(published, profile).toArrow().to_pylist()
    }
    expected = np.corrcoef(counts)
    assert set(found) == {(0, 1), (0, 2), (1, 2)}
    for (one, other), correlation in found.items():
        assert correlation == pytest.approx(expected[one, other])


def test_live_runs_say_by_which_class_to_count_and_what_ids_are_called(
    spark: object, write_trace: Callable[..., Path], trace: Path, tmp_path: Path
) -> None:
    """Everything in one class, as without triage, or in none at all; ids of a scenario, or of names in a manifest."""
    classes = [3, 1, 0, 2, 2, 0]
    named = write_trace(
        tmp_path / "named", run_id="named", sent_in=0, extra={"subscription_classes": classes}
    )
    unplanned = write_trace(tmp_path / "unplanned", run_id="unplanned", sent_in=-1)
    names = {
        "topics": ["door", "heat", "smoke"],
        "publishers": ["drone-1", "drone-2"],
        "subscriptions": [["pump", "door"], None, *(["pump", f"{number}/#"] for number in range(2, 6))],
    }
    own = write_trace(tmp_path / "own", run_id="own", extra=names, has_scenario=False)
    bare = write_trace(tmp_path / "bare", run_id="bare", has_scenario=False)
    run_pipeline([named, unplanned, own, bare], tmp_path / "out")
    tables = Tables(tmp_path / "out")
    assert all(run.quarantined == 0 for run in tables.manifest.runs.values())
    rows = {(row["run_id"], row["priority_class"]): row for row in tables.records("class_performance")}
    assert set(rows) == {
        *(("named", each) for each in range(4)),
        ("unplanned", None),
        *((run, each) for run in ("own", "bare") for each in range(4)),
    }
    copies = frame_of(trace, "deliveries")
    copies = copies[copies["published_ns"] >= MEASURED_FROM_NS]
    for each in range(4):
        chosen = [number for number, one in enumerate(classes) if one == each]
        assert rows["named", each]["count"] == copies["subscription_id"].isin(chosen).sum()
    assert rows["unplanned", None]["count"] == len(copies)
    # Every run of several has what its scenario, or its manifest, says.
    assert {row["run_id"]: (row["utility"] or 0) > 0 for row in tables.records("run_summary")} == {
        "named": True,
        "unplanned": True,
        "own": False,
        "bare": False,
    }
    whose = {row["run_id"]: set[str | None]() for row in tables.records("run_summary")}
    for row in tables.records("subscription_performance"):
        whose[row["run_id"]].add(row["subscriber"])
    scenarios_own: set[str | None] = {"commander", "archive"}
    assert whose == {
        "named": scenarios_own,
        "unplanned": scenarios_own,
        "own": {"pump", None},
        "bare": {None},
    }
    seen = tables.records("subscription_performance", run_id="bare")
    assert {(row["subscription_id"], row["subscriber_id"], row["topic_id"]) for row in seen} == {
        *zip(copies["subscription_id"], copies["subscriber_id"], copies["topic_id"], strict=True)
    }
    published = {row["publisher"] for row in tables.records("publication_profile", run_id="own")}
    assert published == {"drone-1", "drone-2"}


OVERLOADED = """
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 60000}}
publishers:
  sensor: {publishes: {smoke: {rate_per_second: 20, size_bytes: 200}, heat: {rate_per_second: 30, size_bytes: 200}}}
subscribers:
  commander:
    port: radio
    subscribes:
      smoke: {utility: log:10, max_latency_seconds: 0.03, max_latency_share: 0.9}
      heat: {utility: linear:1, max_latency_seconds: 5}
"""


@dataclass(frozen=True)
class Overload:
    """What `triage simulate --publications` says of a run that is offered more than it can carry, and its tables."""

    told: dict[str, Any]
    folder: Path
    tables: Tables

    def subscriptions(self) -> list[dict[str, Any]]:
        """The rows of subscription_performance in the order of the scenario."""
        return sorted(
            self.tables.records("subscription_performance"), key=lambda row: int(row["subscription_id"])
        )


@pytest.fixture(scope="module")
def overload(spark: object, tmp_path_factory: pytest.TempPathFactory) -> Overload:
    folder = tmp_path_factory.mktemp("overload")
    (folder / "busy.yaml").write_text(OVERLOADED)
    told = StringIO()
    with redirect_stdout(told):
        simulate_command(
            folder / "busy.yaml", drops="none", publications=4000, trace=folder / "run", full=True, json=True
        )
    run_pipeline([folder / "run"], folder / "out")
    return Overload(json.loads(told.getvalue()), folder, Tables(folder / "out"))


def test_what_came_while_the_queues_were_drained_is_no_success_in_any_table(overload: Overload) -> None:
    """Terminal, tables and report of one overloaded run have the same figures."""
    told, tables = overload.told, overload.tables
    assert told["late_excluded"]
    names = {"mean_latency_seconds": "mean_latency_seconds", "p95": "p95_seconds", "p99": "p99_seconds"}
    classes = tables.records("class_performance")
    for row, simulated in zip(classes, told["classes"], strict=True):
        for name in ("priority_class", "count", "delivered", "late"):
            assert row[name] == simulated[name]
        for name, key in {"success_rate": "success_rate", **names}.items():
            assert row[name] == pytest.approx(simulated[key], rel=1e-9), name
    assert classes[-1]["delivered"] == classes[-1]["count"]
    assert classes[-1]["success_rate"] < 0.6
    for row, simulated in zip(overload.subscriptions(), told["subscriptions"], strict=True):
        for name in ("count", "delivered", "late", "success_rate", "share_within_max_latency"):
            assert row[name] == pytest.approx(simulated[name]), name
    summary = tables.records("run_summary")[0]
    assert summary["late"] == told["late_deliveries"]
    assert summary["utility"] == pytest.approx(told["utility"]["achieved"])
    assert f'<td class="number">{told["late_deliveries"]:,}</td>' in (
        report_tables(overload.folder / "out", overload.folder / "report.html", title="Late").read_text()
    )


def test_the_forecast_comes_with_the_run(overload: Overload, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(overload.folder / "run", run)
    stored = json.loads((run / "forecast.json").read_text())
    stored["subscriptions"]["success_rate"][0] = 0.123
    (run / "forecast.json").write_text(json.dumps(stored))
    ((found,), _) = find_inputs([run], None)
    assert isinstance(found, TraceInput)
    assert dimensions({0: found})["subscriptions"]["forecast_success_rate"][0].as_py() == 0.123


@pytest.mark.parametrize("left", [None, "", "{}", "[", '{"subscriptions": {}, "classes": {}}'])
def test_a_run_without_a_forecast_that_can_be_read_has_none(
    overload: Overload, tmp_path: Path, left: str | None
) -> None:
    run = tmp_path / "run"
    shutil.copytree(overload.folder / "run", run)
    (run / "forecast.json").unlink()
    if left is not None:
        (run / "forecast.json").write_text(left)
    ((found,), _) = find_inputs([run], None)
    assert isinstance(found, TraceInput)
    assert len(found.notes) == bool(left)
    columns = dimensions({0: found})["subscriptions"]
    assert columns["forecast_success_rate"].null_count == len(columns) > 0


def test_figures_stand_beside_the_forecast_of_the_runs_own_plan(overload: Overload) -> None:
    trace = Trace.open(overload.folder / "run")
    scenario, plan = loads(trace.scenario_text), parse_plan(trace.plan_text or "")
    predicted = forecast(scenario, plan)
    names = {
        "forecast_success_rate": "success_rate",
        "forecast_mean_latency_seconds": "mean_latency_seconds",
        "forecast_p95": "p95_seconds",
        "forecast_p99": "p99_seconds",
        "forecast_sampled": "sampled",
        "forecast_flag": "flag",
        "forecast_latency_error": "latency_error",
        "forecast_success_error": "success_error",
    }
    in_time = {"forecast_share_within_max_latency": "share_within_max_latency"}
    for found, promised, more in (
        (overload.subscriptions(), subscription_rows(scenario, plan, predicted), in_time),
        (
            overload.tables.records("class_performance"),
            figures_by_class(predicted, plan.subscription_class),
            {},
        ),
    ):
        for row, expected in zip(found, promised, strict=True):
            assert {name: row[name] for name in names | more} == {
                name: expected[key] for name, key in (names | more).items()
            }
    urgent, patient = overload.tables.records("class_performance")
    assert urgent["p95"] == pytest.approx(urgent["forecast_p95"], rel=0.1)
    assert patient["forecast_flag"] == "overloaded queue"
    shown = {row["topic"]: row for row in overload.subscriptions()}
    assert shown["smoke"]["max_latency_share"] == 0.9
    assert shown["heat"]["max_latency_share"] is None
