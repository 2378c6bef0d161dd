"""Local control of queues: the queue rates of a data plane's ports, divided anew every 200 ms by what its counters say.

It stands before a data plane and passes instructions on. Ports with queue rates keep those that control gave them when
orders come again, also after a restart: the gateway stores what is in force. What the coordinator adds, how long each
class may wait at each port, and what it needs for that, goes over the control channel.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import ControlError, PortConstraints, PortDelays
from triagemq.delay.control import ControlledPort, PortController, PortDecision
from triagemq.delay.estimators import Estimator, Guarded, fallback_for, make_estimator
from triagemq.delay.learning.features import SwitchConstants
from triagemq.delay.learning.models import MODEL_NAME, DelayModel, load_model, model_folders
from triagemq.delay.learning.training import switch_constants
from triagemq.delay.samples import Sample
from triagemq.errors import ModelError, ParameterError, PlanError
from triagemq.plan import Decision
from triagemq.plan.dataplane import Instructed, Instruction, PortCounters, QueueCounters, RemovePort, SetPort
from triagemq.scenario import load
from triagemq.scenario.model import FLOOR_SHARE

_MOST_UNSENT = 1_000
"""Decisions that wait for a gateway that is away."""


@dataclass(slots=True)
class _Controlled:
    stated: SetPort
    controller: PortController
    last: PortDecision | None = None


class ControlledQueues:
    """An Instructed: the data plane behind it follows the instructions, but for the queue rates in force.

    `feed` it every reading of the counters. `stored` are the queue rates with which ports begin.
    """

    def __init__(
        self, plane: Instructed, estimators: Estimators, stored: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self.stored: dict[str, Sequence[int]] = dict(stored or {})
        self._plane = plane
        self._estimators = estimators
        self._ports: dict[str, _Controlled] = {}
        self._constraints: PortConstraints = {}

    @property
    def managed(self) -> dict[str, PortDelays]:
        """What it has found and decided."""
        return {
            name: PortDelays(each.controller.width_bps, each.last.delay_seconds, each.last.cannot_hold)
            for name, each in self._ports.items()
            if each.last is not None
        }

    def apply(self, instructions: Sequence[Instruction]) -> None:
        ports, passed = dict(self._ports), list[Instruction]()
        for each in instructions:
            if isinstance(each, SetPort) and each.queue_rates_bps:
                ports[each.port] = there = self._controlled(each, ports.get(each.port))
                each = _with_queue_rates(each, there.controller.width_bps)
            elif isinstance(each, SetPort | RemovePort):
                ports.pop(each.port, None)
            passed.append(each)
        self._plane.apply(passed)
        self._ports = ports

    def constrain(self, constraints: PortConstraints) -> None:
        """How long packets may wait from now on."""
        self._constraints = constraints
        for name, each in self._ports.items():
            each.controller.constrain(constraints.get(name, {}))

    def feed(
        self,
        ports: Mapping[str, PortCounters],
        at_ns: int,
        waited: Mapping[str, NDArray[np.void]] | None = None,
    ) -> list[Decision]:
        """Take what queues have counted by now, and set the queue rates that follow from it; what was decided.

        `waited` is how long packets waited that have left since the last time, by port, where that is measured:
        `priority_class`, `enqueued_ns` and `dequeued_ns` of each.
        """
        decisions = self._estimators.look()
        if decisions:
            self._begin_anew()
        for name, each in self._ports.items():
            if name not in ports:
                continue
            before = each.controller.width_bps
            queues = ports[name].queues[: len(before)]
            each.last = decided = each.controller.feed(
                [_sample(queue, at_ns, self._estimators.counters) for queue in queues]
            )
            if waited is not None and name in waited:
                self._estimators.measured(name, waited[name])
            decisions += self._estimators.drift(name)
            if decided.width_bps is not None:
                self._plane.apply([_with_queue_rates(each.stated, decided.width_bps)])
                decisions.append(
                    Decision("queue_rates", name, _words(before), _words(decided.width_bps), decided.reason)
                )
        return decisions

    def _controlled(self, port: SetPort, before: _Controlled | None) -> _Controlled:
        if before is not None and before.stated == port:
            return before
        stored = self.stored.pop(port.port, None)
        return self._begin(port, stored if before is None else before.controller.width_bps)

    def _begin(self, port: SetPort, queue_rates: Sequence[float] | None) -> _Controlled:
        floors = port.floors_bps or tuple(FLOOR_SHARE * width for width in port.queue_rates_bps)
        try:
            stated = ControlledPort(
                port.port, _whole(port.queue_rates_bps), tuple(max(1, int(floor)) for floor in floors)
            )
            controller = PortController(
                stated, self._estimators.make(port.port), width_bps=_fitting(stated, queue_rates)
            )
        except ParameterError as error:
            raise PlanError(f"port {port.port!r} cannot be controlled: {error}") from None
        controller.constrain(self._constraints.get(port.port, {}))
        return _Controlled(port, controller)

    def _begin_anew(self) -> None:
        """With another model: what estimators remember is of no use to it."""
        self._ports = {
            name: self._begin(each.stated, each.controller.width_bps) for name, each in self._ports.items()
        }


class ControlBehindGateway:
    """Control of queues that are not in the gateway: it gets what was found, and says how long packets may wait."""

    def __init__(self, link: GatewayLink, queues: ControlledQueues) -> None:
        self._link, self._queues = link, queues
        self._unsent: deque[dict[str, Any]] = deque(maxlen=_MOST_UNSENT)

    async def begin(self) -> None:
        """Have ports begin with the queue rates that the gateway has stored, as soon as it is there."""
        await self._link.news(None)
        self._queues.stored = {**await self._link.queue_rates()}

    async def feed(
        self,
        ports: Mapping[str, PortCounters],
        at_ns: int,
        waited: Mapping[str, NDArray[np.void]] | None = None,
    ) -> list[Decision]:
        """Decide, whether the gateway is there or not; then report to it."""
        decisions = self._queues.feed(ports, at_ns, waited)
        self._unsent.extend({"decided_ns": at_ns, **asdict(each)} for each in decisions)
        with contextlib.suppress(ControlError):
            if managed := self._queues.managed:
                self._queues.constrain(await self._link.managed(managed))
            if self._unsent:
                await self._link.decisions(list(self._unsent))
                self._unsent.clear()
        return decisions


def _whole(queue_rates_bps: Sequence[float]) -> tuple[int, ...]:
    """In whole bits per second, of which the first takes what rounding leaves.

    >>> _whole([60.4, 30.3, 9.3])
    (61, 30, 9)
    """
    rest = [int(width) for width in queue_rates_bps[1:]]
    return (round(sum(queue_rates_bps)) - sum(rest), *rest)


def _fitting(port: ControlledPort, queue_rates: Sequence[float] | None) -> tuple[int, ...]:
    """Queue rates of before as shares of the port of now, if they are any for it: as many, and none below its floor."""
    if queue_rates is None or len(queue_rates) != len(port.width_bps) or not sum(queue_rates) > 0:
        return port.width_bps
    found = _whole([width * sum(port.width_bps) / sum(queue_rates) for width in queue_rates])
    return (
        found
        if all(own >= floor for own, floor in zip(found, port.floor_bps, strict=True))
        else port.width_bps
    )


def _with_queue_rates(port: SetPort, queue_rates_bps: Sequence[int]) -> SetPort:
    """For the data plane, which has no use for floors."""
    factor = port.bandwidth_bps / sum(queue_rates_bps)
    return replace(port, queue_rates_bps=tuple(factor * width for width in queue_rates_bps), floors_bps=())


def _sample(queue: QueueCounters, at_ns: int, counters: str) -> Sample:
    shown = counters == "linux"
    return Sample(
        at_ns,
        queue.bytes_in,
        queue.packets_in,
        queue.bytes_out,
        queue.packets_out,
        queue.drops,
        float("inf") if queue.width_bps is None else queue.width_bps,
        queue.backlog_bytes if shown else None,
        queue.backlog_packets if shown else None,
    )


def _words(queue_rates_bps: Sequence[int]) -> str:
    return f"{', '.join(f'{width / 1e6:.4g}' for width in queue_rates_bps)} Mbit/s"


_LOOK_SECONDS = 2.0
"""How often it is looked whether there is another model."""


class Estimators:
    """Makes estimators for queues. `counters` is the set that they are fed: that of the model, or all there are.

    What people should know of the model, they hear by `say`. What is known of switches stands in `scenario`, a file.
    """

    def __init__(
        self,
        control: str,
        delay_model: Path | None = None,
        say: Callable[[str], None] = lambda words: None,
        scenario: str | None = None,
    ) -> None:
        self._control = control
        self._place = delay_model
        self._say = say
        self._model: DelayModel | None = None
        self._seen: tuple[Path, int] | None = (Path(), 0)
        # By port those that may fall back, class 0 first, and why each has.
        self._guarded: dict[str, list[tuple[Guarded, str | None]]] = {}
        self._look_at = 0.0
        self._switches: dict[str, SwitchConstants] = {} if scenario is None else _switches(scenario)

    @property
    def in_force(self) -> str:
        """The name of the estimators that are made."""
        return (
            fallback_for(self.counters)
            if self._control == "learned" and self._model is None
            else self._control
        )

    @property
    def counters(self) -> str:
        return "linux" if self._model is None else self._model.counters

    def make(self, port: str) -> Callable[[], Estimator]:
        """Makes those of a port's queues, one after the other."""
        self._guarded.pop(port, None)
        name = "guarded" if self.in_force == "learned" else self.in_force

        def one() -> Estimator:
            made = make_estimator(name, self.counters, model=self._model, switch=self._switches.get(port))
            if isinstance(made, Guarded):
                self._guarded.setdefault(port, []).append((made, None))
            return made

        return one

    def measured(self, port: str, packets: NDArray[np.void]) -> None:
        """How long packets waited in the queues of a port, for those estimators that compare it with what they said."""
        waited = (packets["dequeued_ns"] - packets["enqueued_ns"]) * 1e-9
        for queue, (guarded, _) in enumerate(self._guarded.get(port, ())):
            own = packets["priority_class"] == queue
            guarded.on_measurement(packets["enqueued_ns"][own], waited[own])

    def drift(self, port: str) -> list[Decision]:
        """Queues of a port that the model is left for, or taken again."""
        news = []
        for queue, (guarded, before) in enumerate(self._guarded.get(port, ())):
            now = guarded.fallen_back
            if (now is None) != (before is None):
                self._guarded[port][queue] = guarded, now
                words = now or "what came is like its training again, and what it says of it is right"
                names = ("learned", guarded.fallback) if now else (guarded.fallback, "learned")
                news.append(Decision("model_drifted", f"{port} class {queue}", *names, words))
        return news

    def look(self) -> list[Decision]:
        """Take the model that is there now, if it is another than before; what was decided about it."""
        if self._place is None or time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + _LOOK_SECONDS
        found = _found(self._place)
        if found == self._seen:
            return []
        self._seen, before = found, self.in_force
        place = self._place if found is None else found[0]
        try:
            self._model = load_model(place)
            kind, reason = "model_loaded", f"{place}: in force, for {self._model.counters} counters"
        except ModelError as error:
            fallback = (
                "the model before it stays in force"
                if self._model is not None
                else f"{self.in_force} estimates"
            )
            kind, reason = "model_refused", f"{error}; {fallback}"
        self._say(reason)
        return [Decision(kind, "delay model", before, self.in_force, reason)]


def _switches(scenario: str) -> dict[str, SwitchConstants]:
    """By port."""
    found = load(scenario)
    return {name: switch_constants(found, row) for row, name in enumerate(found.ports.name)}


def _found(place: Path) -> tuple[Path, int] | None:
    """The folder of a model, itself or the newest for these queues below it, and when it was written."""
    folder = place if (place / MODEL_NAME).exists() else next(reversed(model_folders(place, "linux")), place)
    try:
        return folder, (folder / MODEL_NAME).stat().st_mtime_ns
    except OSError:
        return None
