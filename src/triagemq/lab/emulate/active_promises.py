"""The promises that are in force in a box, by the coordinator, and from when to when.

A promise counts for the messages that its subscriber gets directly, until the subscriber leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from triagemq.client.coordinator import Coordinator, Promise
from triagemq.errors import CoordinatorError
from triagemq.lab.emulate.copying import plugged_publishers
from triagemq.lab.emulate.promises import NEVER_NS, ActiveInterval, MeasuredPromise, promises_in_force
from triagemq.scenario import Scenario

_LOOK_SECONDS = 0.05
_LAID_SECONDS = 10.0
_UPDATE_SECONDS = 0.5
"""Interval between queries for changed promises."""


class ActivePromises:
    """`intervals` are all promises that were ever in force; `notify` gets the present addresses, by publication."""

    def __init__(
        self, scenario: Scenario, coordinator: str, notify: Callable[[list[tuple[int, str]]], None]
    ) -> None:
        self.intervals: list[ActiveInterval] = []
        self._scenario, self._coordinator, self._notify = scenario, coordinator, notify
        self._updating = asyncio.Lock()
        self._absent: set[str] = set()
        self._last: list[tuple[int, str]] | None = None

    def set_present(self, subscriber: str, *, present: bool) -> None:
        """A subscriber joins or leaves."""
        if present:
            self._absent.discard(subscriber)
            return
        self._absent.add(subscriber)
        for interval in self.intervals:
            if self._subscriber(interval.promise) == subscriber and interval.until_ns == NEVER_NS:
                self._leaves(interval)

    async def begin(self) -> None:
        """Wait, though not for ever, until publishers send directly what is promised."""
        deadline = time.monotonic() + _LAID_SECONDS
        while not await self._are_laid() and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        await self.update()

    async def keep_updating(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(_UPDATE_SECONDS)
            with contextlib.suppress(CoordinatorError):
                await self.update()

    async def update(self) -> None:
        """Note what is in force now, and notify clients of a change."""
        async with self._updating:
            # A client that leaves has its promises until the coordinator hears of it.
            found = [
                each
                for each in promises_in_force(self._scenario, await self._decided())
                if self._subscriber(each) not in self._absent
            ]
            before = {_identity(each.promise): each for each in self.intervals if each.until_ns == NEVER_NS}
            for gone in before.keys() - {_identity(each) for each in found}:
                self._leaves(before[gone])
            for each in found:
                if _identity(each) not in before:
                    self.intervals.append(ActiveInterval(each, self._free_from_ns(each)))
            addresses = sorted({(each.publication, each.address) for each in found})
            if addresses != self._last:
                self._last = addresses
                self._notify(addresses)

    async def are_there(self, subscriber: str) -> bool:
        """Whether a subscriber has promises, perhaps of a decision that is not yet revised."""
        return any(each.admitted and each.subscriber == subscriber for each in await self._decided())

    async def _are_laid(self) -> bool:
        """Do publishers have orders to send directly whatever is promised to subscribers that are present?"""
        coordinator = Coordinator(self._coordinator)
        try:
            topics = {
                name: (await coordinator.direction(name, after=0, wait_seconds=0.0)).topics
                for name in plugged_publishers(self._scenario)
            }
        finally:
            await coordinator.close()
        return all(
            each.topic in topics[each.publisher]
            for each in await self._decided()
            if each.admitted and each.subscriber not in self._absent
        )

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
        """Messages on their path to a subscriber that leaves may arrive or not."""
        requested = self._scenario.subscriptions.max_latency_seconds[interval.promise.subscription]
        interval.until_ns = time.time_ns() - round(
            max(float(requested), interval.promise.bound_seconds) * 1e9
        )

    def _free_from_ns(self, promise: MeasuredPromise) -> int:
        """The end of what was promised to the same subscription before."""
        pair = promise.publication, promise.subscription
        return max(
            (
                each.until_ns
                for each in self.intervals
                if (each.promise.publication, each.promise.subscription) == pair
            ),
            default=0,
        )

    def _subscriber(self, promise: MeasuredPromise) -> str:
        row = int(self._scenario.subscriptions.subscriber[promise.subscription])
        return self._scenario.subscribers.name[row]


def _identity(promise: MeasuredPromise) -> tuple[int, int, str, int]:
    """Bound and levels may change with other promises."""
    return promise.publication, promise.subscription, promise.address, promise.since_generation
