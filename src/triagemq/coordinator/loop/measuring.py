"""Measuring: the gateways' counts, five times a second, into what is known of rates and ports; stored now and then."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from triagemq.channel.messages import ControlError, Measured
from triagemq.coordinator import store as tables
from triagemq.coordinator.gateways.joined import Gateways
from triagemq.coordinator.loop.health import Check
from triagemq.coordinator.ports import PortWatch
from triagemq.coordinator.rates import RateWatch
from triagemq.coordinator.store import Store

_LOG = logging.getLogger("triagemq.coordinator")
_CHANCE = random.Random()
"""Its own: reproducible numbers that are drawn in this process are not disturbed."""

MEASURE_SECONDS = 0.2
FLOWS_EVERY = 5
"""Every how many measurements the flows are counted too, for live figures: once a second."""

STORE_SECONDS = 10.0


class Measuring:
    """`on_change` hears of rates and ports that left their band, `on_second` of every full measurement and the last."""

    def __init__(
        self,
        gateways: Gateways,
        rates: RateWatch,
        ports: PortWatch,
        store: Store,
        *,
        on_change: Callable[[str], None],
        on_second: Callable[[Measured | None, Measured], Awaitable[None]],
    ) -> None:
        self.latest: Measured | None = None
        self._gateway = Check("the gateway has not answered yet")
        self._broker = Check("the gateway has not answered yet")
        self._gateways = gateways
        self._rates = rates
        self._ports = ports
        self._store = store
        self._on_change = on_change
        self._on_second = on_second
        self._stored: Mapping[str, Any] = {}
        self._stored_ports: Mapping[str, Any] = ports.to_store()
        self._store_at = 0.0

    def checks(self) -> dict[str, Check]:
        """Whether all gateways and their brokers work, by what was measured last; those that do not are named."""
        now = time.monotonic()
        gateways, brokers, answering = list[tuple[str, str]](), list[tuple[str, str]](), False
        for each in self._gateways:
            name = self._gateways.called(each)
            ailment = each.ailment(now)
            if ailment is not None:
                gateways.append((f"{name} {ailment[0]}", f"{name} {ailment[1]}"))
            if each.answer is None or not each.answers(now):
                continue
            answering = True
            if not each.answer.broker_connected or each.answer.broker_problem:
                lacks = f"{name} has no broker"
                brokers.append((lacks, each.answer.broker_problem or lacks))
        self._broker.is_implied = bool(gateways) and not answering
        if not answering:
            brokers = [("the broker is not known yet", "not known while the gateway does not answer")]
        for check, found in ((self._gateway, gateways), (self._broker, brokers)):
            check.words = "; ".join(words for words, _ in found)
            if found:
                check.failed("; ".join(reason for _, reason in found), now)
            else:
                check.worked(now)
        return {"gateway": self._gateway, "broker": self._broker}

    async def one_second(self) -> None:
        """A second's measurements; shorter if no gateway answers."""
        started = time.monotonic()
        try:
            for number in range(FLOWS_EVERY):
                # Not in step with anything: of what comes every second one look in five would see all.
                await _until(started + (number + _CHANCE.random()) * MEASURE_SECONDS)
                await self._measure(flows=number == 0)
        except ControlError:
            await asyncio.sleep(MEASURE_SECONDS)
            return
        await _until(started + FLOWS_EVERY * MEASURE_SECONDS)
        if time.monotonic() >= self._store_at:
            await self.store()
        else:
            await self._store_ports()

    async def _measure(self, *, flows: bool) -> None:
        measured = await self._gateways.measure(flows=flows)
        now, complete = time.monotonic(), measured.broker_since_ns is not None
        for change in self._rates.observe(now, measured.topics, complete=complete):
            self._on_change(str(change))
        for each in self._ports.observe(now, measured.ports, measured.epoch):
            what = each.kind.replace("_measured", "").replace("_", " ")
            self._on_change(f"measured {what} of port {each.subject} from {each.before} to {each.after}")
        if self._gateways.observed.take_changed():
            self._on_change("unannounced clients come, change or go")
        if flows:
            self._ports.count(now, measured.flows, measured.epoch)
            before, self.latest = self.latest, measured
            try:
                await self._on_second(before, measured)
            except Exception:
                # Figures and balancing: what one gateway says must not end the measuring of all.
                _LOG.exception("a second was not worked out")

    async def store(self) -> None:
        """Keep what was measured, if it is news."""
        self._store_at = time.monotonic() + STORE_SECONDS
        known = self._rates.to_store()
        if known != self._stored:
            await self._store.write(tables.store_measured, known)
            self._stored = known
        await self._store_ports()

    async def _store_ports(self) -> None:
        """At once: plans are made by it, and what an operator overruled must not come back after a restart."""
        ports = self._ports.to_store()
        if ports != self._stored_ports:
            await self._store.write(tables.store_measured_ports, ports)
            self._stored_ports = ports


async def _until(at_seconds: float) -> None:
    await asyncio.sleep(max(0.0, at_seconds - time.monotonic()))
