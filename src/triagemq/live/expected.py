"""Forecast beside measurement: what the plan of a scenario promises, by the same classes as the figures measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from triagemq.coordinator.decide.decide import PlannerSettings, Situation, decide
from triagemq.forecast import figures_by_class, forecast, summary
from triagemq.plan import Plan
from triagemq.scenario import Integers, Scenario, SendingOrder

__all__ = ["Promise", "as_sent", "promise"]


@dataclass(frozen=True, slots=True, eq=False)
class Promise:
    """The plan that an exchange makes of a whole scenario, and its forecast as `triage forecast --json` has it.

    `level` is the class that triage gives each subscription, also where there is no triage: the same groups, with and
    without. `by_level` are success, latency and flag of these.
    """

    plan: Plan
    level: Integers
    figures: dict[str, Any]
    by_level: list[dict[str, Any]]


def promise(scenario: Scenario, settings: PlannerSettings, triage: PlannerSettings) -> Promise:
    """What `settings` promise, by the classes of `triage`.

    >>> from triagemq.scenario.generators import building
    >>> settings = PlannerSettings()
    >>> made = promise(building(), settings, settings)
    >>> made.by_level[0]["success_rate"] > made.by_level[-1]["success_rate"]
    True
    """
    plan = decide(Situation(scenario, settings=settings)).plan
    level = plan.subscription_class
    if triage != settings:
        level = decide(Situation(scenario, settings=triage)).plan.subscription_class
    predicted = forecast(*as_sent(scenario, plan))
    return Promise(
        plan=plan,
        level=level,
        figures=summary(scenario, plan, predicted),
        by_level=figures_by_class(predicted, level),
    )


def as_sent(scenario: Scenario, plan: Plan) -> tuple[Scenario, Plan]:
    """A scenario and its plan as an exchange carries them out: copies of one event leave the gateway by class, whatever
    order the scenario states for others."""
    sent = replace(scenario, sending_order=SendingOrder.BY_CLASS)
    return sent, replace(plan, scenario_fingerprint=sent.fingerprint)
