"""Samples from a Trace, what is gained between two, and what read errors do to them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.delay.feeds import queue_feed

from triagemq.delay.samples import COUNTER_SETS, Increments, Sample, Samples
from triagemq.errors import ParameterError
from triagemq.lab.queue_delay import ReadErrors, by_queue, disturbed, of_trace
from triagemq.trace import Trace, TraceWriter


def test_the_queues_of_a_trace_come_apart_in_order_of_time(tmp_path: Path) -> None:
    counted = {name: np.array([7, 3, 0, 5]) for name in COUNTER_SETS["linux"]}
    with TraceWriter(tmp_path, scenario_text="topics: []", plan_text=None, producer="test") as writer:
        writer.queue_samples(
            {
                "port_id": np.array([1, 0, 0, 1]),
                "queue": np.array([2, 0, 0, 2]),
                "sampled_ns": np.array([400, 400, 200, 200]),
                "width_bps": np.array([10_000, -1, -1, 20_000]),
                **counted,
            }
        )
        writer.finish(measured_from_ns=0)
    queues = of_trace(Trace.open(tmp_path), "linux")
    assert list(queues) == [(0, 0), (1, 2)]
    assert queues[1, 2].width_bps.tolist() == [20_000.0, 10_000.0]
    assert queues[0, 0].width_bps.tolist() == [math.inf, math.inf]
    assert queues[0, 0].backlog_bytes is not None
    assert queues[0, 0].backlog_bytes.tolist() == [0, 3]
    hidden = of_trace(Trace.open(tmp_path), "openflow")[1, 2]
    assert hidden.counters == "openflow"
    assert [(sample.bytes_in, sample.backlog_bytes) for sample in hidden] == [(5, None), (7, None)]


def test_a_trace_without_samples_has_no_queues() -> None:
    assert by_queue({name: [] for name in ("port_id", "queue", "sampled_ns", "width_bps")}, "openflow") == {}


def test_columns_that_do_not_fit_are_refused_by_name() -> None:
    feed = queue_feed([1, 2])
    columns = {name: getattr(feed, name) for name in Samples.__dataclass_fields__}
    with pytest.raises(ParameterError, match="lack drops, which the set 'openflow' has"):
        Samples.of({name: value for name, value in columns.items() if name != "drops"}, "openflow")
    with pytest.raises(ParameterError, match="width_bps: holds what is not above 0"):
        Samples.of({**columns, "width_bps": [8e6, 0, 8e6]}, "linux")
    with pytest.raises(ParameterError, match="sampled_ns: does not grow"):
        Samples.of({**columns, "sampled_ns": [0, 5, 5]}, "linux")


def test_without_errors_samples_are_as_they_were() -> None:
    feed = queue_feed([300] * 10, buffer_packets=100)
    seen = disturbed(feed, ReadErrors(0.0, 0.0), seed=9)
    assert [*seen] == [*feed]


def test_errors_are_as_large_as_stated_and_repeat_with_their_seed() -> None:
    feed = queue_feed([300] * 500, buffer_packets=100)
    errors = ReadErrors(skew_seconds=0.05, hidden_drops=0.25)
    seen = disturbed(feed, errors, seed=4)
    # The queue sends a megabyte a second: bytes that are off are seconds that it was read early or late.
    off_seconds = (seen.bytes_out - feed.bytes_out)[1:-1] / 1e6
    assert np.abs(off_seconds).max() <= 0.05
    assert np.std(off_seconds) == pytest.approx(0.1 / math.sqrt(12), rel=0.05)
    assert seen.drops[-1] == math.floor(0.75 * feed.drops[-1])
    assert (seen.bytes_in == feed.bytes_in).all()
    assert [*disturbed(feed, errors, seed=4)] == [*seen]
    assert [*disturbed(feed, errors, seed=5)] != [*seen]


def test_impossible_errors_are_refused() -> None:
    with pytest.raises(ParameterError, match="skew_seconds"):
        ReadErrors(skew_seconds=0.2)
    with pytest.raises(ParameterError, match="hidden_drops"):
        ReadErrors(hidden_drops=1.5)


@given(packets=st.lists(st.integers(0, 500), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_increments_add_up_to_what_was_counted_however_it_was_read(packets: list[int], seed: int) -> None:
    feed = queue_feed(packets, buffer_packets=100)
    seen = disturbed(feed, ReadErrors(skew_seconds=0.19, hidden_drops=0.0), seed)
    increments = Increments()
    gained = [found for found in map(increments.after, seen) if found is not None]
    assert sum(each.bytes_in for each in gained) == seen.bytes_in[-1]
    assert sum(each.drops for each in gained) == seen.drops[-1]
    assert sum(each.bytes_out for each in gained) == seen.bytes_out.max() - seen.bytes_out[0]
    assert sum(each.seconds for each in gained) == pytest.approx(0.2 * len(packets))
    assert not any(each.restarted for each in gained)


def test_a_sample_that_is_not_later_is_no_increment() -> None:
    increments = Increments()
    assert increments.after(Sample(5, 0, 0, 0, 0, 0, 1e6)) is None
    assert increments.after(Sample(5, 9, 1, 0, 0, 0, 1e6)) is None
    found = increments.after(Sample(6, 9, 1, 0, 0, 0, 1e6))
    assert found is not None
    assert found.bytes_in == 9
