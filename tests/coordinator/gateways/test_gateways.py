"""Several gateways as equals: what one of them does, says or leaves unanswered is shown by name and harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.coordinator.coordinating import FakeLink, Running, bearer, database_in, make_token, running
from tests.coordinator.coordinating import subscriber as announcement

from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import (
    ControlError,
    GatewayIdentity,
    GatewaySessions,
    Measured,
    encode_line,
)
from triagemq.coordinator.gateways import handle
from triagemq.coordinator.gateways import joined as all_joined
from triagemq.coordinator.gateways.handle import GatewayHandle, merged
from triagemq.coordinator.refusals import ConflictError, RequestError
from triagemq.coordinator.store import Store, set_gateways
from triagemq.plan.dataplane import FlowCounters


class JoiningLink(FakeLink):
    """A gateway that joins. While `hangs` it answers nothing; `nonsense` is what it answers to `measure` instead."""

    def __init__(self, port: int = 10001, stored: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.who = GatewayIdentity(f"127.0.0.1:{port}", f"mqtt://127.0.0.1:{port + 1000}")
        self.stored = list(stored)
        self.answering = asyncio.Event()
        self.answering.set()
        self.nonsense = False
        self.measured = 0

    async def identity(self) -> GatewayIdentity:
        await self.answering.wait()
        return self.who

    async def sessions(self) -> GatewaySessions:
        return GatewaySessions([], self.stored)

    async def measure(self, **what: Any) -> Measured:
        await self.answering.wait()
        self._there()
        if self.nonsense:
            raise ControlError("the gateway's answer to 'measure' cannot be used: topics: Field required")
        self.measured += 1
        return await super().measure(**what)

    async def send_state(self, before: Any, after: Any) -> bool:
        await self.answering.wait()
        return await super().send_state(before, after)

    async def close(self) -> None:
        self.connected = False


def with_three(directory: Path, scene: Callable[..., Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        links = {
            name: JoiningLink(port) for name, port in (("library", 10000), ("hall", 10001), ("labs", 10002))
        }
        async with running(directory, link=links["library"], gateway_name="library", **options) as here:
            for name in ("hall", "labs"):
                await joined(here, name, links[name])
            await here.until(lambda: all(link.measured for link in links.values()))
            await here.until(lambda: is_well(here))
            await scene(here, links)

    asyncio.run(run())


async def joined(here: Running, name: str, link: Any) -> None:
    await here.coordinator.runtime.gateway_joined(name, link, "127.0.0.1", is_here=True)


async def status(here: Running) -> str:
    return str((await here.client.get("/v1/health")).json()["status"])


async def is_well(here: Running) -> bool:
    return await status(here) == "ok"


@pytest.mark.parametrize("ill", ["library", "hall", "labs"])
def test_a_gateway_that_hangs_is_named_in_health_and_the_others_are_measured_and_told(
    tmp_path: Path, ill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "OVERDUE_SECONDS", 0.5)
    monkeypatch.setattr(all_joined, "_ROUND_SECONDS", 0.1)

    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        links[ill].answering.clear()
        await here.until(lambda: _says(here, f"gateway {ill} does not answer"))
        counts = {name: link.measured for name, link in links.items()}
        body = announcement("ff-7", "smoke")
        assert (await here.client.post("/v1/subscribers", json=body)).status_code == 201
        well = [name for name in links if name != ill]
        await here.until(lambda: all(links[name].measured > counts[name] + 5 for name in well))
        await here.until(lambda: all(links[name].told_orders for name in well))
        metrics = (await here.client.get("/metrics")).text
        assert f'triage_gateway_connected{{gateway="{ill}"}} 0' in metrics
        assert all(f'triage_gateway_connected{{gateway="{name}"}} 1' in metrics for name in well)
        links[ill].answering.set()
        await here.until(lambda: is_well(here))

    with_three(tmp_path, scene)


def test_a_gateway_whose_questions_time_out_stays_silent_and_no_round_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "ANSWER_SECONDS", 0.2)

    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        given_up = 0

        async def time_out(**what: Any) -> Measured:
            nonlocal given_up
            await asyncio.sleep(0.3)
            given_up += 1
            raise ControlError("the gateway did not answer")

        gateways = here.coordinator.runtime.gateways
        ill = next(each for each in gateways if each.name == "labs")
        monkeypatch.setattr(links["labs"], "measure", time_out)
        await here.until(lambda: ill.is_silent)
        flapped = False
        while given_up < 4:
            flapped |= not ill.is_silent
            await asyncio.sleep(0.01)
        assert not flapped
        # A round that waited would end by its time limit.
        monkeypatch.setattr(all_joined, "_ROUND_SECONDS", 3600.0)
        before = links["hall"].measured
        await here.until(lambda: links["hall"].measured > before + 5)

    with_three(tmp_path, scene)


def test_a_gateway_that_misses_a_round_takes_nothing_from_the_sums() -> None:
    def counted(epoch: str, packets: int) -> Measured:
        return Measured(epoch, 0, {}, {}, {}, {"s~0": FlowCounters(1, packets)}, 1, 0, True)

    north, south = counted("a", 100), counted("b", 1_000)
    both = merged({"north": north, "south": south}, {"north": north, "south": south}, {}, 1)
    one = merged({"north": counted("a", 101)}, {"north": counted("a", 101), "south": south}, {}, 2)
    assert (one.epoch, both.flows["s~0"].packets_in, one.flows["s~0"].packets_in) == (
        both.epoch,
        1_100,
        1_101,
    )
    assert (both.at_ns, one.at_ns) == (1, 2)


@pytest.mark.parametrize("ill", ["library", "labs"])
def test_answers_of_one_gateway_that_make_no_sense_keep_no_other_from_being_measured(
    tmp_path: Path, ill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "OVERDUE_SECONDS", 0.5)

    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        links[ill].nonsense = True
        links["hall"].topics = {"smoke": (7, 700)}
        await here.until(lambda: _says(here, f"gateway {ill} does not answer"))
        found = (await here.client.get("/v1/health")).json()["checks"]["gateway"]["reason"]
        assert "cannot be used: topics" in found
        before = links["hall"].measured
        await here.until(lambda: links["hall"].measured > before + 5)
        links["hall"].topics = {"smoke": (12, 1200)}
        publications = here.coordinator.runtime.rates.publications
        await here.until(lambda: publications("smoke") >= 5)

    with_three(tmp_path, scene)


COUNTED = {"epoch": "e", "at_ns": 1, "topics": {}, "counters": {}, "ports": {}, "flows": {}}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"epoch": 1, "topics": {"a": [1]}},
        {"epoch": "e", "at_ns": "soon"},
        {"epoch": "e", "at_ns": 1, "topics": {"a": [-5, 1 << 70]}, "counters": {}, "ports": {}, "flows": {}},
        COUNTED | {"round_trips": {"hall": "NaN"}},
        COUNTED | {"client_round_trips": {"ff-7~0": -1.0}},
    ],
)
def test_whatever_a_gateway_answers_its_link_says_that_it_cannot_be_used(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    whole = {"generation": 1, "sessions": 0, "broker_connected": True} | answer

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 1
        while await reader.readline():
            writer.write(encode_line({"id": number, "ok": True, **whole}))
            number += 1
        writer.close()

    async def scene() -> None:
        server = await asyncio.start_unix_server(serve, tmp_path / "control")
        link = GatewayLink(tmp_path / "control")
        link.start()
        assert await link.wait_connected(10.0)
        for ask in (link.measure, link.following, link.identity, link.sessions, link.current):
            with pytest.raises(ControlError, match="cannot be used"):
                await ask()
        await link.close()
        server.close()
        await asyncio.sleep(0.05)

    asyncio.run(scene())


def test_a_gateway_that_crashes_again_and_again_is_named_in_health_also_while_it_is_up(
    tmp_path: Path,
) -> None:
    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        for number in range(3):
            links["hall"].connected = False
            assert "gateway hall is away" in await status(here)
            again = JoiningLink(10001)
            again.epoch = f"start {number}"
            await joined(here, "hall", again)
            links["hall"] = again
            await here.until(lambda again=again: again.measured)
        await here.until(lambda: _says(here, "gateway hall is started again and again"))
        assert "library" not in await status(here)

    with_three(tmp_path, scene)


def test_a_revocation_names_the_gateway_that_does_not_know_of_it_until_that_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = make_token(database_in(tmp_path), "operator")

    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        async def revoked() -> Any:
            wanted = {"roles": ["subscriber"], "subscribe": ["#"]}
            made = (await here.client.post("/v1/tokens", json=wanted, headers=bearer(operator))).json()
            return await here.client.delete(f"/v1/tokens/{made['token_id']}", headers=bearer(operator))

        async def knows_two() -> bool:
            return len(here.coordinator.runtime.gateways) == 2

        assert (await revoked()).status_code == 204
        links["hall"].connected = False
        await here.client.post(
            "/v1/subscribers", json=announcement("ff-7", "smoke"), headers=bearer(operator)
        )
        answer = await revoked()
        assert answer.status_code == 202
        assert "gateway hall (127.0.0.1:10001): it is away" in answer.json()["detail"]
        assert "library" not in answer.json()["detail"]
        monkeypatch.setattr(handle, "LEASE_SECONDS", 0.0)
        await here.until(knows_two)
        await here.until(lambda: is_well(here))
        assert (await revoked()).status_code == 204
        rows = (await here.client.get("/v1/decisions?limit=1000", headers=bearer(operator))).json()
        assert ("left", "gateway hall") in {(row["kind"], row["subject"]) for row in rows["decisions"]}

    with_three(tmp_path, scene, access=True)


def test_the_gateway_that_a_coordinator_is_configured_with_is_never_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        links["library"].connected = False
        monkeypatch.setattr(handle, "LEASE_SECONDS", 0.0)
        await asyncio.sleep(0.6)
        assert len(here.coordinator.runtime.gateways) == 3

    with_three(tmp_path, scene)


def test_of_two_that_join_under_one_name_at_once_one_is_refused(tmp_path: Path) -> None:
    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        found = await asyncio.gather(
            *(joined(here, "annex", JoiningLink(10010 + number)) for number in range(2)),
            return_exceptions=True,
        )
        [refused] = [each for each in found if each is not None]
        assert isinstance(refused, ConflictError)
        assert "another --name" in str(refused)
        with pytest.raises(ConflictError):
            await joined(here, "annex", JoiningLink(10012))
        with pytest.raises(ConflictError):
            await joined(here, "library", JoiningLink(10013))
        assert sorted(each.name for each in here.coordinator.runtime.gateways) == [
            "annex",
            "hall",
            "labs",
            "library",
        ]

    with_three(tmp_path, scene)


def test_a_gateway_takes_the_place_of_one_of_its_name_that_does_not_answer_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_joined, "_ROUND_SECONDS", 0.1)

    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        links["hall"].answering.clear()
        again = JoiningLink(10021)
        await joined(here, "hall", again)
        assert not links["hall"].connected, "the earlier one is sent away"
        assert here.coordinator.runtime.gateways["hall"].reconciler.link is again
        links["hall"].answering.set()
        await here.until(lambda: is_well(here))

    with_three(tmp_path, scene)


@pytest.mark.parametrize(
    ("listen", "broker"), [("nowhere", "mqtt://127.0.0.1:1"), ("127.0.0.1:1", "smtp://x")]
)
def test_a_gateway_whose_addresses_make_no_sense_is_refused_before_others_hear_of_it(
    tmp_path: Path, listen: str, broker: str
) -> None:
    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        bad = JoiningLink()
        bad.who = GatewayIdentity(listen, broker)
        with pytest.raises(RequestError, match="cannot be led"):
            await joined(here, "annex", bad)
        assert len(here.coordinator.runtime.gateways) == 3

    with_three(tmp_path, scene)


def test_a_client_comes_back_to_the_gateway_that_has_its_session(tmp_path: Path) -> None:
    async def scene(here: Running, links: dict[str, JoiningLink]) -> None:
        async def home(name: str) -> str:
            answer = await here.client.post("/v1/subscribers", json=announcement(name, "smoke"))
            return str(answer.json()["connection"]["gateway"])

        first = {name: await home(name) for name in ("ff-1", "ff-2", "ff-3")}
        assert len(set(first.values())) == 3
        for name in first:
            await here.client.delete(f"/v1/subscribers/{name}")
        assert {name: await home(name) for name in reversed(first)} == first
        # Nor does it matter whether this coordinator has ever seen it.
        again = JoiningLink(10030, stored=("ff-9~0",))
        await joined(here, "annex", again)
        assert await home("ff-9") == "127.0.0.1:10030"

    with_three(tmp_path, scene)


def test_a_client_that_is_back_before_its_gateway_waits_for_it(tmp_path: Path) -> None:
    store = Store(database_in(tmp_path))
    store.write_now(set_gateways, ["hall"])
    store.close_now()

    async def run() -> None:
        async with running(tmp_path, link=JoiningLink(10000), gateway_name="library") as here:
            announcing = asyncio.ensure_future(
                here.client.post("/v1/subscribers", json=announcement("keeper", "smoke"))
            )
            done, _ = await asyncio.wait({announcing}, timeout=0.3)
            assert not done
            assert not here.link.told_orders, "it would lose its peers"
            await joined(here, "hall", JoiningLink(10001, stored=("keeper~0",)))
            assert (await announcing).json()["connection"]["gateway"] == "127.0.0.1:10001"

    asyncio.run(run())


async def _says(here: Running, words: str) -> bool:
    return words in await status(here)


def test_two_rounds_that_wait_for_one_answer_both_get_it() -> None:
    async def run() -> None:
        answering = asyncio.Event()
        measured = SimpleNamespace(epoch="first", at_ns=1)

        class Link:
            async def measure(self, **_: object) -> object:
                await answering.wait()
                return measured

        lead: Any = SimpleNamespace(link=Link(), lost=lambda: None, measured=lambda answer: None)
        gateway = GatewayHandle("hall", lead, "127.0.0.1:1")
        kind = (False, False)
        asking = gateway.ask(kind)
        assert gateway.ask(kind) is asking
        assert gateway.take_answer(kind, asking) is None
        answering.set()
        await asking
        assert [gateway.take_answer(kind, asking), gateway.take_answer(kind, asking)] == [measured, measured]
        # The next one is a question of its own.
        assert gateway.ask(kind) is not asking

    asyncio.run(run())
