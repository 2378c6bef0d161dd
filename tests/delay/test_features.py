"""Features: what they are by their names, and that they know nothing of what comes later."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.delay.feeds import PACKET_BYTES, WIDTH_BPS, queue_feed

from triagemq.delay.learning.features import (
    WINDOW,
    FeatureHistory,
    SwitchConstants,
    feature_names,
    feature_rows,
)
from triagemq.delay.learning.training import switch_constants
from triagemq.lab.generators import prototype
from triagemq.scenario import dumps, load

SWITCH = SwitchConstants(400_000, 1500, 1e-6, 12_000, 32_000)


def _named(counters: str, row: np.ndarray) -> dict[str, float]:
    return dict(zip(feature_names(counters), row.tolist(), strict=True))


@pytest.mark.parametrize("counters", ["openflow", "linux"])
def test_every_feature_is_what_its_name_says(counters: str) -> None:
    packets = np.random.default_rng(2).poisson(210, 60)
    feed = queue_feed(packets, "linux", buffer_packets=40)
    found = _named(counters, feature_rows(queue_feed(packets, counters, buffer_packets=40), SWITCH)[-1])
    assert feed.backlog_packets is not None
    load, sent = packets / 200, np.diff(feed.packets_out) / 200
    dropped, backlog = np.diff(feed.drops) / packets, feed.backlog_packets[1:] * 1e-3
    rate, recent = packets[-25:].mean() * 5, packets[-25:]
    dispersion = np.sum((recent - recent.mean()) ** 2 / recent.mean()) / 24
    smoothed = 0.0
    for held in backlog:
        smoothed = (smoothed + held) / 2
    expected = {
        "width_bps": WIDTH_BPS,
        "window_seconds": 0.2,
        "packet_bytes": PACKET_BYTES,
        "service_seconds": 1e-3,
        "packets_per_second": packets[-1] * 5,
        "packets_change": (packets[-1] - packets[-2]) * 5,
        "dispersion": dispersion,
        "chance_seconds": math.sqrt(2 * rate * 1e-6 * dispersion * 0.2 / math.pi),
        "queued_seconds": backlog[-1],
        "buffer_seconds": 0.4,
        "room_seconds": 0.4 - backlog[-1],
        "held_seconds": backlog[-1],
        "held_less_queued_seconds": 0.0,
        "smoothed_seconds": smoothed,
        "held_less_smoothed_seconds": backlog[-1] - smoothed,
        "leaving_seconds": smoothed,
        "load_deviation_5": load[-5:].std(),
        "load_deviation_25": load[-25:].std(),
        "buffer_bytes": 400_000,
        "largest_packet_bytes": 1500,
        "smallest_delay_seconds": 1e-6,
        "largest_routing_table": 12_000,
        "largest_mac_table": 32_000,
    }
    for name, values in {"load": load, "sent": sent, "dropped": dropped, "held_seconds": backlog}.items():
        expected[name] = values[-1]
        expected |= {f"{name}_lag_{lag}": values[-1 - lag] for lag in range(1, 6)}
        expected |= {f"{name}_mean_5": values[-5:].mean(), f"{name}_mean_25": values[-25:].mean()}
    if counters == "linux":
        expected |= {"backlog_seconds": backlog[-1], "backlog_packets": feed.backlog_packets[-1]}
        expected |= {f"backlog_seconds_lag_{lag}": backlog[-1 - lag] for lag in range(1, 6)}
        expected["backlog_seconds_mean_5"] = backlog[-5:].mean()
        expected["backlog_leaving_seconds"] = backlog[-1]
    assert set(found) - set(expected) == {"period_seconds", "phase", "period_strength"}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_chance_builds_up_no_more_than_a_queue_with_that_load_has() -> None:
    packets = np.random.default_rng(2).poisson(100, 60)
    found = _named("openflow", feature_rows(queue_feed(packets, "openflow"))[-1])
    load = packets[-25:].mean() / 200
    assert found["chance_seconds"] == pytest.approx(
        0.5 * load * 1e-3 * found["dispersion"] / (1 - load), rel=1e-5
    )


def test_features_at_a_sample_do_not_depend_on_later_ones_nor_on_those_long_past() -> None:
    packets = np.random.default_rng(4).poisson(150, 3 * WINDOW)
    whole = feature_rows(queue_feed(packets, "linux"))
    part = feature_rows(queue_feed(packets[: 2 * WINDOW + 10], "linux"))
    assert np.array_equal(part, whole[: len(part)], equal_nan=True)
    # What is looked back on is as long as the window of periods, which are looked for in steps that divide it.
    feed = queue_feed(packets, "linux")
    late = feature_rows(feed.take(slice(WINDOW, None)))
    assert np.allclose(late[-1], whole[-1], equal_nan=True, rtol=1e-5)


def test_the_period_and_the_phase_in_it_are_found() -> None:
    windows = np.arange(400)
    packets = np.where(windows % 25 == 3, 150, 20)
    rows = [_named("openflow", row) for row in feature_rows(queue_feed(packets, "openflow"))[1:]]
    assert rows[-1]["period_seconds"] == pytest.approx(5.0, rel=0.02)
    peaks = [
        row["phase"] for row, window in zip(rows, windows, strict=True) if window > 300 and window % 25 == 3
    ]
    assert all(min(phase, 1 - phase) < 0.05 for phase in peaks)
    assert math.isnan(rows[20]["period_seconds"])


def test_what_is_not_known_is_missing_and_never_infinite() -> None:
    rows = feature_rows(queue_feed([0, 5, 0, 300], "linux", width_bps=math.inf))
    assert not np.isinf(rows).any()
    assert np.isnan(rows[-1, feature_names("linux").index("load")])
    first = _named("linux", feature_rows(queue_feed([1], "linux"))[0])
    assert {name for name, value in first.items() if not math.isnan(value)} == {"width_bps"}


def test_a_window_longer_than_others_counts_by_its_rate() -> None:
    feed = queue_feed([100] * 40, "openflow")
    kept = np.ones(len(feed), bool)
    kept[[20, 21, 39]] = False
    found, whole = (_named("openflow", feature_rows(samples)[-1]) for samples in (feed.take(kept), feed))
    for name in ("load", "load_mean_5", "packets_per_second", "dispersion", "packet_bytes"):
        assert found[name] == pytest.approx(whole[name], rel=1e-5, abs=1e-9)


def test_a_history_starts_with_the_switch_it_is_given() -> None:
    history = FeatureHistory("openflow", SWITCH)
    row = history.add(next(iter(queue_feed([1], "openflow"))))
    assert _named("openflow", row)["buffer_bytes"] == 400_000


def test_the_switchs_model_fills_the_constants_of_its_ports(tmp_path: Path) -> None:
    file = tmp_path / "modelled.yaml"
    text = dumps(prototype(subscribers=2)).replace("switch: {}", "switch: {model: pica8-p3290}")
    file.write_text(text.replace("bandwidth_bps: 64000", "bandwidth_bps: 64000, buffer_packets: 100"))
    found = switch_constants(load(file), 0)
    assert (found.smallest_delay_seconds, found.largest_packet_bytes) == (5e-6, 1538.0)
    assert (found.buffer_bytes, found.largest_routing_table) == (pytest.approx(100 * 149), 2000.0)
    row = FeatureHistory("linux", found).add(next(iter(queue_feed(np.ones(3, int), "linux"))))
    assert _named("linux", row)["largest_routing_table"] == 2000.0
