"""The desired state is sent to a gateway until it confirms its version.

Grants go first and by themselves: a client that loses a right does not keep it because orders are refused or take their
time. After a failure nothing is taken for granted: the gateway says which version it follows, and gets what it lacks.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from triagemq.channel.grants import Grants
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import (
    ControlError,
    DesiredState,
    GatewayRefusalError,
    Measured,
    PortConstraints,
)
from triagemq.channel.orders import Orders

_LOG = logging.getLogger("triagemq.coordinator")
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 8.0


class GatewayReconciler:
    """One gateway, behind one link. `grants` says who may do what at the moment it is called."""

    def __init__(self, link: GatewayLink, grants: Callable[[], Grants], orders: Orders | None = None) -> None:
        self.link = link
        self.problem: ControlError | None = None
        """Why the last attempt to send the state failed, if it did."""
        self.failures = 0
        self._failures_in_row = 0
        self._grants = grants
        self._grants_changed = True
        self._wanted = DesiredState(secrets.token_hex(4), 1, orders)
        # What the gateway is known to follow, and what it follows if the last message arrived and its answer did not.
        self._confirmed: DesiredState | None = None
        self._sent: DesiredState | None = None
        self._sure = False
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
        """How long packets may wait at ports whose queue rates are controlled; whether that is news."""
        if constraints == (self._wanted.constraints or {}):
            return False
        self._want(replace(self._wanted, constraints=constraints))
        return True

    def want_grants(self) -> None:
        """A client has got or lost a right; the grants are looked up when they are sent."""
        self._grants_changed = True
        self._rights_behind_since = self._rights_behind_since or time.monotonic()
        self._want(self._wanted)

    def _want(self, wanted: DesiredState) -> None:
        self._wanted = replace(wanted, version=wanted.version + 1)
        self._behind_since = self._behind_since or time.monotonic()

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
        """How long to wait before the next attempt: longer, the more of them have failed."""
        return min(_LEAST_PAUSE_SECONDS * 2.0 ** max(0, self._failures_in_row - 1), _MOST_PAUSE_SECONDS)

    # Sending it.

    def lost(self) -> None:
        """The gateway is or was away: what it follows when it is back, it will say."""
        self._sure = False
        self._failures_in_row = 0

    def measured(self, now: Measured) -> None:
        """A gateway that follows another version for more than a moment got it from another coordinator."""
        known = self._confirmed
        apart = known is not None and (now.author, now.version) != (known.author, known.version)
        apart = apart and not self._turn.locked()
        if apart and self._apart_before:
            self._sure = False
        self._apart_before = apart

    async def sync(self) -> bool:
        """Bring the gateway to what is wanted now; False if that does not go now."""
        async with self._turn:
            try:
                if not self._sure:
                    await self._find_followed()
                while (step := self._step()) is not None:
                    await self._send(step)
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

    async def _find_followed(self) -> None:
        author, version = await self.link.following()
        candidates, self._confirmed, self._sent = (self._confirmed, self._sent), None, None
        for known in candidates:
            if known is not None and (known.author, known.version) == (author, version):
                self._confirmed = known
        if self._confirmed is None:
            # Numbers grow at a gateway, whichever coordinator gives them.
            self._wanted = replace(self._wanted, version=max(self._wanted.version, version + 1))
            self._behind_since = self._behind_since or time.monotonic()
            self._rights_behind_since = self._rights_behind_since or time.monotonic()
        self._sure = True

    def _step(self) -> DesiredState | None:
        """What to send next: grants that have changed, then everything; None if the gateway has it all."""
        if self._grants_changed:
            self._grants_changed = False
            self._wanted = replace(self._wanted, grants=self._grants())
        known, wanted = self._confirmed, self._wanted
        if known is not None and known.version == wanted.version:
            return None
        orders = None if known is None else known.orders
        if (known is None or known.grants is not wanted.grants) and orders is not wanted.orders:
            # On the way to what is wanted, under a number of its own.
            self._wanted = replace(wanted, version=wanted.version + 1)
            return replace(wanted, orders=orders)
        return wanted

    async def _send(self, step: DesiredState) -> None:
        self._sent = step
        await self.link.send_state(self._confirmed, step)
        self._confirmed, self._sent = step, None
        if self.grants_in_force:
            self._rights_behind_since = None

    def failed(self, error: ControlError) -> None:
        """The state could not be sent."""
        if isinstance(error, GatewayRefusalError) and str(error) != str(self.problem):
            # Not lost, but unwilling: an operator should know.
            _LOG.warning("the gateway: %s", error)
        self.problem = error
