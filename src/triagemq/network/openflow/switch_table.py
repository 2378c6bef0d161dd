"""The rules and meters that one connected switch has: read once, then kept up to date with every order."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from triagemq.errors import SwitchError
from triagemq.network.openflow import decoding, encoding
from triagemq.network.openflow.decoding import PortCounts
from triagemq.network.openflow.rules import Kind, RateLimit, Rule, RuleKey
from triagemq.network.openflow.session import SwitchSession
from triagemq.network.openflow.updates import (
    COOKIE_MARK,
    COOKIE_MASK,
    FLOW_COOKIE_MARK,
    FLOW_COOKIE_MASK,
    Cookies,
    Delete,
    Put,
)

_OUR_METERS = range(0x7154, 0x10000)
"""Meters have no cookies: ours have these numbers."""


class Installed(NamedTuple):
    """A rule on a switch, and the numbers it has there."""

    rule: Rule
    cookie: int
    meter: int | None


class SwitchTable:
    """What we have put on a switch. Rules of others are not here, except that their keys are not ours to use."""

    def __init__(self, session: SwitchSession, cookies: Cookies) -> None:
        self.session = session
        self.installed: dict[RuleKey, Installed] = {}
        self._cookies = cookies
        self._meters: dict[int, RateLimit | None] = {}
        self._foreign: set[RuleKey] = set()

    @property
    def rules(self) -> dict[RuleKey, Rule]:
        return {key: each.rule for key, each in self.installed.items()}

    async def read(self) -> None:
        """Ask the switch for all its rules and meters."""
        entries = decoding.decode_flow_entries(
            await self.session.parts(encoding.request_flows(0, 0), "its rules")
        )
        try:
            limits = decoding.decode_meter_limits(
                await self.session.parts(encoding.request_meter_limits(), "its meters")
            )
        except SwitchError:
            limits = {}  # A switch without meters may say so by an error.
        self._meters = {meter: limits[meter] for meter in limits if meter in _OUR_METERS}
        self.installed, self._foreign = {}, set()
        for cookie, rule, meter in entries:
            if cookie & COOKIE_MASK != COOKIE_MARK:
                self._foreign.add(rule.key)
                continue
            self._cookies.seen(cookie)
            if meter is not None:
                limit = limits.get(meter)
                rule = replace(rule, limit=limit, strange=rule.strange or limit is None)
            self.installed[rule.key] = Installed(rule, cookie, meter)

    def order(self, change: Put | Delete) -> None:
        """Send what a change asks for; errors come out of the session's next barrier."""
        if isinstance(change, Put):
            self._put(change.rule)
        else:
            self._delete(change.rule)

    async def erase(self) -> None:
        """Take away everything of ours."""
        self.session.send(encoding.delete_marked_flows(COOKIE_MARK, COOKIE_MASK), "the deletion of all rules")
        for meter in self._meters:
            self.session.send(encoding.delete_meter(meter), f"the deletion of meter {meter}")
        self.installed, self._meters = {}, {}
        await self.session.barrier()

    async def flow_counts(self) -> dict[RuleKey, tuple[int, int, int]]:
        """Packets, bytes, and packets over the limit of every flow's rule."""
        counts = decoding.decode_flow_counts(
            await self.session.parts(
                encoding.request_flows(FLOW_COOKIE_MARK, FLOW_COOKIE_MASK), "its counters"
            )
        )
        drops: dict[int, int] = {}
        if self._meters:
            drops = decoding.decode_meter_drops(
                await self.session.parts(encoding.request_meter_counts(), "the counters of its meters")
            )
        return {
            key: (*counts[each.cookie], drops.get(each.meter, 0) if each.meter is not None else 0)
            for key, each in self.installed.items()
            if each.cookie in counts
        }

    async def port_counts(self) -> dict[int, PortCounts]:
        bodies = await self.session.parts(encoding.request_port_counts(), "the counters of its ports")
        return decoding.decode_port_counts(bodies)

    def _put(self, rule: Rule) -> None:
        before = self.installed.get(rule.key)
        if before is None and rule.key in self._foreign:
            raise SwitchError(self.session.name, (f"nothing yet, but has a rule {rule} that is not ours",))
        meter = None
        if rule.limit is not None:
            meter = self._meter(rule, before)
        cookie = self._cookies.next(flow=rule.kind in (Kind.FLOW, Kind.CONTROL))
        self.session.send(encoding.put_flow(rule, cookie, meter), f"the rule {rule}")
        self.installed[rule.key] = Installed(rule, cookie, meter)
        if before is not None and before.meter is not None and meter is None:
            self._drop_meter(before.meter)

    def _delete(self, rule: Rule) -> None:
        before = self.installed.pop(rule.key, None)
        if before is None:
            return
        self.session.send(encoding.delete_flow(rule, before.cookie), f"the deletion of the rule {rule}")
        if before.meter is not None:
            self._drop_meter(before.meter)

    def _meter(self, rule: Rule, before: Installed | None) -> int:
        """The meter for a rule: the one it has, with the limit it should have, or another."""
        assert rule.limit is not None
        if before is not None and before.meter in self._meters:
            meter, there = before.meter, True
        else:
            meter = next((number for number in _OUR_METERS if number not in self._meters), 0)
            there = False
            if not meter:
                raise SwitchError(self.session.name, (f"the rule {rule} (all meters are in use)",))
        if self._meters.get(meter) != rule.limit:
            self.session.send(encoding.put_meter(meter, rule.limit, there=there), f"meter {meter} of {rule}")
            self.session.fence()
            self._meters[meter] = rule.limit
        return meter

    def _drop_meter(self, meter: int) -> None:
        if self._meters.pop(meter, None) is not None:
            # A rule that still used the meter would go with it.
            self.session.fence()
            self.session.send(encoding.delete_meter(meter), f"the deletion of meter {meter}")
