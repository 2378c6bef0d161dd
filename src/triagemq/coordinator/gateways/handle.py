"""A gateway as the coordinator sees it: its answers, health and load; and the counts of several as one."""

from __future__ import annotations

import asyncio
import time
from collections import ChainMap, Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triagemq.broker.address import BrokerAddress
from triagemq.channel.messages import (
    ControlError,
    GatewayRefusalError,
    Measured,
)
from triagemq.coordinator.decide.placement import GatewayLoad
from triagemq.coordinator.gateways.reconciler import GatewayReconciler
from triagemq.plan.dataplane import FlowCounters, PortCounters, QueueCounters
from triagemq.waiting import end

_DEAD_SECONDS = 1.5
"""A gateway or broker that is away for so long has no clients any more; one that is restarted is back by then."""

ANSWER_SECONDS = 5.0
"""A gateway that does not answer for so long does not work; one that is only busy answers by then."""

OVERDUE_SECONDS = 3.0
"""A gateway that has not answered for so long is shown as what does not work."""

_RESTARTS, _RESTARTS_SECONDS = 3, 30.0
"""A gateway whose process was started so often in that time is shown as what does not work."""

LEASE_SECONDS = 300.0
"""A gateway that has joined and is away for so long is forgotten, until it joins again: alerts come before."""

_Kind = tuple[bool, bool]
"""Whether a question is for flows, and for topics."""


@dataclass(slots=True, eq=False)
class GatewayHandle:
    """A gateway, where clients find it, and the URL of its broker (empty while it is not known).

    One that has joined is forgotten when it stays away; those that a coordinator is configured with are not.
    """

    name: str
    reconciler: GatewayReconciler
    address: str
    broker: str = field(default="", repr=False)
    has_joined: bool = False
    latest: Measured | None = None
    before: Measured | None = None
    """What it had counted a second earlier."""
    answer: Measured | None = None
    """Its last answer, five times a second."""
    answered_at: float = field(default_factory=time.monotonic)
    unusable: str = ""
    """Why its last answer could not be used, if that is so."""
    mark: str = ""
    """Of the last answer about topics: the next one is about what has changed since."""
    _questions: dict[_Kind, tuple[float, asyncio.Task[Measured]]] = field(default_factory=dict)
    _unanswered_since: float | None = None
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=_RESTARTS))
    _ailing_since: float | None = None
    _away_since: float | None = None

    def ask(self, kind: _Kind) -> asyncio.Task[Measured]:
        """Have it say what it has counted; a question that is still open is not repeated."""
        if kind not in self._questions:
            flows, topics = kind
            measuring = self.reconciler.link.measure(
                flows=flows, topics=topics, after=self.mark if topics else ""
            )
            now = time.monotonic()
            self._questions[kind] = now, asyncio.get_running_loop().create_task(measuring)
            if self._unanswered_since is None:
                self._unanswered_since = now
        return self._questions[kind][1]

    def take_answer(self, kind: _Kind, asking: asyncio.Task[Measured]) -> Measured | None:
        """The answer to a question, which several rounds may wait for; None if it has not come, or is none."""
        if not asking.done():
            return None
        asked_at, open_question = self._questions.get(kind, (0.0, None))
        if open_question is asking:
            del self._questions[kind]
        # A question that is given up after that long was not answered.
        if time.monotonic() - asked_at < ANSWER_SECONDS:
            self._unanswered_since = None
        try:
            measured = asking.result()
        except ControlError as error:
            self.reconciler.lost()
            self.unusable = str(error)
            return None
        if self.answer is None or measured.epoch != self.answer.epoch:
            self.starts.append(time.monotonic())
        self.answer, self.answered_at, self.unusable = measured, time.monotonic(), ""
        self._unanswered_since = None
        self.reconciler.measured(measured)
        return measured

    async def close(self) -> None:
        """Wait for no answer any more."""
        asking, self._questions = [each for _, each in self._questions.values()], {}
        await end(*asking)

    @property
    def is_silent(self) -> bool:
        """Has it answered no question for so long that it does not work?"""
        since = self._unanswered_since
        return since is not None and time.monotonic() - since >= ANSWER_SECONDS

    def is_gone(self, now: float) -> bool:
        """Did it join, and is away for longer than its lease?"""
        if self.reconciler.link.connected:
            self._away_since = None
            return False
        self._away_since = now if self._away_since is None else self._away_since
        return self.has_joined and now - self._away_since >= LEASE_SECONDS

    def answers(self, now: float) -> bool:
        """Is what it said last of now?"""
        return self.reconciler.link.connected and now - self.answered_at <= OVERDUE_SECONDS

    def ailment(self, now: float) -> tuple[str, str] | None:
        """What does not work about it, in general and in detail; None if all does."""
        if not self.reconciler.link.connected:
            return (away := "is away; it goes on with the last orders"), away
        if not self.answers(now):
            overdue = now - self.answered_at
            why = f": {self.unusable}" if self.unusable else ""
            return "does not answer", f"has not answered for {overdue:.0f} s{why}"
        if self.answer is not None and self.answer.storage_problem:
            return "cannot store its state", f"cannot store its state: {self.answer.storage_problem}"
        if len(self.starts) == _RESTARTS and now - self.starts[0] < _RESTARTS_SECONDS:
            often = f"was started {_RESTARTS} times within {now - self.starts[0]:.0f} s; its log says why"
            return "is started again and again", often
        return None

    @property
    def problem(self) -> str:
        """Why it cannot serve anybody now, if that is so."""
        if not self.reconciler.link.connected:
            return "the gateway is away"
        if self.is_silent:
            return "the gateway does not answer"
        if self.answer is not None and not self.answer.broker_connected:
            return self.answer.broker_problem or "it has no broker"
        return ""

    def is_dead(self, now: float) -> bool:
        """Is that more than a moment's trouble?"""
        if not self.problem:
            self._ailing_since = None
            return False
        self._ailing_since = now if self._ailing_since is None else self._ailing_since
        return now - self._ailing_since >= _DEAD_SECONDS

    @property
    def load(self) -> GatewayLoad | None:
        """What it had to do in the last second, if that is known."""
        before, now = self.before, self.latest
        if before is None or now is None or before.epoch != now.epoch or now.at_ns <= before.at_ns:
            return None
        seconds = (now.at_ns - before.at_ns) / 1e9

        def since(*names: str) -> float:
            return float(sum(now.count(name) - before.count(name) for name in names)) / seconds

        def sent(measured: Measured) -> int:
            return sum(queue.bytes_out for port in measured.ports.values() for queue in port.queues)

        return GatewayLoad(
            downlink_bps=8 * since("datagram_bytes", "broker_bytes"),
            matched_per_second=since("client_messages", "broker_messages"),
            uplink_bps=8 * (sent(now) - sent(before)) / seconds,
            flows=now.flows,
            flows_before=before.flows,
            seconds=seconds,
            broker_seconds={name: each / 2 for name, each in now.round_trips.items()},
            client_seconds={name: each / 2 for name, each in now.client_round_trips.items()},
        )

    @property
    def broker_connected(self) -> bool | None:
        """Whether it has its broker, by its last answer; None while that is not known."""
        return (
            self.answer.broker_connected
            if self.answer is not None and self.reconciler.link.connected
            else None
        )

    @property
    def why_not_in_force(self) -> str:
        """Why it does not follow what is wanted, in words that name no client."""
        if not self.reconciler.link.connected:
            return "it is away"
        match self.reconciler.problem:
            case None:
                return "it does not answer" if self.is_silent else "the state is being sent"
            case GatewayRefusalError():
                return "it refuses the state; the decisions say what and why"
        return "it did not answer"

    @property
    def broker_shown(self) -> str:
        """Its address without a password."""
        return str(BrokerAddress.parse(self.broker)) if self.broker else ""


_SILENT_NS = 2_000_000_000
"""A topic of which its counter has not counted anything for so long may be counted by another gateway."""


class TopicIncrements:
    """Events of topics since the last look, from counters of several gateways.

    Every gateway whose clients want a topic counts all its events: one of them is believed. A gateway counts from its
    start on, which has an epoch. The first answer of a gateway is where counting begins; after a restart of it
    everything is new. What a gateway reports while its broker lags behind is held back until it has caught up.

    >>> topics = TopicIncrements()
    >>> topics.add("north", "a", 0, {"smoke": (3, 30)}); topics.add("south", "b", 0, {"smoke": (2, 20)})
    >>> topics.add("north", "a", 1, {"smoke": (4, 40)}); topics.take()
    {'smoke': (1, 10)}
    >>> topics.add("south", "b", 9_000_000_000, {"smoke": (5, 50)}); topics.take()
    {'smoke': (3, 30)}
    >>> topics.add("south", "c", 9_000_000_001, {"smoke": (1, 10)}); topics.take()
    {'smoke': (1, 10)}
    """

    def __init__(self) -> None:
        # By topic, who counts it and when that last counted something.
        self._counter: dict[str, tuple[str, int]] = {}
        self._epochs: dict[str, str] = {}
        self._last: dict[str, dict[str, tuple[int, int]]] = {}
        self._held: dict[str, tuple[dict[str, tuple[int, int]], set[str]]] = {}
        self._new: dict[str, tuple[int, int]] = {}

    def add(
        self,
        gateway: str,
        epoch: str,
        now_ns: int,
        topics: Mapping[str, tuple[int, int]],
        begun: Iterable[str] = (),
        *,
        caught_up: bool = True,
    ) -> None:
        """What a gateway has counted of topics that have changed, since its epoch; those `begun` from 0 again."""
        before, self._epochs[gateway] = self._epochs.get(gateway), epoch
        if before is None:
            self._last[gateway] = dict(topics)
            return
        if before != epoch:
            self._last[gateway] = {}
            self._held.pop(gateway, None)
        counts, anew = self._held.pop(gateway, ({}, set()))
        counts |= topics
        anew.update(begun)
        if not caught_up:
            self._held[gateway] = counts, anew
            return
        last = self._last[gateway]
        for topic, (events, octets) in counts.items():
            before_events, before_octets = (0, 0) if topic in anew else last.get(topic, (0, 0))
            last[topic] = events, octets
            if events <= before_events:
                continue
            counter, counted_ns = self._counter.get(topic, (gateway, now_ns))
            if counter != gateway and now_ns - counted_ns < _SILENT_NS:
                continue
            self._counter[topic] = gateway, now_ns
            new_events, new_octets = self._new.get(topic, (0, 0))
            self._new[topic] = (
                new_events + events - before_events,
                new_octets + max(octets - before_octets, 0),
            )

    def forget(self, gateway: str) -> None:
        """It is gone."""
        for table in (self._epochs, self._last, self._held):
            table.pop(gateway, None)
        self._counter = {topic: value for topic, value in self._counter.items() if value[0] != gateway}

    def take(self) -> dict[str, tuple[int, int]]:
        """Events and bytes since this was called last."""
        new, self._new = self._new, {}
        return new


def merged(
    several: Mapping[str, Measured],
    latest: Mapping[str, Measured],
    topics: Mapping[str, tuple[int, int]],
    at_ns: int,
    *,
    complete: bool = True,
) -> Measured:
    """One measurement of all that answer, at a time of the coordinator's clock.

    `latest` has the last answers of the others, too, whose ports and flows have counted that much. `complete`: all have
    answered that can, and their brokers have delivered everything.
    """
    first = next(iter(several.values()))
    counters: Counter[str] = Counter()
    for each in several.values():
        counters.update({name: value for name, value in each.counters.items() if isinstance(value, int)})
    carried = [each.carried for each in several.values() if each.carried is not None]
    since = [each.broker_since_ns for each in several.values() if each.broker_since_ns is not None]
    return Measured(
        epoch=" ".join(each.epoch for each in latest.values()),
        at_ns=at_ns,
        topics=topics,
        counters={**first.counters, **counters},
        ports=_summed((each.ports for each in latest.values()), _ports),
        # A client that is at two gateways is moving between them.
        flows=_summed((each.flows for each in latest.values()), FlowCounters.plus),
        generation=min(each.generation for each in several.values()),
        sessions=sum(each.sessions for each in several.values()),
        broker_connected=all(each.broker_connected for each in several.values()),
        broker_problem=next((each.broker_problem for each in several.values() if each.broker_problem), ""),
        storage_problem=next((each.storage_problem for each in several.values() if each.storage_problem), ""),
        author=first.author,
        version=first.version,
        broker_since_ns=max(since) if complete and since else None,
        mark=first.mark,
        carried=min(carried, default=None),
        planned_drops=_summed((each.planned_drops for each in latest.values()), int.__add__),
        managed=dict(ChainMap(*(dict(each.managed) for each in several.values()))),
    )


def _summed(several: Iterable[Mapping[Any, Any]], add: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for each in several:
        for name, counted in each.items():
            found[name] = add(found[name], counted) if name in found else counted
    return found


def _ports(one: PortCounters, other: PortCounters) -> PortCounters:
    return PortCounters(
        tuple(map(QueueCounters.plus, one.queues, other.queues)),
        one.control.plus(other.control),
        one.beyond_bound + other.beyond_bound,
        one.strange_marks + other.strange_marks,
    )
