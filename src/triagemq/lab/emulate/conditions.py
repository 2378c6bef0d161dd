"""Brings the conditions of a scenario about in a rig, and reports to the coordinator what it cannot measure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import numpy as np

from triagemq.client import Coordinator
from triagemq.errors import CoordinatorError
from triagemq.lab.box import play
from triagemq.lab.emulate.boxed import BoxedExchange
from triagemq.scenario.conditions import Conditions, Situation

_ANNOUNCING_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_NOT_NOW = 500


async def play_conditions(rig: BoxedExchange, conditions: Conditions, begun_ns: int) -> None:
    """Everything at its time, and from the first event on what links lose; ends with the last.

    Rates change without us: publishers know when.
    """

    async def sleep_until(seconds: float) -> None:
        await asyncio.sleep(max(0.0, begun_ns * 1e-9 + seconds - time.time()))

    await play(rig.scenario, conditions, RigActors(rig), rig.box, sleep_until=sleep_until)


class RigActors:
    """The rig's clients, its queues and its coordinator."""

    def __init__(self, rig: BoxedExchange) -> None:
        self._rig = rig
        self._announced = rig.scenario.ports.bandwidth_bps.copy()

    async def set_publisher(self, name: str, *, works: bool) -> None:
        """No notification: its topics fall silent, and that is noticed."""
        self._rig.notify_clients("publishers", name=name, there=works)

    async def set_subscriber(self, name: str, *, present: bool) -> None:
        """It leaves, or joins."""
        self._rig.notify_clients("subscribers", name=name, there=present)

    async def set_bandwidth(self, port: str, bandwidth_bps: float) -> None:
        self._rig.set_bandwidth(port, bandwidth_bps)
        await self._announce(self._rig.scenario.ports.name.index(port), bandwidth_bps)

    async def set_worth(self, situation: Situation) -> None:
        """A worth profile of the scenario is a phase of the coordinator."""
        await self._put("/v1/phase", {"phase": situation.worth_profile})

    async def situation_changed(self, situation: Situation) -> None:
        """Links that have failed or returned: the coordinator gets the present bandwidth of the path to each switch."""
        now = situation.carried_bps(self._rig.scenario)
        for row in np.flatnonzero(now != self._announced).tolist():
            await self._announce(row, float(now[row]))

    async def _announce(self, row: int, bandwidth_bps: float) -> None:
        await self._put(f"/v1/ports/{self._rig.scenario.ports.name[row]}", {"bandwidth_bps": bandwidth_bps})
        self._announced[row] = bandwidth_bps

    async def _put(self, path: str, body: Mapping[str, object]) -> None:
        coordinator = Coordinator(self._rig.rest)
        deadline = time.monotonic() + _ANNOUNCING_SECONDS
        try:
            while True:
                try:
                    await coordinator.ask("PUT", path, body)
                except CoordinatorError as error:
                    # One that is being started again, or cannot write now, hears it when it is back; what it refuses,
                    # and what it never hears, would make the run differ from the one requested.
                    if 0 < error.status < _NOT_NOW or time.monotonic() > deadline:
                        raise CoordinatorError(
                            f"the coordinator did not take {dict(body)} at {path}: {error}",
                            error.status,
                        ) from None
                else:
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            await coordinator.close()
