"""A gateway as the coordinator sees it: the desired state is sent until it is confirmed, and what it answers is judged.

Grants go first and by themselves: whoever loses a right does not keep it because orders are refused or take their time.
Whoever has changed something calls `tell`; tellings that would only repeat one another are one. After a failure nothing
is taken for granted: the gateway says which version it follows, and only what it lacks is told.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from triagemq.coordinator.access.grants import Grants
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import (
    ControlError,
    DesiredState,
    GatewayRefusalError,
    Measured,
    PortConstraints,
)
from triagemq.coordinator.decide.campus_balance import GatewayLoad
from triagemq.coordinator.decide.orders import Orders
from triagemq.exchange.broker.address import BrokerAddress
from triagemq.waiting import end

_LOG = logging.getLogger("triagemq.coordinator")
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 8.0

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


class GatewayReconciler:
    """One gateway, behind one link. `grants` says who may do what at the moment it is called."""

    def __init__(self, link: GatewayLink, grants: Callable[[], Grants], orders: Orders | None = None) -> None:
        self.link = link
        self.problem: ControlError | None = None
        """Why the last telling failed, if it did."""
        self.failures = 0
        self._failures_in_row = 0
        self._grants = grants
        self._grants_changed = True
        self._wanted = DesiredState(secrets.token_hex(4), 1, orders)
        # What the gateway is known to follow, and what it follows if the last telling reached it without an answer.
        self._confirmed: DesiredState | None = None
        self._told: DesiredState | None = None
        self._sure = False
        self._whole_next = False
        self._apart_before = False
        self.in_force_since = time.monotonic()
        """When everything that is wanted was confirmed last, or the start."""
        self._behind_since: float | None = self.in_force_since
        self._rights_behind_since: float | None = self.in_force_since
        self._turn = asyncio.Lock()

    # What is wanted and what is in force.

    def want_orders(self, orders: Orders) -> None:
        if orders is not self._wanted.orders:
            self._want(replace(self._wanted, orders=orders))

    def want_constraints(self, constraints: PortConstraints) -> bool:
        """How long packets may wait at ports whose widths are controlled; whether that is news."""
        if constraints == (self._wanted.constraints or {}):
            return False
        self._want(replace(self._wanted, constraints=constraints))
        return True

    def want_grants(self) -> None:
        """Somebody has got or lost a right; who has which is looked up when the gateway is told."""
        self._grants_changed = True
        self._rights_behind_since = self._rights_behind_since or time.monotonic()
        self._want(self._wanted)

    def _want(self, wanted: DesiredState) -> None:
        self._wanted = replace(wanted, version=wanted.version + 1)
        self._behind_since = self._behind_since or time.monotonic()

    @property
    def wanted_orders(self) -> Orders | None:
        """None: those that the gateway has."""
        return self._wanted.orders

    @property
    def wanted_version(self) -> int:
        return self._wanted.version

    @property
    def confirmed_version(self) -> int | None:
        """The version that the gateway has confirmed last; None if it has not confirmed any of this coordinator's."""
        return None if self._confirmed is None else self._confirmed.version

    @property
    def behind_seconds(self) -> float | None:
        """For how long something has been wanted that is not confirmed; None while all is in force."""
        return None if self._behind_since is None else time.monotonic() - self._behind_since

    @property
    def rights_behind_seconds(self) -> float | None:
        """The same of grants alone."""
        return None if self._rights_behind_since is None else time.monotonic() - self._rights_behind_since

    @property
    def grants_in_force(self) -> bool:
        """Does the gateway follow the latest grants, whatever becomes of the orders?"""
        known = self._confirmed
        return not self._grants_changed and known is not None and known.grants is self._wanted.grants

    @property
    def orders_in_force(self) -> bool:
        return self._wanted.orders is None or self.follows(self._wanted.orders)

    def follows(self, orders: Orders) -> bool:
        return self._confirmed is not None and self._confirmed.orders is orders

    @property
    def pause_seconds(self) -> float:
        """How long to wait before it is told again: longer, the more often that was in vain."""
        return min(_LEAST_PAUSE_SECONDS * 2.0 ** max(0, self._failures_in_row - 1), _MOST_PAUSE_SECONDS)

    # Telling it.

    def lost(self) -> None:
        """The gateway is or was away: what it follows when it is back, it will say."""
        self._sure = False
        self._failures_in_row = 0

    def measured(self, now: Measured) -> None:
        """A gateway that follows another version for more than a moment was told so by somebody else."""
        known = self._confirmed
        apart = known is not None and (now.author, now.version) != (known.author, known.version)
        apart = apart and not self._turn.locked()
        if apart and self._apart_before:
            self._sure = False
        self._apart_before = apart

    async def tell(self) -> bool:
        """Bring the gateway to what is wanted now; False if that does not go now."""
        async with self._turn:
            try:
                if not self._sure:
                    await self._ask()
                while (step := self._step()) is not None:
                    await self._take(step)
            except ControlError as error:
                self._sure = False
                self.failures += 1
                self._failures_in_row += 1
                self.failed(error)
                return False
            self.problem, self._failures_in_row = None, 0
            if self._behind_since is not None:
                self._behind_since, self.in_force_since = None, time.monotonic()
            return True

    async def _ask(self) -> None:
        author, version = await self.link.following()
        candidates, self._confirmed, self._told = (self._confirmed, self._told), None, None
        for known in candidates:
            if known is not None and (known.author, known.version) == (author, version):
                self._confirmed = known
        if self._confirmed is None:
            # Numbers grow at a gateway, whoever gives them.
            self._wanted = replace(self._wanted, version=max(self._wanted.version, version + 1))
            self._behind_since = self._behind_since or time.monotonic()
            self._rights_behind_since = self._rights_behind_since or time.monotonic()
        self._sure = True

    def _step(self) -> DesiredState | None:
        """What to tell next: grants that have changed, then everything; None if the gateway has it all."""
        if self._grants_changed:
            self._grants_changed = False
            self._wanted = replace(self._wanted, grants=self._grants())
        known, wanted = self._confirmed, self._wanted
        if known is not None and known.version == wanted.version:
            # All is in force; now and then it is said once more, in one piece, and what the gateway keeps gets shorter.
            return wanted if self._whole_next else None
        orders = None if known is None else known.orders
        if (known is None or known.grants is not wanted.grants) and orders is not wanted.orders:
            # On the way to what is wanted, under a number of its own.
            self._wanted = replace(wanted, version=wanted.version + 1)
            return replace(wanted, orders=orders)
        return wanted

    async def _take(self, step: DesiredState) -> None:
        known, self._told = self._confirmed, step
        again = known is not None and known.version == step.version
        wants_whole = await self.link.tell(None if again else known, step)
        self._whole_next = wants_whole and not again and step.orders is not None
        self._confirmed, self._told = step, None
        if self.grants_in_force:
            self._rights_behind_since = None

    def failed(self, error: ControlError) -> None:
        """Something could not be told."""
        if isinstance(error, GatewayRefusalError) and str(error) != str(self.problem):
            # Not lost, but unwilling: somebody should know.
            _LOG.warning("the gateway: %s", error)
        self.problem = error


_REMEMBERED = 300
"""Answers: a minute of them, in which clocks drift by less than a millisecond or two."""


class ClockReading(NamedTuple):
    """How much their clock is ahead, and how much that may be wrong."""

    offset_seconds: float
    error_seconds: float


class ClockOffset:
    """
    >>> clock = ClockOffset()
    >>> clock.answered(asked_ns=0, theirs_ns=7_000_000_000, answered_ns=4_000_000_000)
    >>> clock.answered(asked_ns=5_000_000_000, theirs_ns=10_500_000_000, answered_ns=6_000_000_000)
    >>> clock.best
    ClockReading(offset_seconds=5.0, error_seconds=0.5)
    """

    def __init__(self) -> None:
        self._readings: deque[ClockReading] = deque(maxlen=_REMEMBERED)

    def answered(self, asked_ns: int, theirs_ns: int, answered_ns: int) -> None:
        """They have said what time it is."""
        offset_ns = theirs_ns - (asked_ns + answered_ns) / 2
        self._readings.append(ClockReading(offset_ns / 1e9, (answered_ns - asked_ns) / 2e9))

    @property
    def best(self) -> ClockReading | None:
        """The reading that may be wrong by least; None before the first."""
        return min(self._readings, key=lambda each: each.error_seconds, default=None)


_Kind = tuple[bool, bool]
"""Whether a question is for flows, and for topics."""


@dataclass(slots=True, eq=False)
class GatewayHandle:
    """A gateway, where clients find it, and the URL of the broker beside it (empty while it is not known).

    One that has joined is forgotten when it stays away; those that a coordinator is configured with are not.
    """

    name: str
    lead: GatewayReconciler
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
    clock: ClockOffset = field(default_factory=ClockOffset)
    """How far its clock is from ours."""
    mark: str = ""
    """Of the last answer about topics: the next one is about what has changed since."""
    _questions: dict[_Kind, tuple[float, asyncio.Task[Measured]]] = field(default_factory=dict)
    _unanswered_since: float | None = None
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=_RESTARTS))
    _ailing_since: float | None = None
    _away_since: float | None = None

    def ask(self, clock: Callable[[], int], kind: _Kind) -> asyncio.Task[Measured]:
        """Have it say what it has counted; a question that is still open is not asked again."""
        if kind not in self._questions:
            asking, now = asyncio.get_running_loop().create_task(self._ask(clock, *kind)), time.monotonic()
            self._questions[kind] = now, asking
            if self._unanswered_since is None:
                self._unanswered_since = now
        return self._questions[kind][1]

    async def _ask(self, clock: Callable[[], int], flows: bool, topics: bool) -> Measured:
        asked_ns = clock()
        measured = await self.lead.link.measure(flows=flows, topics=topics, after=self.mark if topics else "")
        self.clock.answered(asked_ns, measured.at_ns, clock())
        return measured

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
            self.lead.lost()
            self.unusable = str(error)
            return None
        if self.answer is None or measured.epoch != self.answer.epoch:
            self.starts.append(time.monotonic())
        self.answer, self.answered_at, self.unusable = measured, time.monotonic(), ""
        self._unanswered_since = None
        self.lead.measured(measured)
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
        if self.lead.link.connected:
            self._away_since = None
            return False
        self._away_since = now if self._away_since is None else self._away_since
        return self.has_joined and now - self._away_since >= LEASE_SECONDS

    def answers(self, now: float) -> bool:
        """Is what it said last of now?"""
        return self.lead.link.connected and now - self.answered_at <= OVERDUE_SECONDS

    def ailment(self, now: float) -> tuple[str, str] | None:
        """What does not work about it, in general and in detail; None if all does."""
        if not self.lead.link.connected:
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
        if not self.lead.link.connected:
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
        return self.answer.broker_connected if self.answer is not None and self.lead.link.connected else None

    @property
    def why_not_in_force(self) -> str:
        """Why it does not follow what is wanted, in words that name no client."""
        if not self.lead.link.connected:
            return "it is away"
        match self.lead.problem:
            case None:
                return "it does not answer" if self.is_silent else "it is being told"
            case GatewayRefusalError():
                return "it refuses what it is told; the decisions say what and why"
        return "it did not answer"

    @property
    def broker_shown(self) -> str:
        """Its address without a password."""
        return str(BrokerAddress.parse(self.broker)) if self.broker else ""
