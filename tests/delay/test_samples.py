"""Samples, and what is gained between two of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.delay.feeds import queue_feed

from triagemq.delay.samples import Increments, Sample, Samples
from triagemq.errors import ParameterError
from triagemq.lab.queue_delay import ReadErrors, disturbed


def test_columns_that_do_not_fit_are_refused_by_name() -> None:
    feed = queue_feed([1, 2])
    columns = {name: getattr(feed, name) for name in Samples.__dataclass_fields__}
    with pytest.raises(ParameterError, match="lack drops, which the set 'openflow' has"):
        Samples.of({name: value for name, value in columns.items() if name != "drops"}, "openflow")
    with pytest.raises(ParameterError, match="width_bps: holds what is not above 0"):
        Samples.of({**columns, "width_bps": [8e6, 0, 8e6]}, "linux")
    with pytest.raises(ParameterError, match="sampled_ns: does not grow"):
        Samples.of({**columns, "sampled_ns": [0, 5, 5]}, "linux")


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
