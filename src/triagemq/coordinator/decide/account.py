"""What an operator wants to read about a decision: why it was taken, what it changed for whom. Bounded in number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.decide.changes import TableChange
from triagemq.coordinator.decide.orders import AdmittedPromise, Orders, Promised
from triagemq.plan import Decision, Plan
from triagemq.scenario import Floats, Integers

MOST_ROWS = 20
"""Topics, or else subscribers, or ports, that one decision names; the others are counted."""

VISIBLE_DROP_CHANGE = 0.005
"""A drop rate that changes by less is not worth a row."""

Rows = NDArray[np.intp]


def account(
    name: str,
    why: Sequence[str],
    plans: tuple[Plan | None, Plan],
    orders: tuple[Orders, Orders],
    change: TableChange,
) -> tuple[Decision, ...]:
    """The rows of one decision about the exchange `name`; plans and orders are those before and after."""
    reason = "; ".join(why) or "asked for"
    before, after = orders
    ports = _port_news(*plans)
    if before is after:
        kept = Decision("plan_kept", name, _generation(before), _generation(before), reason)
        return (kept, *ports)
    treated = _Treated(change)
    summary = Decision(
        "replanned",
        name,
        _generation(before),
        _generation(after),
        f"{reason}: {treated.summary()}",
    )
    return (summary, *ports, *_promise_news(before.promised, after.promised), *treated.rows(reason))


class _Treated:
    """Which subscriptions a plan treats differently than the orders before."""

    def __init__(self, change: TableChange) -> None:
        self._scenario = change.scenario
        self._joined, self._left = int(change.is_new.sum()), len(change.gone)
        self.class_after: Integers = change.class_after
        self.drop_after: Floats = change.drop_after
        self.class_before: Integers = change.class_before
        self.drop_before: Floats = change.drop_before
        by_flow = self.class_after >= 0
        known = by_flow & (self.class_before >= 0)
        self.new: Rows = np.flatnonzero(by_flow & ~known)
        self.better: Rows = np.flatnonzero(known & (self.class_after < self.class_before))
        self.worse: Rows = np.flatnonzero(known & (self.class_after > self.class_before))
        moved = np.abs(self.drop_after - self.drop_before) >= VISIBLE_DROP_CHANGE
        self.rated: Rows = np.flatnonzero(known & moved)
        self.changed: Rows = np.union1d(np.union1d(self.better, self.worse), self.rated)

    def summary(self) -> str:
        counts = {
            "subscribers join": self._joined,
            "subscribers leave": self._left,
            "subscriptions new": len(self.new),
            "to a better class": len(self.better),
            "to a worse class": len(self.worse),
            "with another drop rate": len(self.rated),
        }
        said = [f"{count} {what}" for what, count in counts.items() if count]
        return ", ".join(said) or "no subscription is treated differently"

    def rows(self, reason: str) -> tuple[Decision, ...]:
        """One row per subscription if they are few, else one per subscriber if those are, else none."""
        changed, names = self.changed, self._scenario.subscribers.name
        wanted, topics = self._scenario.subscriptions, self._scenario.topics.name
        if len(changed) <= MOST_ROWS:
            return tuple(
                Decision(
                    "treated_differently",
                    f"{names[wanted.subscriber[row]]} {topics[wanted.topic[row]]}",
                    _treatment(self.class_before[row], self.drop_before[row]),
                    _treatment(self.class_after[row], self.drop_after[row]),
                    reason,
                )
                for row in changed.tolist()
            )
        owners, counts = np.unique(wanted.subscriber[changed], return_counts=True)
        if len(owners) > MOST_ROWS:
            return ()
        return tuple(
            Decision(
                "treated_differently",
                names[owner],
                _mean_treatment(self.class_before[rows], self.drop_before[rows]),
                _mean_treatment(self.class_after[rows], self.drop_after[rows]),
                f"{count} topics: {reason}",
            )
            for owner, count in zip(owners.tolist(), counts.tolist(), strict=True)
            for rows in [changed[wanted.subscriber[changed] == owner]]
        )


def _port_news(before: Plan | None, after: Plan) -> tuple[Decision, ...]:
    """What the plan itself says, as far as the plan before did not say the same."""
    said = set() if before is None else set(before.decisions)
    kinds = {decision.kind for decision in said}
    # What the forecasts gained has other figures each time; `explain` has them.
    news = [
        decision
        for decision in after.decisions
        if decision not in said and (decision.kind != "planned_by_forecast" or decision.kind not in kinds)
    ]
    if before is not None:
        overloaded = {each.subject for each in after.decisions if each.kind == "port_overloaded"}
        news += [
            Decision("port_relieved", each.subject, each.after, "all it is offered", "everything fits again")
            for each in before.decisions
            if each.kind == "port_overloaded" and each.subject not in overloaded
        ]
    if len(news) > MOST_ROWS:
        rest = len(news) - MOST_ROWS
        more = Decision(
            "more_ports", "all ports", "", "", f"{rest} more decisions about ports are in the plan"
        )
        return (*news[:MOST_ROWS], more)
    return tuple(news)


def _promise_news(before: Promised, after: Promised) -> tuple[Decision, ...]:
    """What is admitted, what is promised otherwise than before, and what is promised no more."""
    news = [
        Decision(
            "admitted",
            f"{new.subscriber} {new.topic}",
            f"asked for {new.max_latency_seconds:.6g} s"
            if old is None
            else f"bound {old.bound_seconds:.4g} s",
            f"bound {new.bound_seconds:.4g} s",
            f"proven from {new.publisher} over {', '.join(hop.port or 'its access link' for hop in new.hops)}; "
            f"{new.max_latency_seconds - new.bound_seconds:.4g} s to spare",
        )
        for name, new in after.promises.items()
        if (old := before.promises.get(name)) is None or _terms(old) != _terms(new)
    ]
    news += [
        Decision(
            "released",
            f"{old.subscriber} {old.topic}",
            f"bound {old.bound_seconds:.4g} s",
            "no promise",
            f"what {old.publisher} publishes is not asked for with a promise any more, or not admitted",
        )
        for name, old in before.promises.items()
        if name not in after.promises
    ]
    if len(news) > MOST_ROWS:
        rest = len(news) - MOST_ROWS
        more = Decision("more_promises", "all promises", "", "", f"{rest} more were admitted or released")
        return (*news[:MOST_ROWS], more)
    return tuple(news)


def _terms(promise: AdmittedPromise) -> tuple[float, list[str]]:
    return promise.max_latency_seconds, [hop.port for hop in promise.hops]


def _generation(orders: Orders) -> str:
    return f"generation {orders.generation}"


def _treatment(priority_class: int, drop_rate: float) -> str:
    return f"class {priority_class}, drop {drop_rate:.4g}"


def _mean_treatment(classes: Integers, drop_rates: Floats) -> str:
    return f"mean class {classes.mean():.3g}, mean drop {drop_rates.mean():.4g}"
