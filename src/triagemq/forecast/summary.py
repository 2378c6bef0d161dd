"""A forecast in few figures: per port, per class and in utility. Aggregates as theory.md section 1 defines them.

And of one subscription in words: why a plan treats it as it does, and what that comes to (`explanation`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.model import CLAIMED, REASONS, Forecast, Reason
from triagemq.forecast.prediction import forecast
from triagemq.plain import plain
from triagemq.plan.admission.planning import promise_rows
from triagemq.plan.demands import demand, minimum_shares, total_by
from triagemq.plan.drops.minima import SHORT
from triagemq.plan.explaining import explain, subscription_row, why_short
from triagemq.plan.model import Plan
from triagemq.scenario import Floats, Integers, Scenario, deadline_figures, port_paths
from triagemq.theory import mixture_percentile, percentile

NEGLIGIBLE_SHARE = 1e-9
"""A class's latency is unknown as soon as more than this share of what it delivers has no known latency."""

PERCENTILES = {"p95_seconds": 0.95, "p99_seconds": 0.99}
"""Latencies that this share does not exceed, by the names that the simulation has for them."""

EXAMPLES = 3
"""Topics that are named for each class."""
_LOOKED_AT = 100
_NOTHING = 1e-3
"""A subscription of which less than this share arrives gets nothing."""


def port_loads(scenario: Scenario, plan: Plan) -> list[dict[str, Any]]:
    """What every port is offered, what it has to carry by the plan, and the queue rates of its queues if they have
    some."""
    ports = scenario.ports
    return [
        {"port": name, "rho_offered": float(offered), "rho_planned": float(planned)}
        | (
            {"queue_rates_bps": queue_rates.tolist(), "borrowing": bool(borrowing)}
            if len(queue_rates)
            else {}
        )
        for name, offered, planned, queue_rates, borrowing in zip(
            ports.name,
            plan.ports.rho_offered,
            plan.ports.rho_planned,
            ports.queue_rates_bps,
            ports.borrowing,
            strict=True,
        )
    ]


def summary(scenario: Scenario, plan: Plan, predicted: Forecast) -> dict[str, Any]:
    """What `triage plan` and `triage forecast` print: ports, classes, utility, and what is approximate."""
    return {
        "scenario": scenario.name,
        "ports": port_loads(scenario, plan),
        "promises": promise_rows(scenario, plan),
        "classes": _classes(scenario, plan, predicted),
        "utility": utility_figures(predicted.utility, predicted.maximum_utility),
        "deadlines": deadline_figures(scenario.subscriptions, predicted.share_within),
        "starved": starved(scenario, plan, predicted),
        "approximations": list(predicted.approximations),
        "basis": predicted.basis,
        "decisions": [asdict(decision) for decision in plan.decisions],
    }


def starved(scenario: Scenario, plan: Plan, predicted: Forecast | None = None) -> list[dict[str, Any]]:
    """The subscriptions that get nothing of what is published, or less than their minimum, by the plan or by its
    forecast; worth most first, each with the reason.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.building import building
    >>> scenario = building()
    >>> starved(scenario, make_plan(scenario, drops="none"))
    []
    """
    demanded, wanted = demand(scenario), scenario.subscriptions
    minimum = np.where(plan.promised, 0.0, minimum_shares(scenario, demanded))
    share = plan.subscription_keep * np.where(plan.promised, 1.0, demanded.ideal_success)
    short = (share < _NOTHING) | (share < minimum * SHORT)
    planned = ~short
    if predicted is not None:
        share = np.minimum(share, predicted.success)
        # A newer event is as good as one that gave its place to it: the plan says whether they get their minimum.
        due = np.where(wanted.newest_only > 0, 0.0, minimum * (1 - CLAIMED))
        short |= (share < _NOTHING) | (share < due)
    rows = np.flatnonzero(short & (demanded.load_bytes_per_second > 0))
    path, beside_minima = port_paths(scenario)[demanded.port], bool((minimum > 0).any())
    return [
        {
            "subscriber": scenario.subscribers.name[wanted.subscriber[row]],
            "topic": scenario.topics.name[wanted.topic[row]],
            "weight": float(wanted.utility_weight[row]),
            "share": float(share[row]),
            "min_share": float(minimum[row]),
            "reason": "a queue on the way is too long, by the forecast"
            if planned[row]
            else why_short(
                scenario,
                plan,
                path[row],
                row,
                float(demanded.ideal_success[row]),
                float(minimum[row]),
                beside_minima=beside_minima,
            ),
        }
        for row in rows[np.argsort(-wanted.utility_weight[rows], kind="stable")].tolist()
    ]


def subscription_rows(
    scenario: Scenario, plan: Plan, predicted: Forecast, rows: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """One row per subscription, for `triage forecast --full`; or only these rows."""
    subscriptions = scenario.subscriptions
    chosen = np.arange(len(subscriptions)) if rows is None else np.asarray(rows, dtype=np.int64)
    few = predicted if rows is None else predicted.of(chosen)
    percentiles = {name: few.percentile_seconds(share) for name, share in PERCENTILES.items()}
    return [
        {
            "subscriber": scenario.subscribers.name[subscriptions.subscriber[row]],
            "topic": scenario.topics.name[subscriptions.topic[row]],
            "flow": int(plan.flow[row]),
            "priority_class": int(plan.subscription_class[row]),
            "drop_rate": float(1.0 - plan.subscription_keep[row]),
            "success_rate": float(predicted.success[row]),
            "mean_latency_seconds": plain(predicted.latency_seconds[row]),
            **{name: plain(column[place]) for name, column in percentiles.items()},
            "max_latency_seconds": plain(subscriptions.max_latency_seconds[row]),
            "max_latency_share": float(subscriptions.max_latency_share[row]) or None,
            "share_within_max_latency": plain(predicted.share_within[row]),
            "utility": float(predicted.utility[row]),
            "maximum_utility": float(predicted.maximum_utility[row]),
            "sampled": bool(predicted.sampled[row]),
            "flag": REASONS[predicted.reason[row]] or None,
            "latency_error": float(predicted.latency_error[row]),
            "success_error": float(predicted.success_error[row]),
        }
        for place, row in enumerate(chosen.tolist())
    ]


def utility_figures(achieved: Floats, maximum: Floats) -> dict[str, float | None]:
    """Sum achieved over sum maximum, and the papers' mean of the ratios."""
    wanted = maximum > 0
    return {
        "achieved": float(achieved.sum()),
        "maximum": float(maximum.sum()),
        "rate": float(achieved.sum() / maximum.sum()) if wanted.any() else None,
        "rate_mean": float((achieved[wanted] / maximum[wanted]).mean()) if wanted.any() else None,
    }


def figures_by_class(predicted: Forecast, level: Integers) -> list[dict[str, Any]]:
    """Success, latency and flag of each group of subscriptions that have the same `level`: a plan's classes, or others.

    Runs with and without triage are compared by the classes that triage gives, whatever plan the forecast is of.
    """
    count = int(level.max(initial=0)) + 1

    def total(values: Floats) -> Floats:
        return total_by(level, values, count)

    received, published = total(predicted.received_rate), total(predicted.published_rate)
    known = np.isfinite(predicted.latency_seconds)
    known_rate = total(np.where(known, predicted.received_rate, 0.0))
    waited = np.where(known, predicted.received_rate * predicted.latency_seconds, 0.0)
    seconds = total(waited)
    doubtful, lost = (
        total(waited * predicted.latency_error),
        total(predicted.received_rate * predicted.success_error),
    )
    flagged, sampled = (total(each.astype(np.float64)) for each in (predicted.reason > 0, predicted.sampled))
    rows = []
    for each in np.unique(level):
        mostly_known = received[each] > 0 and known_rate[each] >= (1 - NEGLIGIBLE_SHARE) * received[each]
        rows.append(
            {
                "priority_class": int(each),
                "success_rate": float(received[each] / published[each]) if published[each] > 0 else None,
                "mean_latency_seconds": float(seconds[each] / known_rate[each]) if mostly_known else None,
                **_percentiles(predicted, (level == each) & known, known=mostly_known),
                "sampled": int(sampled[each]),
                "flagged": int(flagged[each]),
                "flag": _commonest_reason(predicted, level == each),
                "latency_error": float(doubtful[each] / seconds[each]) if seconds[each] > 0 else 0.0,
                "success_error": float(lost[each] / received[each]) if received[each] > 0 else 0.0,
            }
        )
    return rows


def _classes(scenario: Scenario, plan: Plan, predicted: Forecast) -> list[dict[str, Any]]:
    """The figures of a plan's own classes, with what the plan does to them; what is promised is in none of them."""
    rows = np.flatnonzero(plan.flow >= 0)
    level = plan.subscription_class[rows]
    count = int(plan.flows.priority_class.max(initial=0)) + 1
    load = demand(scenario).load_bytes_per_second[rows]
    offered, planned = (total_by(level, each, count) for each in (load, load * plan.subscription_keep[rows]))
    flows = np.bincount(plan.flows.priority_class, minlength=count)
    members = np.bincount(level, minlength=count)
    return [
        {
            "priority_class": each,
            "flows": int(flows[each]),
            "subscriptions": int(members[each]),
            **row,
            "drop_rate": float(1 - planned[each] / offered[each]) if offered[each] > 0 else 0.0,
            "example_topics": _example_topics(scenario, plan, each),
        }
        for row in figures_by_class(predicted.of(rows), level)
        for each in [row["priority_class"]]
    ]


def _commonest_reason(predicted: Forecast, members: NDArray[np.bool_]) -> str | None:
    """What makes most of the flagged subscriptions of a class approximate, in words."""
    named = np.bincount(predicted.reason[members], minlength=1)
    named[0] = 0
    return REASONS[int(named.argmax())] or None


def _percentiles(predicted: Forecast, rows: NDArray[np.bool_], *, known: bool) -> dict[str, float | None]:
    """Of everything that a class delivers: the mixture of its subscriptions, by what each receives."""
    if not known:
        return dict.fromkeys(PERCENTILES)
    received, times = predicted.received_rate[rows], predicted.times[rows]
    return {name: plain(mixture_percentile(times, received, share)) for name, share in PERCENTILES.items()}


def _example_topics(scenario: Scenario, plan: Plan, level: int) -> list[str]:
    """The topics of a class that rank highest, each once."""
    rows = np.flatnonzero((plan.subscription_class == level) & (plan.flow >= 0))
    order = rows[np.argsort(-plan.rank[rows], kind="stable")][:_LOOKED_AT]
    return list(dict.fromkeys(scenario.topics.name[topic] for topic in scenario.subscriptions.topic[order]))[
        :EXAMPLES
    ]


def explanation(
    scenario: Scenario, plan: Plan, subscriber: str, topic: str, predicted: Forecast | None = None
) -> dict[str, Any]:
    """One subscription, as `triage plan --explain --json` and REST have it: words and figures.

    `explanation` is what `plan.explain` says and a line on what the subscription will get, how late it comes and how
    sure that is; `forecast` its row of `triage forecast --json --full`. Both are of `predicted`, or else of formulas.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.building import building
    >>> scenario = building()
    >>> wanted = scenario.subscriptions
    >>> who, what = scenario.subscribers.name[wanted.subscriber[0]], scenario.topics.name[wanted.topic[0]]
    >>> explanation(scenario, make_plan(scenario), who, what)["explanation"].splitlines()[-1].split(":")[0]
    'Forecast'
    """
    words = explain(scenario, plan, subscriber, topic)
    row = subscription_row(scenario, subscriber, topic)
    predicted = predicted or forecast(scenario, plan, formulas=True)
    return {
        "subscriber": subscriber,
        "topic": topic,
        "explanation": f"{words}\nForecast: {_foreseen(scenario, predicted, row)}",
        "forecast": subscription_rows(scenario, plan, predicted, [row])[0],
    }


def _foreseen(scenario: Scenario, predicted: Forecast, row: int) -> str:
    if predicted.reason[row] == Reason.PROMISED:
        return f"{predicted.success[row]:.2%} of all arrive, none later than {predicted.latency_seconds[row]:.4g} s."
    mean = float(predicted.latency_seconds[row])
    if predicted.received_rate[row] <= 0:
        return "nothing arrives."
    arriving = f"{predicted.success[row]:.2%} of all arrive"
    if not math.isfinite(mean):
        return f"{arriving}, later and later: a queue on the way is overloaded."
    times = predicted.times[[row]]
    p95, p99 = (float(percentile(times, share)[0]) for share in (0.95, 0.99))
    errors = [REASONS[int(predicted.reason[row])]]
    errors += [
        f"{name} ± {error[row]:.0%}"
        for name, error in (("latency", predicted.latency_error), ("success", predicted.success_error))
        if error[row] > 0
    ]
    sure = f"; approximate: {', '.join(errors)}" if errors[0] else ""
    sure += "; from a sample of events, since no formula is known" if predicted.sampled[row] else ""
    tail = f"95 % of them within {p95:.3g} s and 99 % within {p99:.3g} s"
    return f"{arriving}, after {mean:.3g} s in the mean, {tail}{_deadline(scenario, predicted, row)}{sure}."


def _deadline(scenario: Scenario, predicted: Forecast, row: int) -> str:
    """How much comes in time of a subscription that requires a share within a latency."""
    required, limit = (
        float(column[row])
        for column in (scenario.subscriptions.max_latency_share, scenario.subscriptions.max_latency_seconds)
    )
    if required <= 0:
        return ""
    got = float(predicted.share_within[row])
    met = "as requested" if got >= required else f"where {required:.4g} is requested"
    return f"; {got:.1%} within {limit:.6g} s, {met}"
