"""Leading a gateway that refuses, loses answers, forgets and is interfered with: what is wanted comes into force."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.coordinator.coordinating import FakeLink

from triagemq.channel.grants import Grant, Grants
from triagemq.channel.messages import ControlError, DesiredState, GatewayRefusalError
from triagemq.channel.orders import Orders
from triagemq.coordinator.gateways.reconciler import GatewayReconciler


class Rights:
    """Who may do what; `grants` is what the lead asks."""

    def __init__(self, *bases: str) -> None:
        self.bases = bases

    def grants(self) -> Grants:
        return Grants(True, {base: Grant(subscribe=("#",)) for base in self.bases})


class Unruly(FakeLink):
    """`failing` is what the next tellings end in: before the gateway has heard them, or when it has done them."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: list[str] = []
        self.told: list[DesiredState] = []
        self.pause = asyncio.Event()
        self.pause.set()

    async def send_state(self, before: DesiredState | None, after: DesiredState) -> None:
        how = self.failing.pop(0) if self.failing else ""
        await self.pause.wait()
        if how == "refused":
            raise GatewayRefusalError("the gateway refuses 'state': disk full")
        if how == "unheard":
            raise ControlError("the gateway was lost")
        await super().send_state(before, after)
        self.told.append(after)
        if how == "unanswered":
            raise ControlError("the gateway was lost before it answered")


def run(what: Callable[[Unruly, Rights, GatewayReconciler], Awaitable[None]]) -> None:
    async def led() -> None:
        link, rights = Unruly(), Rights("ff-7.k")
        await what(link, rights, GatewayReconciler(link, rights.grants, Orders(1)))

    asyncio.run(led())


@pytest.mark.parametrize("how", ["refused", "unheard", "unanswered"])
def test_what_could_not_be_told_once_is_told_again_and_counts_as_not_in_force_until_then(how: str) -> None:
    async def check(link: Unruly, rights: Rights, lead: GatewayReconciler) -> None:
        assert await lead.sync()
        assert lead.behind_seconds is None
        rights.bases = ()
        lead.want_grants()
        link.failing = [how]
        assert not await lead.sync()
        assert not lead.grants_in_force
        assert lead.confirmed_version != lead.wanted_version
        assert lead.behind_seconds is not None
        assert lead.problem is not None
        assert await lead.sync()
        assert link.state.grants == Grants(True)
        assert lead.confirmed_version == lead.wanted_version == link.state.version
        assert (lead.behind_seconds, lead.problem, lead.failures) == (None, None, 1)
        # Once is enough, also where only the answer was lost.
        assert sum(state.grants == Grants(True) for state in link.told) == 1

    run(check)


def test_a_revocation_does_not_wait_for_orders_that_are_refused() -> None:
    async def check(link: Unruly, rights: Rights, lead: GatewayReconciler) -> None:
        await lead.sync()
        link.refuses_orders = True
        lead.want_orders(Orders(2))
        assert not await lead.sync()
        rights.bases = ()
        lead.want_grants()
        assert not await lead.sync()
        assert lead.grants_in_force
        assert link.state.grants == Grants(True)
        assert link.state.orders == Orders(1)
        assert lead.behind_seconds is not None, "the orders are still wanted"
        link.refuses_orders = False
        assert await lead.sync()
        assert link.state.orders == Orders(2)

    run(check)


def test_a_gateway_that_nobody_has_led_hears_of_rights_before_orders_even_if_it_refuses_those() -> None:
    async def check(link: Unruly, rights: Rights, lead: GatewayReconciler) -> None:
        link.state = DesiredState("another coordinator", 41, Orders(9), Grants(True, {"revoked.k": Grant()}))
        link.refuses_orders = True
        assert not await lead.sync()
        assert set(link.state.grants.by_base) == {"ff-7.k"}
        assert lead.grants_in_force
        link.refuses_orders = False
        assert await lead.sync()
        assert link.state.orders == Orders(1)
        assert link.state.version > 41

    run(check)


def test_changes_that_come_while_it_is_being_told_are_told_too_and_together() -> None:
    async def check(link: Unruly, rights: Rights, lead: GatewayReconciler) -> None:
        await lead.sync()
        link.told.clear()
        link.pause.clear()
        lead.want_orders(Orders(2))
        first = asyncio.create_task(lead.sync())
        await asyncio.sleep(0)
        others = []
        for generation in range(3, 8):
            rights.bases = tuple(f"s{number}.k" for number in range(generation))
            lead.want_grants()
            lead.want_orders(Orders(generation))
            others.append(asyncio.create_task(lead.sync()))
        await asyncio.sleep(0)
        link.pause.set()
        assert all(await asyncio.gather(first, *others))
        assert [(state.orders, len(state.grants.by_base)) for state in link.told] == [
            (Orders(2), 1),
            (Orders(2), 7),
            (Orders(7), 7),
        ]
        assert lead.confirmed_version == lead.wanted_version

    run(check)


def test_a_gateway_that_comes_back_is_told_what_it_lacks_and_no_more() -> None:
    async def check(link: Unruly, rights: Rights, lead: GatewayReconciler) -> None:
        await lead.sync()
        link.connected = False
        rights.bases = ()
        lead.want_grants()
        lead.want_orders(Orders(2))
        assert not await lead.sync()
        link.connected, link.told = True, []
        lead.lost()
        assert await lead.sync()
        assert [state.grants for state in link.told] == [Grants(True)] * 2, "the revocation first"
        assert [state.orders for state in link.told] == [Orders(1), Orders(2)]
        # Killed before it had kept the last, it begins with the one before.
        link.state, link.told = link.told[0], []
        lead.lost()
        assert await lead.sync()
        assert link.state.orders == Orders(2)

    run(check)


def test_a_gateway_that_follows_somebody_else_is_noticed() -> None:
    async def check(link: Unruly, rights: Rights, lead: GatewayReconciler) -> None:
        await lead.sync()
        link.state = replace(link.state, author="somebody else", grants=Grants())
        for _ in range(2):
            lead.measured(await link.measure())
        assert await lead.sync()
        assert link.state.grants == rights.grants()

    run(check)


def test_it_is_told_again_ever_more_seldom() -> None:
    async def check(link: Unruly, rights: Rights, lead: GatewayReconciler) -> None:
        link.failing = ["refused"] * 6
        pauses = []
        for _ in range(6):
            await lead.sync()
            pauses.append(lead.pause_seconds)
        assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
        await lead.sync()
        assert lead.pause_seconds == 1.0

    run(check)
