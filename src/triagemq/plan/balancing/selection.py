"""Who leaves an overloaded edge for where: bundle by bundle, until it would not be overloaded any more.

A bundle is split only if no bundle fits anywhere (PEER-WD 4.4.2).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from triagemq.plan.balancing.basis import Leaving, OffloadBasis, RowNumbers
from triagemq.plan.balancing.offloading import OtherEnds, QueueState, subscriber_order
from triagemq.plan.balancing.trial import EdgeTrial


def from_edge(basis: OffloadBasis, source: int) -> list[Leaving]:
    """Subscriptions that leave an edge, and those of other edges for which there would be no room after that.

    A broker that has taken clients may not be in LOW any more. Where others are asked for more than they can send, and
    could not be relieved later, they are relieved at once.
    """
    accepting = basis.accepting(basis.metric(source), edges=True)
    alone, enough = _relieved(EdgeTrial(basis), source, accepting)
    later = alone.in_low(accepting)
    doomed = [
        each
        for each in alone.growing.tolist()
        if each != source and basis.free[each] and not _relieved(alone, each, later)[1]
    ]
    for order in ([source, *doomed], [*doomed, source]) if doomed else ():
        trial = EdgeTrial(basis)
        for each in order:
            trial, enough = _relieved(trial, each, accepting)
            if not enough:
                break
        else:
            return trial.moves
    return alone.moves


def _relieved(trial: EdgeTrial, source: int, accepting: RowNumbers) -> tuple[EdgeTrial, bool]:
    """What leaves an edge, and whether that is enough: within its cluster; to other clusters, too, if that is not
    enough.

    Where the bundles that fit are not enough, single subscriptions may be: then these leave, the largest first; and
    where these find no room, brokers in LOW make some for each other. If nothing is enough, as much leaves as fits.
    """
    basis, accepting = trial.basis, accepting[accepting != source]
    nearby = basis.campus.cluster[accepting] == basis.campus.cluster[source]
    everywhere = np.concatenate([accepting[nearby], accepting[~nearby]])
    bundles = list(_bundles(basis, source))
    by_load = sorted(bundles, key=lambda rows: -float(trial.load(rows[:1])[0]))
    whole = trial
    for candidates in (accepting[nearby], everywhere):
        whole = trial.copy()
        if whole.offer(source, bundles, candidates):
            whole.spare(source, len(trial.moves))
            return whole, True
    for make_room in (False, True):
        alone = trial.copy()
        if alone.offer_singly(source, by_load, everywhere, make_room=make_room):
            alone.spare(source, len(trial.moves))
            return alone, True
    whole.offer_singly(source, bundles, everywhere)
    return whole, False


def _bundles(basis: OffloadBasis, source: int) -> Iterator[RowNumbers]:
    """The bundles of an edge in the order in which they leave, and in each those first that may wait longest."""
    campus, measured, allowed = basis.campus, basis.measured, basis.outlook.expected.allowed_seconds
    here = np.flatnonzero((measured.placement.subscriptions == source) & measured.present & basis.movable)
    if not len(here):
        return
    topics, bundle = np.unique(campus.scenario.subscriptions.topic[here], return_inverse=True)
    published = campus.published(measured.placement)[0][:, topics] > 0
    local = published[campus.cluster[source]]
    remote = published.sum(axis=0) > local
    waiting = np.where(measured.queue_events[here] > 0, QueueState.WAITING, QueueState.EMPTY)
    queues = np.zeros(len(topics), dtype=np.int32)
    np.maximum.at(queues, bundle, np.where(basis.outlook.detected.deep[here], QueueState.TOO_DEEP, waiting))
    shortest = np.full(len(topics), np.inf)
    np.minimum.at(shortest, bundle, allowed[here])
    rows = here[np.lexsort((-allowed[here], bundle))]
    ends = np.cumsum(np.bincount(bundle, minlength=len(topics)))
    for each in subscriber_order(
        basis.metric(source), OtherEnds.of(local, remote), queues, shortest
    ).tolist():
        yield rows[ends[each - 1] if each else 0 : ends[each]]
