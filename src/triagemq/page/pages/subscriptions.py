"""Subscriptions: searched, sorted, page by page; made, changed and ended; and why each is treated as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from nicegui import ui

from triagemq.coordinator.access.tokens import Caller
from triagemq.coordinator.api.views import explanation, why
from triagemq.coordinator.refusals import MissingError
from triagemq.coordinator.subscriptions import Order, SubscriptionPage, SubscriptionQuery, subscription_page
from triagemq.errors import ParameterError, TriageError
from triagemq.intents import SUBSCRIBER, SubscriberIntent, SubscriptionIntent, Utility
from triagemq.page.frame import Frame, TemplatePanel, wide
from triagemq.plan import Decision

_ROWS = 20
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
        self._query = SubscriptionQuery(limit=_ROWS)
        self._marked: tuple[str, str] | None = None
        # Since this number of a decision something may have changed because of this session.
        self._changed_after: int | None = None
        TemplatePanel("subscriptions_head.html", "").show()
        with ui.element("div").classes("controls"):
            ui.input(placeholder="Search subscriber or topic", on_change=self._searched).props(
                'outlined dense clearable debounce="250" aria-label="Search"'
            ).classes("search")
            if frame.session.may_change:
                ui.button("Subscribe", icon="add", on_click=self._subscribe_dialog).props(
                    "unelevated text-color=on-series"
                )
        self._news = TemplatePanel("subscriptions_news.html", "")
        self._table = TemplatePanel("subscriptions_table.html")
        self._table.on("click", self._clicked, js_handler=_CLICKED)
        frame.every_second(self.refresh)

    # What is shown.

    def refresh(self) -> None:
        coordinator, query = self._context.coordinator, self._query
        decided = coordinator.runtime.decided
        self._table.show(
            page=SubscriptionPage(0, 0, [])
            if decided is None
            else subscription_page(coordinator, decided, query),
            order=query.order,
            descending=query.descending,
            offset=query.offset,
            rows=query.limit,
            marked=self._marked,
            may_change=self._frame.session.may_change,
        )
        self._news.show(news=self._decided_since())

    def _decided_since(self) -> Sequence[Decision]:
        """What was decided because of changes in this session."""
        now = self._context.readings.latest
        if self._changed_after is None or now is None:
            return []
        since = [row for row in now.decisions if row.number > self._changed_after]
        # Decisions about treatment come first, and of these the session's own.
        name = "" if self._marked is None else self._marked[0]
        since.sort(key=lambda row: (not row.subject.startswith(name), row.kind != "treated_differently"))
        return since[:_SHOWN_NEWS]

    def _show(self, **changed: Any) -> None:
        """Show what another query finds, from its first row on."""
        self._query = self._query.model_copy(update={"offset": 0} | changed)
        self.refresh()

    def _searched(self, event: Any) -> None:
        self._show(search=event.value or "")

    async def _clicked(self, event: Any) -> None:
        what, first, second = event.args
        match what:
            case "sort" if first in get_args(Order):
                self._show(order=first, descending=first == self._query.order and not self._query.descending)
            case "page":
                self._show(offset=max(0, int(first)))
            case "why":
                await self._why(first, second)
            case "worth":
                self._worth_dialog(first, second)
            case "end":
                await self._end(first, second)

    async def _why(self, subscriber: str, topic: str) -> None:
        try:
            found = await explanation(
                self._frame.session.caller, self._context.coordinator, subscriber, topic
            )
        except TriageError as error:
            ui.notify(str(error), type="warning")
            return
        with ui.dialog() as dialog, ui.card():
            TemplatePanel("why.html", "").show(**found)
            ui.button("Close", on_click=dialog.close).props("flat")
        _open(dialog)

    # What is changed.

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
        return True

    def _worth_dialog(self, subscriber: str, topic: str) -> None:
        try:
            subscription = self._intent(subscriber).subscription_to(topic)
        except MissingError as error:
            ui.notify(str(error), type="warning")
            return
        weight = 1.0 if subscription is None else subscription.utility.weight

        async def change(caller: Caller) -> None:
            await self._set_worth(caller, subscriber, topic, _worth_at(slider.value))

        async def moved() -> None:
            """The change is made while the slider moves: what comes of it is seen at once."""
            self._marked = subscriber, topic
            await self._change(change, f"{subscriber}: {topic} is worth {_worth_at(slider.value):g} now")
            self.refresh()

        with (
            ui.dialog().props("position=bottom seamless") as dialog,
            ui.card().style("width:min(640px,94vw)"),
        ):
            ui.label(f"What {topic} is worth to {subscriber}").style("font-weight:600")
            with ui.row().style("width:100%;align-items:center;flex-wrap:nowrap"):
                slider = _worth_slider(weight).on("change", moved)
            ui.button("Done", on_click=dialog.close).props("flat")
        _open(dialog)

    async def _set_worth(self, caller: Caller, subscriber: str, topic: str, weight: float) -> None:
        """For this topic alone, also where it is one of a pattern."""
        intent = self._intent(subscriber)
        subscription = intent.subscription_to(topic) or SubscriptionIntent(topic)
        before, utility = subscription.utility.weight, replace(subscription.utility, weight=weight)
        if subscriber in self._context.subscribers:
            await self._subscribe_page(subscriber, subscription.topic, utility)
        else:
            changed = replace(subscription, topic=topic, utility=utility)
            await self._context.coordinator.service.change(caller, [intent.with_subscription(changed)])
        self._note(caller, "worth", f"{subscriber} {topic}", f"{before:g}", f"{weight:g}")

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
            subscription = intent.subscription_to(topic)
            if subscription is None:
                raise MissingError(f"{subscriber} does not want {topic} any more")
            if subscriber in self._context.subscribers:
                await self._context.subscribers.unsubscribe(subscriber, subscription.topic)
            elif len(intent.subscriptions) == 1:
                await self._context.coordinator.service.change(caller, withdraw=[(SUBSCRIBER, subscriber)])
            else:
                await self._context.coordinator.service.change(caller, [intent.without(subscription.topic)])
            before = f"{subscription.utility.weight:g}"
            self._note(caller, "ended", f"{subscriber} {subscription.topic}", before, "")

        await self._change(change, f"{subscriber} does not want {topic} any more")
        self.refresh()

    def _subscribe_dialog(self) -> None:
        topics = sorted(self._context.coordinator.known_topics())
        ports = list(self._context.coordinator.runtime.port_names)

        async def subscribe() -> None:
            who, what = (str(each.value or "").strip() for each in (name, topic))
            utility = Utility(shape.value, _worth_at(slider.value))

            async def change(caller: Caller) -> None:
                known = self._context.coordinator.service.registry.get((SUBSCRIBER, who))
                if known is not None and who not in self._context.subscribers:
                    raise ParameterError("subscriber", f"{who!r} is another program's; choose another name")
                await self._subscribe_page(who, what, utility, port.value)
                self._note(caller, "subscribed", f"{who} {what}", "", f"{utility.weight:g}")

            if await self._change(change, f"{who} subscribes to {what}"):
                self._marked = who, what
                dialog.close()
                self.refresh()

        with ui.dialog() as dialog, ui.card().style("width:min(560px,94vw)"):
            ui.label("Subscribe").style("font-weight:600;font-size:1.1rem")
            ui.label("The page receives the events, as this subscriber.").classes("quiet small")
            name = wide(ui.input("Subscriber", value="operator"))
            topic = wide(ui.input("Topic or pattern", autocomplete=topics[:2_000]))
            port = wide(ui.select(ports, value=ports[0], label="Output port"))
            shape = wide(ui.select(_SHAPES, value="log", label="Utility"))
            with ui.row().style("width:100%;align-items:center;flex-wrap:nowrap"):
                ui.label("Worth").classes("quiet")
                slider = _worth_slider(10.0)
            with ui.row():
                ui.button("Subscribe", on_click=subscribe).props("unelevated text-color=on-series").classes(
                    "confirm"
                )
                ui.button("Cancel", on_click=dialog.close).props("flat")
        _open(dialog)


def _open(dialog: ui.dialog) -> None:
    dialog.on("hide", dialog.delete)
    dialog.open()


def _worth_slider(weight: float) -> ui.slider:
    """With its figure."""
    place = math.log10(max(weight, 0.1))
    slider = ui.slider(min=-1.0, max=math.log10(_HIGHEST_WORTH), step=0.05, value=place)
    figure = ui.label(f"{weight:g}").style("min-width:4em;text-align:right")
    slider.on_value_change(lambda event: figure.set_text(f"{_worth_at(event.value):g}"))
    return slider.props('aria-label="worth"')


def _worth_at(place: float) -> float:
    """The worth at a place of the slider, whose scale is logarithmic.

    >>> [_worth_at(place) for place in (-1.0, 0.0, 1.3, 3.0)]
    [0.1, 1.0, 20.0, 1000.0]
    """
    return float(f"{10**place:.2g}")


async def show(frame: Frame) -> None:
    """The table and what is done with it."""
    _Table(frame)
