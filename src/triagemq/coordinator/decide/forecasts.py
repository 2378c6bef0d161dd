"""Forecasts on request: of the plan there is (once per plan), and of what would be. In a thread, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Question, decide
from triagemq.coordinator.refusals import UnavailableError
from triagemq.forecast import forecast, subscription_rows, summary
from triagemq.scenario import Scenario

_MOST_WAITING = 16


class Forecasts:
    """One at a time, because each may take a core for seconds; too many that wait are refused."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._known: tuple[Decided, dict[str, Any]] | None = None

    async def of(self, decided: Decided) -> dict[str, Any]:
        """The figures of a plan, as `triage forecast --json` gives them."""
        if self._known is None or self._known[0] is not decided:
            figures = await self.computed(lambda: _figures(decided))
            self._known = (decided, figures)
        return self._known[1]

    async def in_full(self, decided: Decided) -> dict[str, Any]:
        """A row for every subscription, as `triage forecast --json --full` gives them."""
        scenario, plan = decided.scenario, decided.plan
        return await self.computed(
            lambda: {"subscriptions": subscription_rows(scenario, plan, forecast(scenario, plan))}
        )

    async def of_scenario(self, make: Callable[[], Scenario]) -> dict[str, Any]:
        """The figures of a scenario planned from nothing, with the algorithms of this exchange."""
        return await self.computed(lambda: _figures(decide(Question(make(), settings=self._settings))))

    def latest(self) -> dict[str, Any] | None:
        """The last figures computed, whatever plan they are of."""
        return None if self._known is None else self._known[1]

    async def computed(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self._waiting >= _MOST_WAITING:
            raise UnavailableError("too many forecasts are being asked for; try again in a moment")
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1


def _figures(decided: Decided) -> dict[str, Any]:
    return summary(decided.scenario, decided.plan, forecast(decided.scenario, decided.plan))
