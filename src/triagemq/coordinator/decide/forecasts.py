"""Forecasts on request: of the plan there is (once per plan), and of what would be. In a thread, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Question, decide
from triagemq.coordinator.refusals import UnavailableError
from triagemq.forecast import Forecast, forecast, subscription_rows, summary
from triagemq.scenario import Scenario

_MOST_WAITING = 16
_Result = TypeVar("_Result")


class Forecasts:
    """One at a time, because each may take a core for seconds; too many that wait are refused."""

    def __init__(self, settings: PlannerSettings) -> None:
        self.settings = settings
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._known: tuple[Decided, Forecast, dict[str, Any]] | None = None
        self._untriaged: tuple[Decided, dict[str, Any]] | None = None

    async def of(self, decided: Decided) -> dict[str, Any]:
        """The figures of a plan, as `triage forecast --json` gives them."""
        if self._known is None or self._known[0] is not decided:
            predicted, figures = await self.computed(lambda: _predicted(decided))
            self._known = (decided, predicted, figures)
        return self._known[2]

    def predicted(self, decided: Decided) -> Forecast | None:
        """The forecast of a plan row by row, if its figures were asked for already."""
        return None if self._known is None or self._known[0] is not decided else self._known[1]

    async def without_triage(self, decided: Decided) -> dict[str, Any]:
        """The figures of the same scenario in a plain exchange: one class, and only full buffers drop."""
        if self._untriaged is None or self._untriaged[0] is not decided:
            plain = replace(PlannerSettings.no_triage(), no_promises=self.settings.no_promises)
            figures = await self.computed(
                lambda: _predicted(decide(Question(decided.scenario, settings=plain)))[1]
            )
            self._untriaged = (decided, figures)
        return self._untriaged[1]

    async def in_full(self, decided: Decided) -> dict[str, Any]:
        """A row for every subscription, as `triage forecast --json --full` gives them."""
        scenario, plan = decided.scenario, decided.plan
        return await self.computed(
            lambda: {
                "subscriptions": subscription_rows(scenario, plan, forecast(scenario, plan, formulas=True))
            }
        )

    async def of_scenario(self, make: Callable[[], Scenario], drops: str | None = None) -> dict[str, Any]:
        """The figures of a scenario planned from nothing, with the algorithms there are or other drops."""
        settings = self.settings if drops is None else replace(self.settings, drops=drops)
        return await self.computed(lambda: _predicted(decide(Question(make(), settings=settings)))[1])

    def latest(self) -> dict[str, Any] | None:
        """The last figures computed, whatever plan they are of."""
        return None if self._known is None else self._known[2]

    async def computed(self, work: Callable[[], _Result]) -> _Result:
        if self._waiting >= _MOST_WAITING:
            raise UnavailableError("too many forecasts are being asked for; try again in a moment")
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1


def _predicted(decided: Decided) -> tuple[Forecast, dict[str, Any]]:
    predicted = forecast(decided.scenario, decided.plan, formulas=True)
    return predicted, summary(decided.scenario, decided.plan, predicted)
