"""Brings the conditions of a scenario about in a rig, and tells the coordinator what it cannot find out by itself."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from triagemq.client import Coordinator
from triagemq.errors import CoordinatorError
from triagemq.lab.box import play
from triagemq.lab.emulate.boxed import BoxedExchange
from triagemq.scenario.conditions import Conditions, Situation, situations

_TELLING_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_NOT_NOW = 500


async def play_conditions(rig: BoxedExchange, conditions: Conditions, begun_ns: int) -> None:
    """Everything at its time, and from the first event on what links lose; ends with the last.

    Rates change without us: whoever publishes knows when.
    """

    async def sleep_until(seconds: float) -> None:
        await asyncio.sleep(max(0.0, begun_ns * 1e-9 + seconds - time.time()))

    await play(rig.scenario, conditions, _Actors(rig, conditions), rig.box, sleep_until=sleep_until)


class _Actors:
    """The rig's clients, its queues and its coordinator."""

    def __init__(self, rig: BoxedExchange, conditions: Conditions) -> None:
        self._rig = rig
        self._times = [each.at_seconds for each in situations(rig.scenario, conditions)]
        self._told = rig.scenario.ports.bandwidth_bps.copy()

    async def set_publisher(self, name: str, *, works: bool) -> None:
        """Nobody is told: its topics fall silent, and that is noticed."""
        self._rig.tell_clients("publishers", name=name, there=works)

    async def set_subscriber(self, name: str, *, present: bool) -> None:
        """It leaves, or joins."""
        self._rig.tell_clients("subscribers", name=name, there=present)

    async def set_bandwidth(self, port: str, bandwidth_bps: float) -> None:
        self._rig.set_bandwidth(port, bandwidth_bps)
        await self._tell(self._rig.scenario.ports.name.index(port), bandwidth_bps)

    async def set_worth(self, situation: Situation) -> None:
        """Subscribers tell the coordinator by themselves what their topics are worth to them."""
        self._rig.tell_clients("subscribers", situation=self._times.index(situation.at_seconds))

    async def situation_changed(self, situation: Situation) -> None:
        """Links that have failed or returned: the coordinator hears what the way to each switch carries now."""
        now = situation.carried_bps(self._rig.scenario)
        for row in np.flatnonzero(now != self._told).tolist():
            await self._tell(row, float(now[row]))

    async def _tell(self, row: int, bandwidth_bps: float) -> None:
        port = self._rig.scenario.ports.name[row]
        coordinator = Coordinator(self._rig.rest)
        deadline = time.monotonic() + _TELLING_SECONDS
        try:
            while True:
                try:
                    await coordinator.ask("PUT", f"/v1/ports/{port}", {"bandwidth_bps": bandwidth_bps})
                except CoordinatorError as error:
                    # One that is being started again, or cannot write now, hears it when it is back; what it refuses,
                    # and what it never hears, would make the run another one than was asked for.
                    if 0 < error.status < _NOT_NOW or time.monotonic() > deadline:
                        raise CoordinatorError(
                            f"the coordinator was not told that port {port} has {bandwidth_bps:g} bit/s: {error}",
                            error.status,
                        ) from None
                else:
                    self._told[row] = bandwidth_bps
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            await coordinator.close()
