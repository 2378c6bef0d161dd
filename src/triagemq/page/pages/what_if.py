"""What if: bandwidths, rates, subscribers and the drop policy as they might be; the forecast, and the present one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from triagemq.coordinator.access.tokens import Caller, Role
from triagemq.coordinator.api.views import (
    PlannerBody,
    PortBody,
    WhatIfRequest,
    change_planner,
    change_port,
    what_if,
)
from triagemq.coordinator.decide.decide import Decided
from triagemq.errors import TriageError
from triagemq.page.frame import Frame, TemplatePanel, wide
from triagemq.pipeline.report.formatting import bit_rate
from triagemq.plan.drops import DROP_POLICIES

_MOST_SLIDERS = 12
_POLICIES = {
    "optimal": "optimal: what is worth least per bit",
    "exponential": "exponential: later classes much more",
    "linear": "linear: later classes more",
    "flat": "flat: all classes alike",
    "none": "none: only full buffers drop",
}


class _Supposed:
    """The suppositions of one session, and what would come of it."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._coordinator = frame.context.coordinator
        self._requests = 0
        self._forecast_words = ""
        self._supposed_of: Decided | None = None
        self._labels: list[Callable[[], None]] = []
        self._present = dict(list(self._coordinator.runtime.bandwidths.items())[:_MOST_SLIDERS])
        TemplatePanel("what_if_head.html", "").show()
        self._queue_rates: dict[str, ui.slider] = {}
        with ui.element("div").classes("panel"), ui.element("div").classes("fields"):
            for name in self._present:
                self._queue_rates[name] = self._slider(
                    f"Bandwidth of {name}", lambda factor, name=name: bit_rate(self._present[name] * factor)
                )
            self._rates = self._slider("Publication rates", lambda factor: f"{factor:.2g} × as now")
            self._subscribers = self._slider("Number of subscribers", lambda factor: f"{factor:.2g} × as now")
            with ui.element("div"):
                policies = {name: _POLICIES.get(name, name) for name in DROP_POLICIES}
                self._drops = wide(
                    ui.select(policies, value=self._policy_now(), label="Drop policy", on_change=self.suppose)
                )
        with ui.element("div").classes("controls"):
            if frame.session.may_change:
                ui.button("Apply", icon="check", on_click=self._apply).props(
                    "unelevated text-color=on-series"
                ).classes("apply")
            ui.button("As it is", icon="undo", on_click=self._reset).props("flat")
            ui.label("Bandwidths and the drop policy can be applied; rates and subscribers cannot.").classes(
                "quiet small"
            )
        self._answer = TemplatePanel("what_if_answer.html")

    def _slider(self, title: str, words: Any) -> ui.slider:
        """From a quarter to four times, in powers of two."""
        with ui.element("div"):
            with ui.element("div").style("display:flex;justify-content:space-between"):
                ui.label(title)
                figure = ui.label(words(1.0)).classes("quiet")
            slider = ui.slider(min=-2.0, max=2.0, step=0.1, value=0.0).props(f'aria-label="{title}"')

            def update_label() -> None:
                figure.set_text(words(2.0**slider.value))

            slider.on_value_change(update_label)
            self._labels.append(update_label)
            slider.on("change", self.suppose)
        return slider

    def _policy_now(self) -> str | None:
        drops = self._coordinator.forecasts.settings.drops
        return drops if drops in DROP_POLICIES else None

    def _request(self) -> WhatIfRequest:
        bandwidths = {
            name: self._present[name] * 2.0**slider.value
            for name, slider in self._queue_rates.items()
            if slider.value
        }
        factor, subscribers = 2.0**self._rates.value, 2.0**self._subscribers.value
        return WhatIfRequest(
            bandwidths_bps=bandwidths,
            rate_factors={} if factor == 1 else {"#": factor},
            subscribers_factor=subscribers,
            drops=self._drops.value,
        )

    async def suppose(self) -> None:
        """Ask for the forecast; an answer to an older question is not shown."""
        self._requests += 1
        number, begun = self._requests, time.perf_counter()
        self._supposed_of = self._coordinator.runtime.decided
        problem, answer = "", None
        try:
            caller = self._frame.session.caller
            caller.require(Role.OPERATOR)
            answer = await what_if(self._request(), caller, self._coordinator)
        except TriageError as error:
            problem = str(error)
        if number == self._requests:
            self._forecast_words = "" if answer is None else _forecast_words(answer)
            figures = answer or {"before": None, "after": None}
            self._answer.show(**figures, problem=problem, seconds=time.perf_counter() - begun)

    async def _reset(self) -> None:
        for slider in (*self._queue_rates.values(), self._rates, self._subscribers):
            slider.set_value(0.0)
        self._drops.set_value(self._policy_now())
        await self.suppose()

    async def _apply(self) -> None:
        reason = f"applied{self._forecast_words}"

        async def change(caller: Caller) -> None:
            for name, width in self._request().bandwidths_bps.items():
                await change_port(
                    name, PortBody(bandwidth_bps=width, reason=reason), caller, self._coordinator
                )
            if self._drops.value is not None and self._drops.value != self._policy_now():
                await change_planner(
                    PlannerBody(drops=self._drops.value, reason=reason), caller, self._coordinator
                )

        if await self._frame.changing(change, "Applied: the next plan has it"):
            self._follow_bandwidths()
            await self._reset()

    async def refresh(self) -> None:
        """A new plan changes what is and what would be; so does a bandwidth that another operator has applied."""
        self._follow_bandwidths()
        if self._requests and self._coordinator.runtime.decided is not self._supposed_of:
            await self.suppose()

    def _follow_bandwidths(self) -> None:
        self._present = {name: self._coordinator.runtime.bandwidths[name] for name in self._present}
        for update_label in self._labels:
            update_label()


def _forecast_words(answer: Mapping[str, Any]) -> str:
    """What was forecast at the decision, for the record."""
    rates = [each["utility"]["rate"] for each in (answer["before"], answer["after"])]
    now, supposed = ("nothing" if rate is None else f"{rate:.1%}" for rate in rates)
    return f" with a forecast of {supposed} of the maximum utility in place of {now}"


async def show(frame: Frame) -> None:
    """Sliders, and the forecast."""
    supposed = _Supposed(frame)
    # The page is there before its first answer.
    ui.timer(0.0, supposed.suppose, once=True)
    frame.every_second(supposed.refresh)
