"""Situation, for whoever commands: the latest value of every topic and its age, and what each responder receives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from nicegui import ui

from triagemq.coordinator.coordinator import Coordinator
from triagemq.coordinator.subscriptions import subscription_page
from triagemq.dashboard.frame import Frame, update
from triagemq.dashboard.showing import shown
from triagemq.dashboard.values import TopicNow, situation

_EVERYTHING = "everything"
_MOST_ROWS = 200
_MOST_TAKEN = 1_000
_LOOK_EVERY = 3


@dataclass(slots=True)
class Responder:
    """What one subscriber receives of all that it wants; thinned out is what plan and buffers leave away."""

    name: str
    topics: int = 0
    wanted_per_second: float = 0.0
    delivered_per_second: float = 0.0
    thinned: int = 0

    @property
    def share(self) -> float | None:
        return (
            min(self.delivered_per_second / self.wanted_per_second, 1.0) if self.wanted_per_second else None
        )


async def responders(here: Coordinator, most: int = _MOST_TAKEN) -> list[Responder]:
    """By name, of the first subscriptions in the order of subscribers."""
    if here.runtime.decided is None:
        return []
    page = await subscription_page(here, here.runtime.decided, order="subscriber", limit=most)
    rates = {topic: facts.rate_per_second for topic, facts in here.known_topics().items()}
    found: dict[str, Responder] = {}
    for row in page.subscriptions:
        each = found.setdefault(row.subscriber, Responder(row.subscriber))
        each.topics += 1
        each.thinned += row.drop_rate > 0.0005
        each.wanted_per_second += rates.get(row.topic) or 0.0
        each.delivered_per_second += 0.0 if row.measured is None else row.measured.delivered_per_second
    return list(found.values())


def chosen(rows: Sequence[TopicNow], area: str, kind: str, troubled: bool) -> list[TopicNow]:
    """Those of an area and a kind; with `troubled` only what is late or missing."""
    return [
        row
        for row in rows
        if area in (_EVERYTHING, row.area)
        and kind in (_EVERYTHING, row.kind)
        and (not troubled or row.state in ("late", "missing"))
    ]


async def show(frame: Frame) -> None:
    """Filters, the values, and the responders."""
    desk, here = frame.desk, frame.desk.here
    frame.panel("", shown("situation_head.html"))
    with ui.element("div").classes("controls"):
        area = ui.select([_EVERYTHING], value=_EVERYTHING, label="Floor or area").props("outlined dense")
        kind = ui.select([_EVERYTHING], value=_EVERYTHING, label="Kind").props("outlined dense")
        troubled = ui.switch("Only late or missing")
    values = frame.panel("panel")
    people = frame.panel("panel")
    seconds = 0

    def refresh_values() -> None:
        desk.values.look(desk.brokers)
        now = time.time()
        rates = {topic: facts.rate_per_second for topic, facts in here.known_topics().items()}
        since = desk.values.since
        rows = situation(desk.values.by_topic, rates, now if since is None else since, now)
        for select, names in ((area, {row.area for row in rows}), (kind, {row.kind for row in rows})):
            options = [_EVERYTHING, *sorted(names)]
            if select.options != options:
                select.set_options(options)
        found = chosen(rows, str(area.value), str(kind.value), bool(troubled.value))
        update(
            values,
            shown(
                "situation_values.html",
                rows=found[:_MOST_ROWS],
                total=len(found),
                late=sum(row.state == "late" for row in rows),
                missing=sum(row.state == "missing" for row in rows),
                known=len(rows),
                problem=desk.values.problem,
            ),
        )

    async def refresh() -> None:
        nonlocal seconds
        refresh_values()
        if seconds % _LOOK_EVERY == 0:
            update(people, shown("situation_responders.html", rows=await responders(here)))
        seconds += 1

    for each in (area, kind, troubled):
        each.on_value_change(refresh_values)
    frame.every_second(refresh)
