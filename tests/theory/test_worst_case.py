"""Worst delays at a port and along a path, beside cases worked out by hand and beside simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.errors import ParameterError
from triagemq.theory import assign_classes, delay_bounds, path_arrivals

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "worst_case.py"


def test_a_second_message_in_the_busy_period_can_be_the_worst_as_on_a_can_bus() -> None:
    # Davis, Burns, Bril and Lukkien (2007): the first message of the lowest class ends at 3; the second comes at 3.5,
    # finds one of its own and two and then three of the others ahead of it, starts at 6, and ends 3.5 after it came.
    assert delay_bounds([1, 1, 1], [2.5, 3.5, 3.5], 0.0, [0, 1, 2]).tolist() == [2.0, 3.0, 3.5]


def test_can_frames_of_135_bits_with_jitter() -> None:
    # In bit times. Highest: the second comes 100 after the first; the lower frame and both take 405. Middle: the second
    # comes at 100, and starts at 540 behind a lower frame, its own first and two higher ones. Lowest: starts at 540
    # behind two of each.
    bounds = delay_bounds([135] * 3, [700, 900, 2000], [600, 800, 0], [0, 1, 2])
    assert bounds.tolist() == [405 - 100, 540 + 135 - 100, 540 + 135]


def test_flows_of_one_class_wait_for_one_another_and_for_their_delayed_messages() -> None:
    assert delay_bounds([1, 2], 10.0, 0.0, [0, 0]).tolist() == [3.0, 3.0]
    # The first of the delayed flow's messages comes as late as the second.
    assert delay_bounds([1, 2], 10.0, [0.0, 10.0], [0, 0]).tolist() == [5.0, 5.0]


def test_a_lower_packet_blocks_once_and_not_its_whole_message() -> None:
    assert delay_bounds([1, 8], 20.0, 0.0, [0, 1], packet=[1, 2]).tolist() == [3.0, 9.0]
    assert delay_bounds([1, 8], 20.0, 0.0, [0, 1], packet=[1, 2], lower_priority_blocking=3)[0] == 4.0
    assert delay_bounds([1, 8], 20.0, 0.0, [0, 1], packet=[1, 2], lower_priority_blocking=3)[1] == 12.0


def test_class_numbers_only_order() -> None:
    assert (
        delay_bounds([1, 2], 9.0, 0.0, [-5, 700]).tolist() == delay_bounds([1, 2], 9.0, 0.0, [0, 1]).tolist()
    )


def test_a_short_last_packet_is_overtaken_by_what_comes_before_it_starts() -> None:
    # Packets of 4 and 1, a higher message of 1 every 5. If the last packet were 4 long it would start at 2, after the
    # first message. It starts at 4 + 1 or later: then the second message has come, too.
    assert delay_bounds([1, 5], [5, 50], 0.0, [0, 1], packet=[1, 4]).tolist() == [5.0, 7.0]


def test_packets_that_come_through_a_link_are_sent_while_the_others_come() -> None:
    # Three packets of 2 through a link as fast as the port: only the last is left when it comes.
    assert delay_bounds([6], 50.0, 0.0, [0], packet=[2], spread=[4]).tolist() == [2.0]
    assert delay_bounds([6], 50.0, 0.0, [0], packet=[2]).tolist() == [6.0]
    # Through one of twice the speed each packet but the last comes 1 before the port has sent the one before it.
    assert delay_bounds([6], 50.0, 0.0, [0], packet=[2], spread=[2]).tolist() == [4.0]
    # A short last packet comes sooner behind the others: 0.5 after one that takes 2.
    assert delay_bounds([5], 50.0, 0.0, [0], packet=[2], spread=[2]).tolist() == [1 + 1 + 1.5]


def test_rounding_counts_a_message_too_many_rather_than_one_too_few() -> None:
    assert 0.3 / 0.1 < 3.0
    assert delay_bounds([0.01, 0.02], [0.1, 10.0], [0.3, 0.0], [0, 1])[1] == pytest.approx(4 * 0.01 + 0.02)


def test_without_capacity_there_is_no_bound_and_higher_classes_keep_theirs() -> None:
    bounds = delay_bounds([1, 1, 1], 2.5, 0.0, [0, 1, 2])
    assert bounds[:2].tolist() == [2.0, 3.0]
    assert bounds[2] == np.inf
    assert delay_bounds([3, 1], [2, 9], 0.0, [0, 1]).tolist() == [np.inf, np.inf]


def test_an_almost_full_port_is_bounded_in_good_time() -> None:
    flows: dict[str, Any] = {
        "transmission": [0.5, 0.3, 0.2 * np.pi - 1e-12],
        "separation": [1.0, 1.0, np.pi],
        "jitter": 0.0,
        "classes": [0, 1, 2],
    }
    exact, calculus = delay_bounds(**flows), delay_bounds(**flows, method="calculus")
    assert (exact <= calculus).all()
    assert calculus[2] < 8.0


def test_calculus_is_bursts_over_what_the_higher_classes_leave() -> None:
    bounds = delay_bounds([1, 2], [4, 10], [2, 5], [0, 1], lower_priority_blocking=0.5, method="calculus")
    assert bounds.tolist() == [1.5 + 2, (1.5 + 3 + 0.5) / 0.75]


def test_paper_leaves_out_the_lower_packet_and_the_same_class() -> None:
    bounds = delay_bounds([1, 2, 2], [4, 10, 10], 0.0, [0, 1, 1], method="paper")
    assert bounds.tolist() == [1.0, (2 + 0.75) / 0.75, (2 + 0.75) / 0.75]
    # MIDAS V.B: jitter makes the separation smaller.
    assert delay_bounds([1, 2], [5, 10], [1, 0], [0, 1], method="paper")[1] == (2 + 0.75) / 0.75
    assert delay_bounds([1, 2], [5, 10], [5, 0], [0, 1], method="paper")[1] == np.inf


def test_a_token_bucket_brings_others_a_message_and_the_rate_on_top_of_it() -> None:
    plain = {"transmission": [1.0, 1.0], "separation": [4.0, 20.0], "jitter": 0.0, "classes": [0, 1]}
    assert delay_bounds(**plain).tolist() == [2.0, 2.0]
    # The lower one starts at w = 1 + w/4. To itself the higher one is what it has declared.
    behind = delay_bounds(**plain, bucket=[True, False])
    np.testing.assert_allclose(behind, [2.0, 4 / 3 + 1])
    # Whatever it lets through itself: half of a message that comes just behind a whole one waits for that.
    passing = delay_bounds([1.0], [4.0], 0.0, [0], bucket=True, passing=True, lower_priority_blocking=1.0)
    np.testing.assert_allclose(passing, [2.0])


def test_the_start_meets_a_message_while_a_bucket_of_the_same_class_fills() -> None:
    # Above: a message of 2 every 10. Beside: 3 at once and 0.3 a second. What comes at x starts at 5 + 0.3 x, which is
    # the second message's 10 at x = 50/3 only: by then it waits for less than what came at once.
    plain = {"transmission": [2.0, 3.0, 1.0], "separation": [10.0, 10.0, 100.0], "jitter": 0.0}
    found = delay_bounds(**plain, classes=[0, 1, 1], bucket=[False, True, False])
    np.testing.assert_allclose(found[2], 6.0)
    # Behind a lower packet of 4.4 it starts at 9.4 + 0.3 x, and at x = 2 meets the second message: it starts at 12.
    found = delay_bounds(**plain, classes=[0, 1, 1], bucket=[False, True, False], lower_priority_blocking=4.4)
    np.testing.assert_allclose(found[2], 11.0)


@given(st.data())
def test_bounds_behind_buckets_are_between_those_behind_windows_and_calculus(data: st.DataObject) -> None:
    flows = data.draw(flow_sets())
    count = len(flows["transmission"])
    bucket = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    behind = delay_bounds(**flows, bucket=bucket)
    assert (behind >= delay_bounds(**flows) * (1 - 1e-9)).all()
    any_packet = delay_bounds(**flows, bucket=bucket, passing=True)
    assert (any_packet >= behind * (1 - 1e-9)).all()
    assert (any_packet <= delay_bounds(**flows, bucket=bucket, method="calculus")).all()


@st.composite
def flow_sets(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 8))

    def each(low: float, high: float) -> Any:
        return np.array(draw(st.lists(st.floats(low, high), min_size=count, max_size=count)))

    separation = each(1.0, 20.0)
    transmission = separation * each(0.01, 0.9) / count
    packet = transmission / each(1.0, 5.0)
    return {
        "transmission": transmission,
        "separation": separation,
        "jitter": separation * each(0.0, 2.0),
        "classes": draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)),
        "packet": packet,
        "spread": each(0.0, 5.0) * packet,
    }


@given(flow_sets())
def test_exact_is_never_above_calculus(flows: dict[str, Any]) -> None:
    exact = delay_bounds(**flows)
    assert (exact <= delay_bounds(**flows, method="calculus")).all()
    assert (exact > 0.0).all()


@given(flow_sets(), st.integers(0, 7))
def test_what_comes_more_bunched_is_never_bounded_lower(flows: dict[str, Any], chosen: int) -> None:
    before = delay_bounds(**flows)
    row = chosen % before.size
    jitter, spread = flows["jitter"].copy(), flows["spread"].copy()
    jitter[row] *= 1.5
    spread[row] /= 2
    after = delay_bounds(**(flows | {"jitter": jitter, "spread": spread}))
    assert (after >= before * (1 - 1e-9)).all()


def test_the_path_of_a_message_of_several_packets_costs_it_once_and_a_packet_per_further_link() -> None:
    path = path_arrivals([8, 8, 8], [2, 2, 2], [8, 2, 2])
    assert path.smallest.tolist() == [8, 10, 12]
    assert path.jitter.tolist() == [0, 0, 0]
    assert path.spread.tolist() == [0, 6, 6]


def test_a_slow_link_on_the_way_is_where_the_whole_message_counts() -> None:
    # Four packets: 1 each on fast links, 3 on the slow one in the middle. The first is at the slow one after 1.
    path = path_arrivals([4, 12, 4], [1, 3, 1], [4, 10, 3])
    assert path.smallest.tolist() == [4, 1 + 12, 1 + 12 + 1]
    assert path.jitter.tolist() == [0, 0, 1]
    assert path.spread.tolist() == [0, 3, 9]


def test_latency_between_hops_may_be_less_and_bring_packets_closer() -> None:
    path = path_arrivals([5, 5], [2, 2], [5, 3], latency=0.25)
    assert path.jitter.tolist() == [0, 0.25]
    # 1 s for the last packet becomes 0.75 s: as if all were three quarters as long.
    assert path.spread.tolist() == [0, 2 * 1.5]


def test_the_three_topics_of_midas_are_schedulable_from_publisher_to_subscriber() -> None:
    # MIDAS Table II: gigabit links, packets of 1500 bytes; each publisher has an access link, all share a subscriber's.
    second = 8 / 1e9
    message = np.array([192192, 96000, 64000]) * second
    packet = np.full(3, 1500 * second)
    separation, deadline = np.array([3e-3, 3e-3, 11e-3]), np.array([2e-3, 3e-3, 8e-3])
    access = [
        delay_bounds(message[[row]], separation[[row]], 0.0, [0], packet=packet[[row]])[0] for row in range(3)
    ]
    assert access == pytest.approx(message)
    paths = [path_arrivals([message[row]] * 2, [packet[row]] * 2, [access[row], 0.0]) for row in range(3)]
    assert [path.jitter[1] for path in paths] == pytest.approx([0.0, 0.0, 0.0])
    port = {"packet": packet, "spread": [path.spread[1] for path in paths]}
    found = assign_classes(
        message, separation, 0.0, deadline - access, 8, lower_priority_blocking=packet[0], **port
    )
    assert found.fits
    assert (access + found.bounds <= deadline).all()
    by_calculus = assign_classes(message, separation, 0.0, deadline - access, 8, **port, method="calculus")
    assert not by_calculus.fits


def simulated(sets: int) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARK), "--json", "--sets", str(sets)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def kept(figures: dict[str, Any]) -> None:
    assert figures["messages_above_exact"] == 0
    assert figures["exact_above_calculus"] == 0
    assert 1.0 <= figures["one_port_median_over_worst_seen"] <= 1.2
    beside = figures["behind_buckets"]
    assert beside["messages_above_exact"] == beside["exact_above_calculus"] == 0
    assert beside["above_what_windows_would_do"] > 0
    assert 1.0 <= beside["one_port_median_over_worst_seen"] <= 1.2


def test_no_simulated_message_is_later_than_its_bound() -> None:
    kept(simulated(8))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_simulated_message_of_a_thousand_sets_is_later_than_its_bound() -> None:
    figures = simulated(1000)
    kept(figures)
    assert figures["sets_where_paper_is_exceeded"] > 0


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"separation": 0.0}, "separation"),
        ({"separation": [1.0]}, "separation"),
        ({"transmission": [1.0, 0.0]}, "transmission"),
        ({"transmission": [1.0, np.nan]}, "transmission"),
        ({"jitter": -1.0}, "jitter"),
        ({"jitter": np.inf}, "jitter"),
        ({"packet": [1.0, 3.0]}, "packet"),
        ({"packet": 0.0}, "packet"),
        ({"spread": [-1.0, 0.0]}, "spread"),
        ({"bucket": [1.0, 0.0]}, "bucket"),
        ({"passing": [True]}, "passing"),
        ({"classes": [0.5, 1.0]}, "classes"),
        ({"classes": [0]}, "classes"),
        ({"lower_priority_blocking": -1.0}, "lower_priority_blocking"),
        ({"lower_priority_blocking": [1.0, 2.0]}, "lower_priority_blocking"),
        ({"method": "guess"}, "method"),
    ],
)
def test_impossible_arguments_are_refused_by_name(changes: dict[str, Any], parameter: str) -> None:
    arguments: dict[str, Any] = {
        "transmission": [1.0, 2.0],
        "separation": 9.0,
        "jitter": 0.0,
        "classes": [0, 1],
    }
    with pytest.raises(ParameterError, match=f"^{parameter}: "):
        delay_bounds(**(arguments | changes))


def test_no_flows_have_no_bounds() -> None:
    assert delay_bounds([], [], [], []).size == 0


def test_a_message_that_is_cut_otherwise_on_its_way_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^packet: "):
        path_arrivals([8, 8], [2, 4], [8, 8])
