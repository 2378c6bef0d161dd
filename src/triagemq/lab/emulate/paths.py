"""The ways of what is promised in a box: clients are told where it goes now, and how long each promise was in force.

A promise counts from when its subscriber listens and its way is in force on all ports, so that no message is missed for
which there was no way yet, until its subscriber leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Protocol

from triagemq.client.coordinator import Coordinator, Promise
from triagemq.errors import CoordinatorError, NetworkError
from triagemq.lab.emulate.clients import tell
from triagemq.lab.emulate.copying import plugged_publishers
from triagemq.lab.emulate.promised import tell_addresses
from triagemq.lab.emulate.promises import (
    NEVER_NS,
    ActiveInterval,
    AdmittedPromise,
    admitted_promises,
    also_brokered,
)
from triagemq.scenario import Scenario

_READY_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_LAID_SECONDS = 10.0
_LEAD_SECONDS = 0.5
"""How often it is asked whether something else is promised now."""


class _Carrying(Protocol):
    """The exchange in the box: who is to be told, and what its network does already."""

    @property
    def promised_roles(self) -> tuple[str, ...]:
        """The processes of clients that know of promises."""

    def require_alive(self) -> None:
        """NetworkError if one has ended."""

    def copied(self) -> Set[tuple[str, str]]:
        """The addresses of which the kernel makes copies, each with a port that they leave by."""

    async def switches_follow(self) -> bool:
        """Are the newest orders in force on switches too, where there are any?"""


class PromisedPaths:
    """`intervals` are all promises that were ever in force. Processes of clients listen in `sockets`, by role."""

    def __init__(self, scenario: Scenario, coordinator: str, sockets: Path, carrying: _Carrying) -> None:
        self.intervals: list[ActiveInterval] = []
        self._scenario, self._coordinator, self._carrying = scenario, coordinator, carrying
        self._sockets = sockets
        self._leading = asyncio.Lock()
        self._away: set[str] = set()
        self._told = 0

    def is_there(self, subscriber: str, *, there: bool) -> None:
        """A subscriber comes or goes."""
        if there:
            self._away.discard(subscriber)
            return
        self._away.add(subscriber)
        for interval in self.intervals:
            if self._subscriber(interval.kept) == subscriber and interval.until_ns == NEVER_NS:
                self._leaves(interval)

    async def keep_leading(self) -> None:
        """Ask again and again whether something else is promised."""
        while True:
            await asyncio.sleep(_LEAD_SECONDS)
            with contextlib.suppress(CoordinatorError):
                await self.lead()

    async def lead(self) -> None:
        """Tell everyone where what is promised goes now, and wait until they are there."""
        async with self._leading:
            # Who has been told to leave has promises until the coordinator hears of it.
            found = [
                each
                for each in admitted_promises(self._scenario, await self._decided())
                if self._subscriber(each) not in self._away
            ]
            there = {each.kept.at: each for each in self.intervals if each.until_ns == NEVER_NS}
            gone = there.keys() - {each.at for each in found}
            new = [each for each in found if each.at not in there]
            if self._told and not gone and not new:
                return
            for at in gone:
                self._leaves(there[at])
            await self._tell(found)
            deadline = time.monotonic() + _LAID_SECONDS
            while not (laid := await self._all_laid(new)) and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_SECONDS)
            # What is not laid by then may have been withdrawn; the next time it is asked for again.
            self.intervals += [
                ActiveInterval(each, time.time_ns()) for each in new if laid or self._is_laid(each)
            ]

    async def _tell(self, found: Sequence[AdmittedPromise]) -> None:
        self._told += 1
        roles = self._carrying.promised_roles
        path = self._sockets / f"promised-{self._told}.json"
        tell_addresses(path, [each.at for each in found])
        for role in roles:
            tell(
                str(self._sockets / role),
                {"promised": str(path), "also_brokered": also_brokered(self._scenario, found, self._away)},
            )
        deadline = time.monotonic() + _READY_SECONDS
        while not all(Path(f"{path}.{role}").exists() for role in roles):
            self._carrying.require_alive()
            if time.monotonic() > deadline:
                raise NetworkError(f"clients do not find what is promised within {_READY_SECONDS:.0f} s")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _all_laid(self, promises: Sequence[AdmittedPromise]) -> bool:
        """Are these ways in force, in the kernel and on the switches?"""
        if not all(self._is_laid(each) for each in promises):
            return False
        return not promises or await self._carrying.switches_follow()

    def _is_laid(self, promise: AdmittedPromise) -> bool:
        """Do copies leave by all ports of its way? What is admitted is laid in stages, from its end."""
        wanted = {(promise.at.address, self._scenario.ports.name[port]) for port in promise.ports}
        return wanted <= self._carrying.copied()

    async def are_there(self, subscriber: str) -> bool:
        """Whether something is promised to a subscriber, perhaps still, since nobody has decided without it yet."""
        return any(each.admitted and each.subscriber == subscriber for each in await self._decided())

    async def _decided(self) -> list[Promise]:
        coordinator = Coordinator(self._coordinator)
        try:
            return [
                promise
                for name in plugged_publishers(self._scenario)
                for promise in await coordinator.promises_of("publishers", name)
            ]
        finally:
            await coordinator.close()

    def _leaves(self, interval: ActiveInterval) -> None:
        """What is under way to somebody who leaves may come, or not."""
        asked = self._scenario.subscriptions.max_latency_seconds[interval.kept.at.subscription]
        interval.until_ns = time.time_ns() - round(max(float(asked), interval.kept.bound_seconds) * 1e9)

    def _subscriber(self, promise: AdmittedPromise) -> str:
        row = int(self._scenario.subscriptions.subscriber[promise.at.subscription])
        return self._scenario.subscribers.name[row]
