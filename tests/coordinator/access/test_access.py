"""Who may do what: attempts to get at what is not one's own, and what each is answered."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from tests.coordinator.coordinating import (
    LONG_SECONDS,
    Clock,
    bearer,
    database_in,
    make_token,
    publisher,
    running,
    served,
    subscriber,
)
from tests.coordinator.managed import ManagedProcess
from tests.gateway.real import Mosquitto, SnClient
from typer.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from triagemq.broker import BrokerProcess
from triagemq.broker.users import BrokerUser
from triagemq.cli.token import app as token_command
from triagemq.coordinator.access.rights import BrokerRights
from triagemq.coordinator.access.tokens import Role, TokenBook, TokenRequest, new_token, session_key
from triagemq.coordinator.gateways import reconciler
from triagemq.coordinator.refusals import StoreError, UnauthorisedError
from triagemq.coordinator.store import Store, add_token, revoke_token
from triagemq.errors import ParameterError, TriageError
from triagemq.mqttsn import Disconnect, PingReq, PingResp


@dataclass(frozen=True)
class Attempt:
    """Somebody tries something; `status` is what must come of it."""

    who: str
    method: str
    path: str
    status: int
    body: Any = None
    words: str = ""


TOKENS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "operator": (("operator",), {}),
    "crew": (("subscriber",), {"subscribe": ("building/3/#",), "names": ("ff-*",)}),
    "other": (("subscriber",), {"subscribe": ("building/#",)}),
    "small": (("subscriber",), {"subscribe": ("#",), "most_subscriptions": 2}),
    "sensor": (("publisher",), {"publish": ("building/+/smoke",)}),
    "slow": (("publisher",), {"publish": ("#",), "most_publications_per_second": 10.0}),
    "both": (("publisher", "subscriber"), {"publish": ("#",), "subscribe": ("#",)}),
    "blind": (("subscriber",), {}),
    "viewer": (("viewer",), {}),
}

GOOD = [
    Attempt("crew", "PUT", "/v1/subscribers/ff-1", 201, {"subscriptions": [{"topic": "building/3/+/smoke"}]}),
    Attempt("other", "POST", "/v1/subscribers", 201, subscriber("theirs", "building/+")),
    Attempt("sensor", "POST", "/v1/publishers", 201, publisher("s-1", "building/3/smoke")),
    Attempt("small", "POST", "/v1/subscribers", 201, subscriber("s", "a", "b")),
    Attempt("both", "POST", "/v1/subscribers", 201, subscriber("b", "#")),
    Attempt("both", "POST", "/v1/publishers", 201, publisher("b", "x/y")),
    Attempt("slow", "POST", "/v1/publishers", 201, publisher("slow", "z", rate=9.0)),
    Attempt("crew", "GET", "/v1/subscribers/ff-1", 200),
    Attempt("crew", "POST", "/v1/subscribers/ff-1/heartbeat", 200, {}),
    Attempt("crew", "GET", "/v1/subscribers/ff-1/assignment", 200),
    Attempt("operator", "GET", "/v1/subscribers/ff-1", 200),
    Attempt("operator", "GET", "/v1/decisions", 200),
    *(
        Attempt("viewer", "GET", path, 200)
        for path in (
            "/v1/subscribers",
            "/v1/publishers",
            "/v1/subscribers/ff-1",
            "/v1/publishers/s-1",
            "/v1/subscribers/ff-1/assignment",
            "/v1/topics",
            "/v1/decisions",
            "/v1/ports",
            "/v1/tokens",
            "/metrics",
        )
    ),
    Attempt("nobody", "GET", "/v1/health", 200),
    Attempt("nobody", "GET", "/openapi.json", 200),
]

BAD = [
    # Roles.
    Attempt(
        "crew", "POST", "/v1/publishers", 403, publisher("ff-p", "building/3/smoke"), "not a publisher's"
    ),
    Attempt(
        "sensor", "POST", "/v1/subscribers", 403, subscriber("x", "building/3/smoke"), "not a subscriber's"
    ),
    Attempt("crew", "GET", "/v1/publishers", 403),
    # What is somebody else's looks exactly like what is not there.
    Attempt("crew", "GET", "/v1/subscribers/theirs", 404, words="there is no subscriber 'theirs' of yours"),
    Attempt("crew", "GET", "/v1/subscribers/nobodys", 404, words="there is no subscriber 'nobodys' of yours"),
    Attempt("crew", "DELETE", "/v1/subscribers/theirs", 404),
    Attempt("crew", "POST", "/v1/subscribers/theirs/heartbeat", 404, {}),
    Attempt("crew", "GET", "/v1/subscribers/theirs/assignment", 404),
    Attempt("other", "GET", "/v1/publishers/s-1", 404),
    Attempt("both", "DELETE", "/v1/publishers/s-1", 404),
    Attempt("crew", "POST", "/v1/intents", 404, {"withdraw": {"subscribers": ["theirs"]}}),
    # A viewer looks, and nothing else.
    Attempt("viewer", "POST", "/v1/subscribers", 403, subscriber("v", "building/3/smoke")),
    Attempt("viewer", "PUT", "/v1/publishers/s-1", 403, {"publications": []}),
    Attempt("viewer", "DELETE", "/v1/subscribers/ff-1", 403),
    Attempt("viewer", "POST", "/v1/subscribers/ff-1/heartbeat", 404, {}),
    Attempt("viewer", "POST", "/v1/intents", 403, {"withdraw": {"publishers": ["s-1"]}}),
    Attempt("viewer", "GET", "/v1/subscribers/nobodys", 404),
    # Names.
    Attempt("other", "PUT", "/v1/subscribers/ff-1", 409, {"subscriptions": []}, "is taken"),
    Attempt("other", "POST", "/v1/subscribers", 409, subscriber("ff-1", "building/3")),
    Attempt("crew", "POST", "/v1/subscribers", 403, subscriber("theirs", "building/3/a"), "it allows ff-*"),
    Attempt(
        "crew", "POST", "/v1/subscribers", 403, subscriber("unheard-of", "building/3/a"), "it allows ff-*"
    ),
    # Topics.
    Attempt("crew", "POST", "/v1/subscribers", 403, subscriber("ff-2", "building/4/x"), "building/3/#"),
    Attempt("crew", "POST", "/v1/subscribers", 403, subscriber("ff-2", "building/+/x")),
    Attempt("crew", "POST", "/v1/subscribers", 403, subscriber("ff-2", "building/#")),
    Attempt("crew", "POST", "/v1/subscribers", 403, subscriber("ff-2", "#")),
    Attempt("crew", "POST", "/v1/subscribers", 403, subscriber("ff-2", "+/3/smoke")),
    Attempt("crew", "POST", "/v1/subscribers", 403, subscriber("ff-2", "building/3/x", "building/30")),
    Attempt("crew", "PUT", "/v1/subscribers/ff-1", 403, {"subscriptions": [{"topic": "secret"}]}),
    Attempt("sensor", "POST", "/v1/publishers", 403, publisher("s-2", "building/3/heat")),
    Attempt("sensor", "PUT", "/v1/publishers/s-1", 403, {"publications": [{"topic": "building/3/smoke/x"}]}),
    Attempt("blind", "POST", "/v1/subscribers", 403, subscriber("x", "a"), "it allows none"),
    Attempt("small", "POST", "/v1/subscribers", 403, subscriber("t", "$SYS/broker")),
    # Limits.
    Attempt("small", "POST", "/v1/subscribers", 403, subscriber("s2", "c"), "2 subscriptions in all"),
    Attempt("small", "PUT", "/v1/subscribers/s", 403, {"subscriptions": [{"topic": each} for each in "abc"]}),
    Attempt(
        "slow", "POST", "/v1/publishers", 403, publisher("more", "y", rate=2.0), "10 publications a second"
    ),
    # One bad item spoils the whole request.
    Attempt(
        "crew",
        "POST",
        "/v1/intents",
        403,
        {"announce": {"subscribers": [subscriber("ff-8", "building/3/a"), subscriber("ff-9", "else")]}},
    ),
    Attempt(
        "both",
        "POST",
        "/v1/intents",
        404,
        {"announce": {"publishers": [publisher("b2", "t")]}, "withdraw": {"subscribers": ["theirs"]}},
    ),
    # What only operators do.
    *(
        Attempt(who, method, path, 403, body, "operator's")
        for who, method, path, body in [
            ("crew", "GET", "/v1/scenario", None),
            ("sensor", "GET", "/v1/plan", None),
            ("crew", "GET", "/v1/forecast", None),
            ("crew", "GET", "/v1/decisions", None),
            ("crew", "GET", "/v1/explanation?subscriber=theirs&topic=building/3", None),
            ("crew", "GET", "/metrics", None),
            ("crew", "GET", "/v1/ports", None),
            ("both", "PUT", "/v1/ports/port", {"bandwidth_bps": 1e6}),
            ("both", "POST", "/v1/what-if", {"rate_factors": {"#": 2}}),
            ("both", "POST", "/v1/tokens", {"roles": ["operator"]}),
            ("both", "GET", "/v1/tokens", None),
            ("both", "DELETE", "/v1/tokens/x", None),
            ("viewer", "PUT", "/v1/ports/port", {"bandwidth_bps": 1e6}),
            ("viewer", "POST", "/v1/what-if", {"rate_factors": {"#": 2}}),
            ("viewer", "POST", "/v1/tokens", {"roles": ["operator"]}),
            ("viewer", "DELETE", "/v1/tokens/x", None),
        ]
    ),
    # Tokens that are none.
    *(
        Attempt(who, "GET", "/v1/subscribers", 401, words="a valid token is needed")
        for who in (
            "nobody",
            "malformed",
            "unknown",
            "expired",
            "revoked",
            "almost",
            "basic",
            "empty",
            "twice",
        )
    ),
    Attempt("in-query", "GET", "/v1/subscribers?token={other}&access_token={other}", 401),
    Attempt("revoked", "POST", "/v1/subscribers", 401, subscriber("ff-3", "building/3/a")),
    # Before the body is looked at, the token is.
    Attempt("nobody", "POST", "/v1/subscribers", 401, {"nonsense": True}),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[Attempt, httpx.Response]:
    """All attempts against one coordinator, in order."""
    directory = tmp_path_factory.mktemp("access")
    database = database_in(directory)
    secrets = {who: make_token(database, *roles, **rights) for who, (roles, rights) in TOKENS.items()}
    headers: dict[str, Any] = {who: bearer(secret) for who, secret in secrets.items()}
    other = secrets["other"]
    headers |= {
        "nobody": {},
        "in-query": {},
        "malformed": bearer("triage_short"),
        "unknown": bearer(new_token(TokenRequest(label="", roles=(Role.OPERATOR,)))[0]),
        "expired": bearer(make_token(database, "operator", expires_seconds=-1.0)),
        "revoked": bearer(_revoked(database)),
        "almost": bearer(other[:-1] + ("A" if other[-1] != "A" else "B")),
        "basic": {"Authorization": f"Basic {other}"},
        "empty": {"Authorization": "Bearer "},
        "twice": [("Authorization", f"Bearer {other}"), ("Authorization", f"Bearer {other}")],
    }

    async def attempt_all() -> dict[Attempt, httpx.Response]:
        found = {}
        async with running(directory, access=True) as here:
            for attempt in (*GOOD, *BAD):
                found[attempt] = await here.client.request(
                    attempt.method,
                    attempt.path.replace("{other}", other),
                    json=attempt.body,
                    headers=headers[attempt.who],
                )
            names = (await here.client.get("/v1/subscribers", headers=headers["operator"])).json()
            assert names == ["b", "ff-1", "s", "theirs"], "a refused request left something behind"
            assert (await here.client.get("/v1/publishers", headers=headers["operator"])).json() == [
                "b",
                "s-1",
                "slow",
            ]
            own = (await here.client.get("/v1/subscribers", headers=headers["crew"])).json()
            assert own == ["ff-1"]
        return found

    return asyncio.run(attempt_all())


def _revoked(database: str) -> str:
    secret, token = new_token(TokenRequest(label="", roles=(Role.OPERATOR,)))
    store = Store(database)
    store.write_now(add_token, token)
    store.write_now(revoke_token, token.token_id, time.time_ns())
    store.close_now()
    return secret


Attempt.__hash__ = lambda self: id(self)  # type: ignore[method-assign]


@pytest.mark.parametrize("attempt", [*GOOD, *BAD], ids=lambda each: f"{each.who}-{each.method}-{each.path}")
def test_attempt(attempt: Attempt, answers: dict[Attempt, httpx.Response]) -> None:
    answer = answers[attempt]
    assert answer.status_code == attempt.status, answer.text
    if attempt.status >= 400:
        assert attempt.words in answer.json()["detail"]
        assert "triage_" not in answer.text.replace("triage_...", "")
    if attempt.status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"


def test_topics_outside_the_patterns_are_not_seen(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    crew = make_token(database, "subscriber", subscribe=("building/3/#",))
    operator = make_token(database, "operator")

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            body = publisher("p", "building/3/smoke", "building/4/smoke")
            await here.client.post("/v1/publishers", json=body, headers=bearer(operator))
            seen = (await here.client.get("/v1/topics", headers=bearer(crew))).json()
            assert [each["topic"] for each in seen] == ["building/3/smoke"]
            everything = (await here.client.get("/v1/topics", headers=bearer(operator))).json()
            assert len(everything) == 2

    asyncio.run(run())


def test_a_viewer_sees_everything_but_what_would_let_it_in(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    crew = make_token(database, "subscriber", subscribe=("building/3/#",))
    viewer, operator = (make_token(database, role) for role in ("viewer", "operator"))

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            body = subscriber("ff-1", "building/3/+/smoke")
            made = (await here.client.post("/v1/subscribers", json=body, headers=bearer(crew))).json()
            key = made["connection"]["client_id"].removeprefix("ff-1.")
            await here.settled()
            for path in (
                "/v1/subscribers/ff-1",
                "/v1/plan?full=true",
                "/v1/scenario",
                "/v1/forecast",
                "/v1/tokens",
            ):
                seen, whole = [
                    await here.client.get(path, headers=bearer(secret)) for secret in (viewer, operator)
                ]
                assert (seen.status_code, whole.status_code) == (200, 200)
                assert key not in seen.text
            seen = (await here.client.get("/v1/subscribers/ff-1", headers=bearer(viewer))).json()
            assert seen["subscriptions"][0]["topic"] == "building/3/+/smoke"
            assert seen["connection"]["client_id"] == "ff-1"
            async with (
                served(here.app) as address,
                connect(f"ws://{address}/v1/live", additional_headers=bearer(viewer)) as figures,
            ):
                assert json.loads(await asyncio.wait_for(figures.recv(), LONG_SECONDS))["subscribers"] == 1

    asyncio.run(run())


def test_a_client_is_told_an_address_that_it_can_reach(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            for listens, told in (("0.0.0.0:9", "{}:9"), ("mqttsns://0.0.0.0:9", "mqttsns://{}:9")):
                here.coordinator.configured_gateway.address = listens
                settings = replace(here.coordinator.settings, broker="mqtts://0.0.0.0:8883")
                here.coordinator.settings = settings
                for host, shown in (("localhost", "localhost"), ("[2001:db8::7]", "[2001:db8::7]")):
                    answer = await here.client.put(
                        f"http://{host}:8080/v1/publishers/p", json={"publications": []}
                    )
                    connection = answer.json()["connection"]
                    assert connection["gateway"] == told.format(shown)
                    assert connection["broker"] == f"mqtts://{shown}:8883"
            here.coordinator.configured_gateway.address = "192.0.2.4:9"
            answer = await here.client.put("http://localhost/v1/publishers/p", json={"publications": []})
            assert answer.json()["connection"]["gateway"] == "192.0.2.4:9"

    asyncio.run(run())


def test_the_gateway_learns_who_may_do_what_before_the_answer(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    crew = make_token(database, "subscriber", subscribe=("building/3/#",))
    sensor = make_token(database, "publisher", publish=("building/+/smoke",))

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            body = subscriber("ff-1", "building/3/+/smoke")
            answer = (await here.client.post("/v1/subscribers", json=body, headers=bearer(crew))).json()
            base = answer["connection"]["client_id"]
            assert base.startswith("ff-1.")
            assert len(base) >= len("ff-1.") + 22
            required, grants = here.link.told_grants[-1]
            assert required
            assert grants[base].subscribe == ("building/3/+/smoke",)
            assert grants[base].publish == ()
            assert grants[base].name == "ff-1"
            said = publisher("s", "building/3/smoke")
            answer = (await here.client.post("/v1/publishers", json=said, headers=bearer(sensor))).json()
            grants = here.link.told_grants[-1][1]
            assert grants[answer["connection"]["client_id"]].publish == ("building/+/smoke",)
            # The same token gets the same client id again, whoever else nothing like it.
            await here.client.delete("/v1/subscribers/ff-1", headers=bearer(crew))
            await here.until(lambda: base not in here.link.told_grants[-1][1])
            again = (await here.client.post("/v1/subscribers", json=body, headers=bearer(crew))).json()
            assert again["connection"]["client_id"] == base

    asyncio.run(run())


def test_session_keys_differ_by_token_kind_and_name() -> None:
    one, two = (new_token(TokenRequest(label="", roles=(Role.OPERATOR,)))[1] for _ in range(2))
    keys = {
        session_key(token, kind, name)
        for token in (one, two)
        for kind in ("publisher", "subscriber")
        for name in ("a", "b")
    }
    assert len(keys) == 8


def test_a_revoked_token_takes_its_intents_along_also_when_another_process_revokes_it(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    secret, token = new_token(TokenRequest(label="", roles=(Role.SUBSCRIBER,), subscribe=("#",)))
    operator = make_token(database, "operator")

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            store = Store(database)
            store.write_now(add_token, token)
            body = subscriber("x", "a/b")
            answer = await here.client.post("/v1/subscribers", json=body, headers=bearer(secret))
            assert answer.status_code == 201, "a token made by another process is good at once"
            store.write_now(revoke_token, token.token_id, time.time_ns())
            store.close_now()
            await here.until(lambda: here.coordinator.service.registry.get(("subscriber", "x")) is None)
            answer = await here.client.get("/v1/subscribers/x", headers=bearer(secret))
            assert answer.status_code == 401
            rows = (await here.client.get("/v1/decisions?limit=1000", headers=bearer(operator))).json()
            assert any(row["kind"] == "token ended" for row in rows["decisions"])
            assert here.link.told_grants[-1][1] == {}

    asyncio.run(run())


def test_a_revocation_that_is_not_in_force_is_answered_so_and_shown_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(reconciler, "time", clock)
    operator = make_token(database_in(tmp_path), "operator")

    async def run() -> None:
        async with running(tmp_path, access=True) as here:

            async def revoked(name: str) -> httpx.Response:
                wanted = {"roles": ["subscriber"], "subscribe": ["#"]}
                made = await here.client.post("/v1/tokens", json=wanted, headers=bearer(operator))
                body = subscriber(name, "a")
                await here.client.post("/v1/subscribers", json=body, headers=bearer(made.json()["token"]))
                assert here.link.state.grants.by_base
                here.link.refuses_everything = name == "refused"
                here.link.connected = name != "away"
                return await here.client.delete(
                    f"/v1/tokens/{made.json()['token_id']}", headers=bearer(operator)
                )

            async def health() -> Any:
                return (await here.client.get("/v1/health")).json()

            assert (await revoked("told")).status_code == 204
            await here.until(
                lambda: here.coordinator.runtime.gateways["gateway"].reconciler.behind_seconds is None
            )

            async def is_ok() -> bool:
                return (await health())["status"] == "ok"

            await here.until(is_ok)
            answer = await revoked("refused")
            assert answer.status_code == 202
            assert answer.json()["in_force"] is False
            assert "not yet in force at the gateway (127.0.0.1:10000): it refuses" in answer.json()["detail"]
            clock.seconds += 2.9
            assert (await health())["checks"]["rights"]["ok"], "it may have to be told first"
            clock.seconds += 4.3
            now = await health()
            assert "the latest rights are not in force at the gateway for 7 s: it refuses" in now["status"]
            assert not now["checks"]["rights"]["ok"]
            assert "no room" not in str(now), "whoever has no token hears nothing in detail"
            assert now["wanted_version"] > now["in_force_version"]
            assert now["not_in_force_seconds"] == pytest.approx(7.2)
            metrics = (await here.client.get("/metrics", headers=bearer(operator))).text
            figures = dict(line.split(" ") for line in metrics.splitlines() if line.startswith("triage_"))
            assert float(figures['triage_wanted_version{gateway="gateway"}']) > float(
                figures['triage_in_force_version{gateway="gateway"}']
            )
            assert float(figures['triage_not_in_force_seconds{gateway="gateway"}']) == pytest.approx(7.2)
            assert float(figures['triage_state_sends_failed_total{gateway="gateway"}']) >= 1

            async def is_noted() -> bool:
                rows = (await here.client.get("/v1/decisions?limit=1000", headers=bearer(operator))).json()
                return any(
                    (row["subject"], row["kind"]) == ("gateway", "refused") and "no room" in row["reason"]
                    for row in rows["decisions"]
                )

            # A decision is stored a moment after it was taken.
            await here.until(is_noted)
            here.link.refuses_everything = False
            await here.until(lambda: not here.link.state.grants.by_base)
            await here.until(
                lambda: here.coordinator.runtime.gateways["gateway"].reconciler.behind_seconds is None
            )
            now = await health()
            assert (now["status"], now["not_in_force_seconds"]) == ("ok", None)
            assert now["wanted_version"] == now["in_force_version"]
            answer = await revoked("away")
            assert (answer.status_code, "it is away" in answer.json()["detail"]) == (202, True)
            clock.seconds += 3.1
            assert (
                "the latest rights are not in force at the gateway for 3 s: it is away"
                in (await health())["status"]
            )

    asyncio.run(run())


def test_rights_that_were_told_while_a_change_failed_are_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = make_token(database_in(tmp_path), "operator")

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            body, headers = subscriber("x", "a"), bearer(operator)
            answer = await here.client.post("/v1/subscribers", json=body, headers=headers)
            base = answer.json()["connection"]["client_id"]
            lead, store = (
                here.coordinator.runtime.gateways["gateway"].reconciler,
                here.coordinator.service.store,
            )

            async def full(change: object, *arguments: object) -> None:
                lead.want_grants()
                assert await lead.sync(), "as somebody else's change would have it"
                assert base not in here.link.state.grants.by_base
                raise StoreError("the database cannot be written: disk full")

            with monkeypatch.context() as patch:
                patch.setattr(store, "write", full)
                answer = await here.client.delete("/v1/subscribers/x", headers=headers)
                assert answer.status_code == 503
            await here.until(lambda: base in here.link.state.grants.by_base)

    asyncio.run(run())


def test_revocations_of_a_time_apart_come_first_when_gateway_and_coordinator_meet_again(
    tmp_path: Path,
) -> None:
    database = database_in(tmp_path)
    tokens = [new_token(TokenRequest(label="", roles=(Role.SUBSCRIBER,), subscribe=("#",))) for _ in range(3)]
    store = Store(database)
    for _, token in tokens:
        store.write_now(add_token, token)
    with ExitStack() as stack:
        stack.callback(store.close_now)
        broker = Mosquitto(tmp_path / "broker")
        stack.callback(broker.end)
        gateway = ManagedProcess(tmp_path / "gateway", broker.url, access="required")
        stack.callback(gateway.end)

        def is_sent_away(client: SnClient) -> bool:
            return isinstance(client.receive(30.0), Disconnect)

        async def first() -> list[SnClient]:
            async with running(tmp_path, gateway=gateway.socket, access=True) as here:
                clients = []
                for number, (secret, _) in enumerate(tokens):
                    body = subscriber(f"s{number}", "a", lease_seconds=600)
                    answer = await here.client.post("/v1/subscribers", json=body, headers=bearer(secret))
                    base = answer.json()["connection"]["client_id"]
                    client = SnClient(gateway.port, f"{base}~0")
                    stack.callback(client.end)
                    clients.append(await asyncio.to_thread(client.connect))
                # The gateway is away when a token is revoked, and comes back with what it knew.
                gateway.kill()
                await here.until(lambda: not here.link.connected)
                await here.coordinator.service.revoke_token(tokens[0][1].token_id)
                await asyncio.to_thread(gateway.start)
                assert await asyncio.to_thread(is_sent_away, clients[0])
                return clients

        clients = asyncio.run(first())
        # The coordinator is gone: revocations are stored and nobody can be told; everyone goes on.
        store.write_now(revoke_token, tokens[1][1].token_id, time.time_ns())
        assert isinstance(clients[1].ask(PingReq(), PingResp), PingResp)

        async def second() -> None:
            async with running(tmp_path, gateway=gateway.socket, access=True) as here:
                assert await asyncio.to_thread(is_sent_away, clients[1])
                await here.until(
                    lambda: here.coordinator.runtime.gateways["gateway"].reconciler.behind_seconds is None
                )

        asyncio.run(second())
        assert isinstance(clients[2].ask(PingReq(), PingResp), PingResp)


def test_tokens_over_rest(tmp_path: Path) -> None:
    operator = make_token(database_in(tmp_path), "operator")

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            wanted = {"roles": ["subscriber"], "subscribe": ["a/#"], "label": "crew", "expires_seconds": 3600}
            made = (await here.client.post("/v1/tokens", json=wanted, headers=bearer(operator))).json()
            secret = made["token"]
            good = await here.client.get("/v1/subscribers", headers=bearer(secret))
            assert good.status_code == 200
            listed = (await here.client.get("/v1/tokens", headers=bearer(operator))).text
            assert made["token_id"] in listed
            assert secret not in listed
            assert "sha256" not in listed
            gone = await here.client.delete(f"/v1/tokens/{made['token_id']}", headers=bearer(operator))
            assert gone.status_code == 204
            bad = await here.client.get("/v1/subscribers", headers=bearer(secret))
            assert bad.status_code == 401

    asyncio.run(run())


def test_tokens_on_the_command_line(tmp_path: Path) -> None:
    def triage(*arguments: str) -> Any:
        result = CliRunner().invoke(token_command, [*arguments, "--json"])
        if result.exception is not None:
            raise result.exception
        return json.loads(result.stdout)

    state = ("--state", str(tmp_path))
    triage("create", "--role", "operator", *state)
    assert [row["roles"] for row in triage("list", *state)["tokens"]] == [["operator"]]

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            wanted = ("--role", "subscriber", "--subscribe", "a/#", "--name", "ff-*")
            made = await asyncio.to_thread(triage, "create", *wanted, *state)
            body = subscriber("ff-1", "a/b")
            answer = await here.client.post("/v1/subscribers", json=body, headers=bearer(made["token"]))
            assert answer.status_code == 201
            listed = await asyncio.to_thread(triage, "list", *state)
            assert len(listed["tokens"]) == 2
            assert made["token"] not in json.dumps(listed)
            revoked = await asyncio.to_thread(triage, "revoke", made["token_id"][:8], *state)
            assert revoked == {"revoked": made["token_id"]}
            await here.until(lambda: here.coordinator.service.registry.get(("subscriber", "ff-1")) is None)

    asyncio.run(run())
    for bad, words in (
        (("create", "--role", "king", *state), "roles"),
        (("create", "--role", "publisher", "--publish", "a/#/b", *state), "publish"),
        (("revoke", "x", *state), "there is no token 'x'"),
        (("list",), "give one of --state DIR, --store URL and --file FILE"),
        (("list", "--state", str(tmp_path / "nowhere")), "is no directory"),
    ):
        with pytest.raises(TriageError, match=words):
            triage(*bad)


def test_tokens_are_listed_whole_and_revoked_by_a_unique_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def triage(*arguments: str) -> str:
        result = CliRunner().invoke(token_command, [*arguments, "--file", str(tmp_path / "tokens")])
        if result.exception is not None:
            raise result.exception
        return result.stdout

    topics = [f"building/floor-3/room-{room}/temperature-of-the-ceiling/#" for room in range(3)]
    wanted = [word for topic in topics for word in ("--subscribe", topic)]
    for number in range(20):
        triage("create", "--role", "subscriber", "--label", f"crew {number}", *wanted)
    ids = [row["token_id"] for row in json.loads(triage("list", "--json"))["tokens"]]
    monkeypatch.setenv("COLUMNS", "80")
    listed = triage("list")
    assert "…" not in listed
    assert all(token_id in listed for token_id in ids)
    shared = next(each for each in "0123456789abcdef" if sum(one.startswith(each) for one in ids) > 1)
    for bad, words in ((shared, "give more of it"), ("", "there is no token"), ("g", "there is no token")):
        with pytest.raises(ParameterError, match=words):
            triage("revoke", bad)
    assert triage("revoke", ids[7][:9]) == f"revoked {ids[7]}\n"
    after = json.loads(triage("list", "--json"))["tokens"]
    assert [row["token_id"] for row in after if row["revoked_ns"] is not None] == [ids[7]]


def test_what_was_announced_without_a_token_goes_when_access_is_on(tmp_path: Path) -> None:
    operator = make_token(database_in(tmp_path), "operator")

    async def run() -> None:
        async with running(tmp_path) as here:
            assert (await here.client.post("/v1/subscribers", json=subscriber("x", "a"))).status_code == 201
        async with running(tmp_path, access=True) as here:
            assert (await here.client.get("/v1/subscribers", headers=bearer(operator))).json() == []
            assert here.link.told_grants[-1] == (True, {})

    asyncio.run(run())


def test_no_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = make_token(database_in(tmp_path), "operator")

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            await here.client.get("/v1/tokens", headers=bearer(secret))
            await here.client.post("/v1/tokens", json={"roles": [secret]}, headers=bearer(secret))
            made = await here.client.post("/v1/tokens", json={"roles": ["publisher"]}, headers=bearer(secret))
            assert made.json()["token"] not in caplog.text

    asyncio.run(run())
    assert secret not in caplog.text


def test_live_figures_need_an_operators_token(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    operator, crew = make_token(database, "operator"), make_token(database, "subscriber", subscribe=("#",))

    async def run() -> None:
        async with running(tmp_path, access=True) as here, served(here.app) as address:
            for query, headers in (("", {}), ("", bearer(crew)), (f"?token={operator}", {})):
                with pytest.raises(InvalidStatus):
                    await connect(f"ws://{address}/v1/live{query}", additional_headers=headers)
            async with connect(f"ws://{address}/v1/live", additional_headers=bearer(operator)) as socket:
                figures = json.loads(await asyncio.wait_for(socket.recv(), LONG_SECONDS))
            assert figures["gateway_connected"] is True
            await here.until(lambda: here.coordinator.live.listeners == 0)

    asyncio.run(run())


def test_a_token_book_refuses_everything_else() -> None:
    secret, token = new_token(TokenRequest(label="", roles=(Role.OPERATOR,)))
    book = TokenBook([token])
    assert book.caller(secret).is_operator
    for bad in ("", "triage_", secret[:-1], secret + "A", secret.upper(), f" {secret}", "\ud800" * 50):
        with pytest.raises(UnauthorisedError):
            book.caller(bad)


def test_bad_tokens_share_looks_at_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        database = database_in(tmp_path)
        async with running(tmp_path, access=True) as here:
            store = here.coordinator.service.store
            version, looks = store.tokens_version, 0

            def counted() -> int:
                nonlocal looks
                looks += 1
                return version()

            monkeypatch.setattr(store, "tokens_version", counted)
            started = time.monotonic()
            for _ in range(5):
                bad = [here.client.get("/v1/topics", headers=bearer(f"triage_{n}")) for n in range(40)]
                assert {answer.status_code for answer in await asyncio.gather(*bad)} == {401}
            # A look for everybody every 0.05 s, and those of the leases five times a second.
            assert looks <= 2 + 26 * (time.monotonic() - started)
            # One that was made this moment is good at once.
            good = await asyncio.to_thread(make_token, database, "operator")
            assert (await here.client.get("/v1/topics", headers=bearer(good))).status_code == 200
            answer = await here.client.get("/v1/health")
            assert answer.json()["checks"]["writes"]["ok"]

    asyncio.run(run())


def test_health_gives_reasons_to_those_with_a_token_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = make_token(database_in(tmp_path), "operator")

    async def run() -> None:
        async with running(tmp_path, access=True) as here:
            store = here.coordinator.service.store
            await here.settled()
            # Every attempt fails: one that worked, as the coordinator makes them by itself, would end the complaint.
            full = StoreError("disk 7 of the secret array is full")
            monkeypatch.setattr(store, "_commit", lambda changes: [full] * len(changes))
            await store.probe()
            stranger = (await here.client.get("/v1/health")).json()
            known = (await here.client.get("/v1/health", headers=bearer(operator))).json()
            assert "secret array" not in json.dumps(stranger)
            assert "secret array" in known["checks"]["writes"]["reason"]
            assert stranger["status"] == known["status"] != "ok"

    asyncio.run(run())


def test_a_broker_that_cannot_be_told_of_a_revocation_is_told_again(tmp_path: Path) -> None:
    class Broker:
        """Its disk is full for a while."""

        def __init__(self) -> None:
            self.told: list[set[str]] = []
            self.full = 0

        def let_in(self, users: list[BrokerUser]) -> None:
            if self.full:
                self.full -= 1
                raise OSError(28, "No space left on device")
            self.told.append({user.name for user in users})

    async def run() -> None:
        database, broker = database_in(tmp_path), Broker()
        store = Store(database)
        _, token = new_token(
            TokenRequest(label="", roles=(Role.PUBLISHER,), names=("pump",), publish=("pump/#",))
        )
        _, looker = new_token(TokenRequest(label="", roles=(Role.VIEWER,), names=("eye",)))
        for each in (token, looker):
            store.write_now(add_token, each)
        rights = BrokerRights(cast(BrokerProcess, broker), Store(database))
        await rights.start()
        try:
            assert broker.told == [{token.token_id, "pump"}]
            broker.full = 2
            store.write_now(revoke_token, token.token_id, time.time_ns())
            deadline = time.monotonic() + LONG_SECONDS
            while len(broker.told) == 1:
                assert time.monotonic() < deadline, "the revocation is lost"
                await asyncio.sleep(0.05)
            assert broker.told[1:] == [set()]
        finally:
            await rights.close()
            store.close_now()

    asyncio.run(run())
