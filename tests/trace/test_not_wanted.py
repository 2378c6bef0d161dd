"""Copies in whose place another is wanted: in files by name, and outside of success rates."""

from __future__ import annotations

import numpy as np

from triagemq.simulate.endings import new_tally
from triagemq.simulate.result import class_results
from triagemq.trace import NOT_WANTED, Outcome


def test_outcomes_of_before_keep_their_codes() -> None:
    assert [each.name for each in Outcome][:8] == [
        "delivered",
        "dropped_by_policy",
        "dropped_by_buffer",
        "limited",
        "lost_on_link",
        "subscriber_gone",
        "in_flight",
        "unacknowledged",
    ]
    assert (Outcome.thinned, Outcome.expired, Outcome.superseded) == (8, 9, 10)


def test_thinned_and_superseded_copies_are_no_loss_and_expired_ones_are() -> None:
    tally = new_tally(1, 1)
    for outcome, count in {
        Outcome.delivered: 6,
        Outcome.expired: 2,
        Outcome.thinned: 30,
        Outcome.superseded: 12,
    }.items():
        tally.class_outcomes[0, outcome] = count
    results = class_results(tally, [tally], late_excluded=False)
    assert results.count.tolist() == [50]
    np.testing.assert_allclose(results.success_rate, [6 / 8])
    assert set(NOT_WANTED) == {Outcome.thinned, Outcome.superseded}
