"""Situation, for the commander: the latest value of every topic and its age, and what each responder receives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from nicegui import ui
from nicegui.events import ValueChangeEventArguments

from triagemq.coordinator.access.tokens import Caller
from triagemq.coordinator.api.policy import PhaseBody, change_phase
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.page.frame import Frame, TemplatePanel
from triagemq.page.values import TopicNow, situation

_EVERYTHING = "everything"
_MOST_ROWS = 200
_MOST_PEOPLE = 25
_NAMED = 3
_THINNED = 0.0005
"""Less than this is nothing."""
_LOOK_EVERY = 3


@dataclass(frozen=True, slots=True)
class Responder:
    """What one subscriber receives of all that it wants; `thinned` are topics of which the plan leaves a part away.

    `most_thinned` are those of them that lose most, with the share that is left away.
    """

    name: str
    topics: int
    wanted_per_second: float
    delivered_per_second: float
    thinned: int
    most_thinned: Sequence[tuple[str, float]]

    @property
    def share(self) -> float | None:
        return (
            min(self.delivered_per_second / self.wanted_per_second, 1.0) if self.wanted_per_second else None
        )


def responders(
    coordinator: ControlPlane, search: str = "", most: int = _MOST_PEOPLE
) -> tuple[list[Responder], int]:
    """By name, of those whose name holds `search` the first, and how many there are in all."""
    decided = coordinator.runtime.decided
    if decided is None:
        return [], 0
    names, topics = decided.scenario.subscribers.name, decided.scenario.topics.name
    found = sorted((name, row) for row, name in enumerate(names) if search.lower() in name.lower())
    facts = coordinator.known_topics()
    rates = np.array([(facts[topic].rate_per_second if topic in facts else None) or 0.0 for topic in topics])
    subscriptions, left_away = decided.scenario.subscriptions, 1.0 - decided.plan.subscription_keep
    topic_of = subscriptions.topic
    people = []
    for name, row in found[:most]:
        own = np.flatnonzero(subscriptions.subscriber == row)
        rate, lost = rates[topic_of[own]], left_away[own]
        figures = (coordinator.watch.figures(name, topics[topic]) for topic in topic_of[own].tolist())
        thinned = own[lost > _THINNED]
        worst = thinned[np.argsort(-(left_away * rates[topic_of])[thinned], kind="stable")][:_NAMED]
        people.append(
            Responder(
                name=name,
                topics=len(own),
                wanted_per_second=float(rate.sum()),
                delivered_per_second=sum(each.delivered_per_second for each in figures if each is not None),
                thinned=len(thinned),
                most_thinned=[(topics[topic_of[each]], float(left_away[each])) for each in worst.tolist()],
            )
        )
    return people, len(found)


def chosen(rows: Sequence[TopicNow], area: str, kind: str, troubled: bool) -> list[TopicNow]:
    """Those of an area and a kind; with `troubled` only what is late or missing."""
    return [
        row
        for row in rows
        if area in (_EVERYTHING, row.area)
        and kind in (_EVERYTHING, row.kind)
        and (not troubled or row.state in ("late", "missing"))
    ]


class PhaseControl:
    """The phase of the incident: operators switch it, viewers see it. Without phases there is nothing."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._now = frame, frame.context.coordinator.policy
        with ui.element("div").classes("controls") as self._place:
            self._select = ui.select([self._now.phase], value=self._now.phase, label="Phase")
            self._select.props("outlined dense").on_value_change(self._switch)

    def refresh(self) -> None:
        """Another operator, or another policy, may have changed it."""
        phases = [*self._now.phases]
        self._place.set_visibility(len(phases) > 1)
        self._select.set_enabled(self._frame.session.may_change)
        if self._select.options != phases or self._select.value != self._now.phase:
            self._select.set_options(phases, value=self._now.phase)

    async def _switch(self, event: ValueChangeEventArguments[Any]) -> None:
        phase = str(event.value)
        if phase == self._now.phase:
            return

        async def change(caller: Caller) -> None:
            await change_phase(PhaseBody(phase=phase), caller, self._frame.context.coordinator)

        await self._frame.changing(change, f"Phase {phase}: the next plan has it")


async def show(frame: Frame) -> None:
    """Filters, the values, and the responders."""
    context, coordinator = frame.context, frame.context.coordinator
    TemplatePanel("situation_head.html", "").show()
    control = PhaseControl(frame)
    with ui.element("div").classes("controls"):
        area = ui.select([_EVERYTHING], value=_EVERYTHING, label="Floor or area").props("outlined dense")
        kind = ui.select([_EVERYTHING], value=_EVERYTHING, label="Kind").props("outlined dense")
        troubled = ui.switch("Only late or missing")
    values = TemplatePanel("situation_values.html")
    with ui.element("div").classes("controls"):
        who = ui.input(placeholder="Search responder").props(
            'outlined dense clearable debounce="250" aria-label="Search responder"'
        )
    people = TemplatePanel("situation_responders.html")

    def refresh_values() -> None:
        context.values.look(context.brokers)
        now = time.time()
        rates = {topic: facts.rate_per_second for topic, facts in coordinator.known_topics().items()}
        since = context.values.since
        rows = situation(context.values.by_topic, rates, now if since is None else since, now)
        for select, names in ((area, {row.area for row in rows}), (kind, {row.kind for row in rows})):
            options = [_EVERYTHING, *sorted(names)]
            if select.options != options:
                select.set_options(options)
        found = chosen(rows, str(area.value), str(kind.value), bool(troubled.value))
        values.show(
            rows=found[:_MOST_ROWS],
            total=len(found),
            late=sum(row.state == "late" for row in rows),
            missing=sum(row.state == "missing" for row in rows),
            known=len(rows),
            problem=context.values.problem,
        )

    def refresh_people() -> None:
        rows, total = responders(coordinator, str(who.value or ""))
        people.show(rows=rows, total=total)

    for each in (area, kind, troubled):
        each.on_value_change(refresh_values)
    who.on_value_change(refresh_people)
    frame.every_second(control.refresh)
    frame.every_second(refresh_values)
    frame.every_second(refresh_people, _LOOK_EVERY)
