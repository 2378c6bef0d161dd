"""The rules and meters that one connected switch has: read once, then updated with every request."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import NamedTuple

from triagemq.errors import SwitchError
from triagemq.network.openflow import decoding, encoding
from triagemq.network.openflow.rules import (
    COOKIE_MARK,
    COOKIE_MASK,
    FLOW_COOKIE_MARK,
    FLOW_COOKIE_MASK,
    Delete,
    Put,
    RateLimit,
    Rule,
    RuleKey,
    cookie_of,
)
from triagemq.network.openflow.session import SwitchSession

_OUR_METERS = range(0x7154, 0x10000)
"""Meters have no cookies: ours have these numbers; on a switch that has not so many the upper half of what it has."""

_RESTING_SECONDS = 2.0
"""Packets pass a meter for a while after its rule has gone: a switch may be slow to forget what it has decided."""


class Installed(NamedTuple):
    """A rule on a switch, and the numbers it has there."""

    rule: Rule
    cookie: int
    meter: int | None


class SwitchTable:
    """What we have put on a switch. Rules of others are not here, except that their keys are not ours to use."""

    def __init__(self, session: SwitchSession) -> None:
        self.session = session
        self.installed: dict[RuleKey, Installed] = {}
        self._meters: dict[int, RateLimit | None] = {}
        self._our_meters = range(0)
        # Meters that no rule uses any more: when that began, and of whom they count.
        self._resting: dict[int, tuple[float, RuleKey | None]] = {}
        self._limited_before: dict[RuleKey, int] = {}
        self._foreign: set[RuleKey] = set()

    @property
    def rules(self) -> dict[RuleKey, Rule]:
        return {key: each.rule for key, each in self.installed.items()}

    async def read(self) -> None:
        """Ask the switch for all its rules and meters."""
        entries = decoding.decode_flow_entries(
            await self.session.parts(encoding.request_flows(0, 0), "its rules")
        )
        most, limits = 0, {}
        # A switch without meters may say so by an error.
        with contextlib.suppress(SwitchError):
            features = await self.session.parts(encoding.REQUEST_METER_FEATURES, "what its meters can do")
            most = decoding.decode_meter_features(features)
            limits = decoding.decode_meter_limits(
                await self.session.parts(encoding.REQUEST_METER_LIMITS, "its meters")
            )
        self._our_meters = _OUR_METERS if most >= _OUR_METERS[-1] else range(most // 2 + 1, most + 1)
        self._meters = {meter: limits[meter] for meter in limits if meter in self._our_meters}
        self.installed, self._foreign = {}, set()
        for cookie, rule, meter in entries:
            if cookie & COOKIE_MASK != COOKIE_MARK:
                self._foreign.add(rule.key)
                continue
            if meter is not None:
                limit = limits.get(meter)
                rule = replace(rule, limit=limit, is_foreign=rule.is_foreign or limit is None)
            self.installed[rule.key] = Installed(rule, cookie, meter)
        # A rule that was refused has left the former one its meter.
        used = {each.meter for each in self.installed.values()}
        self._resting = {
            meter: self._resting.get(meter, (_now(), None)) for meter in self._meters if meter not in used
        }

    def request(self, change: Put | Delete) -> None:
        """Send what a change asks for; errors come out of the session's next barrier."""
        if isinstance(change, Put):
            self._put(change.rule)
        else:
            self._delete(change.rule)

    async def erase(self) -> None:
        """Take away everything of ours."""
        self.session.send(
            encoding.flow_mod_delete_marked(COOKIE_MARK, COOKIE_MASK), "the deletion of all rules"
        )
        for meter in self._meters:
            self.session.send(encoding.meter_mod_delete(meter), f"the deletion of meter {meter}")
        self.installed, self._meters, self._resting, self._limited_before = {}, {}, {}, {}
        await self.session.barrier()

    async def drop_meters(self) -> None:
        """Delete meters that have rested; what they have counted stays with their rules."""
        rested = [meter for meter, (since, _) in self._resting.items() if _now() - since > _RESTING_SECONDS]
        if not rested:
            return
        drops = await self._meter_drops()
        for meter in rested:
            _, key = self._resting.pop(meter)
            if key in self.installed:
                self._limited_before[key] = self._limited_before.get(key, 0) + drops.get(meter, 0)
            self._meters.pop(meter, None)
            self.session.send(encoding.meter_mod_delete(meter), f"the deletion of meter {meter}")
        await self.session.barrier()

    async def flow_counts(self) -> dict[RuleKey, tuple[int, int, int]]:
        """Packets, bytes, and packets over the limit of every flow's rule."""
        counts = decoding.decode_flow_counts(
            await self.session.parts(
                encoding.request_flows(FLOW_COOKIE_MARK, FLOW_COOKIE_MASK), "its counters"
            )
        )
        drops = await self._meter_drops() if self._meters else {}
        limited = dict(self._limited_before)
        counting = [(each.meter, key) for key, each in self.installed.items() if each.meter is not None]
        counting += [(meter, key) for meter, (_, key) in self._resting.items() if key is not None]
        for meter, key in counting:
            limited[key] = limited.get(key, 0) + drops.get(meter, 0)
        return {
            key: (*counts[each.cookie], limited.get(key, 0))
            for key, each in self.installed.items()
            if each.cookie in counts
        }

    async def _meter_drops(self) -> dict[int, int]:
        bodies = await self.session.parts(encoding.REQUEST_METER_COUNTS, "the counters of its meters")
        return decoding.decode_meter_drops(bodies)

    def _put(self, rule: Rule) -> None:
        before = self.installed.get(rule.key)
        if before is None and rule.key in self._foreign:
            raise SwitchError(self.session.name, (f"nothing yet, but has a rule {rule} that is not ours",))
        meter = None
        if rule.limit is not None:
            meter = self._meter(rule, before)
        cookie = cookie_of(rule)
        self.session.send(encoding.flow_mod(rule, cookie, meter), f"the rule {rule}")
        self.installed[rule.key] = Installed(rule, cookie, meter)
        if before is not None and before.meter is not None and before.meter != meter:
            self._resting[before.meter] = _now(), rule.key

    def _delete(self, rule: Rule) -> None:
        before = self.installed.pop(rule.key, None)
        if before is None:
            return
        self.session.send(encoding.flow_mod_delete(rule, before.cookie), f"the deletion of the rule {rule}")
        self._limited_before.pop(rule.key, None)
        for meter, (since, key) in self._resting.items():
            if key == rule.key:
                self._resting[meter] = since, None
        if before.meter is not None:
            self._resting[before.meter] = _now(), None

    def _meter(self, rule: Rule, before: Installed | None) -> int:
        """The meter for a rule: the one it has, or with another limit another one.

        A meter that is changed in its place may lose what it has counted.
        """
        assert rule.limit is not None
        if before is not None and before.meter is not None and self._meters.get(before.meter) == rule.limit:
            return before.meter
        if not self._our_meters:
            raise SwitchError(
                self.session.name, (f"the rule {rule} (it has no meters, and the flow a limiter)",)
            )
        meter = next((number for number in self._our_meters if number not in self._meters), 0)
        if not meter:
            raise SwitchError(self.session.name, (f"the rule {rule} (all its meters are in use)",))
        self.session.send(encoding.meter_mod(meter, rule.limit), f"meter {meter} of {rule}")
        self.session.send_barrier()
        self._meters[meter] = rule.limit
        return meter


def _now() -> float:
    return asyncio.get_running_loop().time()
