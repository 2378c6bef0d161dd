"""Subscriptions: searched, sorted, page by page; made, changed and ended; and why each is treated as it is."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any, get_args

from nicegui import ui

from triagemq.coordinator.access.tokens import Caller
from triagemq.coordinator.api.views import why
from triagemq.coordinator.decide.decide import Decided
from triagemq.coordinator.refusals import MissingError
from triagemq.coordinator.subscriptions import Order, SubscriptionPage, subscription_page
from triagemq.errors import ParameterError
from triagemq.forecast import explanation
from triagemq.intents import SUBSCRIBER, SubscriberIntent, Utility, Wanted
from triagemq.page.frame import Frame, update
from triagemq.page.rendering import render
from triagemq.plan import Decision

_ROWS = 20
_SOON_SECONDS = 0.25
_SOON_TIMES = 24
"""How often the table is written anew after a change, and how many times."""
_SHOWN_NEWS = 6
_SHAPES = {"log": "log: the first share counts most", "linear": "linear: each counts the same"}
_HIGHEST_WORTH = 1_000.0
_CLICKED = """(event) => {
    const found = event.target.closest('[data-do]');
    if (found) emit(found.dataset.do, found.dataset.first || '', found.dataset.second || '');
}"""


class _Table:
    """The table of one session: its search, in which order, and which page it looks at."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._context = frame.context
        self._search, self._order, self._descending, self._offset = "", "rank", False, 0
        self._marked: tuple[str, str] | None = None
        # Since this number of a decision something may have changed because of this session.
        self._changed_after: int | None = None
        frame.panel("", render("subscriptions_head.html"))
        with ui.element("div").classes("controls"):
            ui.input(placeholder="Search subscriber or topic", on_change=self._searched).props(
                'outlined dense clearable debounce="250" aria-label="Search"'
            ).classes("search")
            if frame.session.may_change:
                ui.button("Subscribe", icon="add", on_click=self._subscribe_dialog).props(
                    "unelevated text-color=on-series"
                )
        self._news = frame.panel("")
        self._table = frame.panel("panel")
        self._table.on("click", self._clicked, js_handler=_CLICKED)
        self._soon_left = 0
        self._soon = ui.timer(_SOON_SECONDS, self._refresh_soon, active=False)
        frame.every_second(self.refresh)

    # What is shown.

    async def refresh(self) -> None:
        decided = self._context.coordinator.runtime.decided
        page = SubscriptionPage(0, 0, [])
        if decided is not None:
            page = await subscription_page(
                self._context.coordinator,
                decided,
                search=self._search,
                order=self._order,  # type: ignore[arg-type]
                descending=self._descending,
                offset=self._offset,
                limit=_ROWS,
            )
        update(
            self._table,
            render(
                "subscriptions_table.html",
                page=page,
                order=self._order,
                descending=self._descending,
                offset=self._offset,
                rows=_ROWS,
                marked=self._marked,
                may_change=self._frame.session.may_change,
            ),
        )
        update(self._news, render("subscriptions_news.html", news=self._decided_since()))

    def _decided_since(self) -> list[Decision]:
        """What was decided because of changes in this session."""
        now = self._context.readings.latest
        if self._changed_after is None or now is None:
            return []
        since = [row.decision for row in now.decisions if row.number > self._changed_after]
        # What it means for people comes first, and and the session's own subscriptions before that.
        name = "" if self._marked is None else self._marked[0]
        since.sort(key=lambda row: (not row.subject.startswith(name), row.kind != "treated_differently"))
        return since[:_SHOWN_NEWS]

    async def _searched(self, event: Any) -> None:
        self._search, self._offset = event.value or "", 0
        await self.refresh()

    async def _clicked(self, event: Any) -> None:
        what, first, second = event.args
        match what:
            case "sort" if first in get_args(Order):
                self._descending = not self._descending if self._order == first else False
                self._order, self._offset = first, 0
                await self.refresh()
            case "page":
                self._offset = max(0, int(first))
                await self.refresh()
            case "why":
                await self._why(first, second)
            case "worth":
                self._worth_dialog(first, second)
            case "end":
                await self._end(first, second)

    async def _why(self, subscriber: str, topic: str) -> None:
        decided = self._decided()
        try:
            found = await asyncio.to_thread(explanation, decided.scenario, decided.plan, subscriber, topic)
        except ParameterError as error:
            ui.notify(str(error), type="warning")
            return
        with ui.dialog() as dialog, ui.card():
            ui.html(render("why.html", **found), sanitize=False)
            ui.button("Close", on_click=dialog.close).props("flat")
        dialog.on("hide", dialog.delete)
        dialog.open()

    # What is changed.

    def _decided(self) -> Decided:
        decided = self._context.coordinator.runtime.decided
        if decided is None:
            raise MissingError("nothing has been planned yet; try again in a moment")
        return decided

    def _intent(self, subscriber: str) -> SubscriberIntent:
        record = self._context.coordinator.service.registry.get((SUBSCRIBER, subscriber))
        if record is None or not isinstance(record.intent, SubscriberIntent):
            raise MissingError(f"there is no subscriber {subscriber!r} any more")
        return record.intent

    async def _change(self, change: Any, done: str) -> bool:
        decisions = () if self._context.readings.latest is None else self._context.readings.latest.decisions
        before = decisions[-1].number if decisions else 0
        if not await self._frame.changing(change, done):
            return False
        self._changed_after = before
        self._soon_left = _SOON_TIMES
        self._soon.activate()
        return True

    async def _refresh_soon(self) -> None:
        """What comes of a change is shown as soon as it is known, and not only once a second."""
        self._soon_left -= 1
        if self._soon_left <= 0:
            self._soon.deactivate()
        await self.refresh()

    def _worth_dialog(self, subscriber: str, topic: str) -> None:
        try:
            wanted = self._intent(subscriber).wanting(topic)
        except MissingError as error:
            ui.notify(str(error), type="warning")
            return
        weight = 1.0 if wanted is None else wanted.utility.weight

        async def change(caller: Caller) -> None:
            await self._set_worth(caller, subscriber, topic, _worth_at(slider.value))

        async def moved() -> None:
            """The change is made while the slider moves: what comes of it is seen at once."""
            self._marked = subscriber, topic
            await self._change(change, f"{subscriber}: {topic} is worth {_worth_at(slider.value):g} now")
            await self.refresh()

        with (
            ui.dialog().props("position=bottom seamless") as dialog,
            ui.card().style("width:min(640px,94vw)"),
        ):
            ui.label(f"What {topic} is worth to {subscriber}").style("font-weight:600")
            with ui.row().style("width:100%;align-items:center;flex-wrap:nowrap"):
                slider = (
                    ui.slider(
                        min=-1.0,
                        max=math.log10(_HIGHEST_WORTH),
                        step=0.05,
                        value=math.log10(max(weight, 0.1)),
                    )
                    .on("change", moved)
                    .props('aria-label="worth"')
                )
                figure = ui.label(f"{weight:g}").style("min-width:4em;text-align:right")
                slider.on_value_change(lambda event: figure.set_text(f"{_worth_at(event.value):g}"))
            ui.button("Done", on_click=dialog.close).props("flat")
        dialog.on("hide", dialog.delete)
        dialog.open()

    async def _set_worth(self, caller: Caller, subscriber: str, topic: str, weight: float) -> None:
        """For this topic alone, also where it is one of a pattern."""
        intent = self._intent(subscriber)
        wanted = intent.wanting(topic) or Wanted(topic)
        utility = replace(wanted.utility, weight=weight)
        if subscriber in self._context.subscribers:
            await self._subscribe_page(subscriber, wanted.topic, utility)
        else:
            changed = replace(wanted, topic=topic, utility=utility)
            await self._context.coordinator.service.change(caller, [intent.with_wanted(changed)])
        self._note(caller, "worth", f"{subscriber} {topic}", f"{wanted.utility.weight:g}", f"{weight:g}")

    def _note(self, caller: Caller, kind: str, subject: str, before: str, after: str) -> None:
        """Record who changed what on the page."""
        self._context.coordinator.runtime.note(
            [Decision(kind, subject, before, after, why(caller, "on the page"))]
        )

    async def _subscribe_page(self, name: str, topic: str, utility: Utility, port: str | None = None) -> None:
        if self._frame.port is None:
            raise ParameterError("subscribe", "the page cannot reach its own coordinator over a Unix socket")
        await self._context.subscribers.subscribe(
            name,
            topic,
            f"{utility.shape}:{utility.weight:g}",
            address=self._context.subscribers.own_address(self._frame.port),
            token=self._frame.session.secret,
            port=port,
        )

    async def _end(self, subscriber: str, topic: str) -> None:
        async def change(caller: Caller) -> None:
            intent = self._intent(subscriber)
            wanted = intent.wanting(topic)
            if wanted is None:
                raise MissingError(f"{subscriber} does not want {topic} any more")
            if subscriber in self._context.subscribers:
                await self._context.subscribers.unsubscribe(subscriber, wanted.topic)
            elif len(intent.subscriptions) == 1:
                await self._context.coordinator.service.change(caller, withdraw=[(SUBSCRIBER, subscriber)])
            else:
                await self._context.coordinator.service.change(caller, [intent.without(wanted.topic)])
            self._note(caller, "ended", f"{subscriber} {wanted.topic}", f"{wanted.utility.weight:g}", "")

        await self._change(change, f"{subscriber} does not want {topic} any more")
        await self.refresh()

    def _subscribe_dialog(self) -> None:
        topics = sorted(self._context.coordinator.known_topics())
        ports = list(self._context.coordinator.runtime.port_names)

        def who() -> str:
            return str(name.value or "").strip()

        def what() -> str:
            return str(topic.value or "").strip()

        async def change(caller: Caller) -> None:
            utility = Utility(shape.value, _worth_at(slider.value))
            known = self._context.coordinator.service.registry.get((SUBSCRIBER, who()))
            if known is not None and who() not in self._context.subscribers:
                raise ParameterError("subscriber", f"{who()!r} is a program of its own; choose another name")
            await self._subscribe_page(who(), what(), utility, port.value)
            self._note(caller, "subscribed", f"{who()} {what()}", "", f"{utility.weight:g}")

        async def subscribe() -> None:
            if await self._change(change, f"{who()} subscribes to {what()}"):
                self._marked = who(), what()
                dialog.close()
                await self.refresh()

        with ui.dialog() as dialog, ui.card().style("width:min(560px,94vw)"):
            ui.label("Subscribe").style("font-weight:600;font-size:1.1rem")
            ui.label("The page itself receives the events, as a subscriber of this name.").classes(
                "quiet small"
            )
            name = ui.input("Subscriber", value="operator").props("outlined dense").style("width:100%")
            topic = (
                ui.input("Topic or pattern", autocomplete=topics[:2_000])
                .props("outlined dense")
                .style("width:100%")
            )
            port = (
                ui.select(ports, value=ports[0], label="Output port")
                .props("outlined dense")
                .style("width:100%")
            )
            shape = (
                ui.select(_SHAPES, value="log", label="Utility").props("outlined dense").style("width:100%")
            )
            with ui.row().style("width:100%;align-items:center;flex-wrap:nowrap"):
                ui.label("Worth").classes("quiet")
                slider = ui.slider(min=-1.0, max=math.log10(_HIGHEST_WORTH), step=0.05, value=1.0)
                figure = ui.label("10").style("min-width:4em;text-align:right")
                slider.on_value_change(lambda event: figure.set_text(f"{_worth_at(event.value):g}"))
            with ui.row():
                ui.button("Subscribe", on_click=subscribe).props("unelevated text-color=on-series").classes(
                    "confirm"
                )
                ui.button("Cancel", on_click=dialog.close).props("flat")
        dialog.on("hide", dialog.delete)
        dialog.open()


def _worth_at(place: float) -> float:
    """The worth at a place of the slider, whose scale is logarithmic.

    >>> [_worth_at(place) for place in (-1.0, 0.0, 1.3, 3.0)]
    [0.1, 1.0, 20.0, 1000.0]
    """
    return float(f"{10**place:.2g}")


async def show(frame: Frame) -> None:
    """The table and what is done with it."""
    _Table(frame)
