"""Operators change policy and phase while the coordinator runs; both are stored, recorded, and in force at once."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.coordinating import (
    FakeLink,
    Running,
    bearer,
    database_in,
    make_token,
    publisher,
    running,
    subscriber,
)
from typer.testing import CliRunner

from triagemq.channel.messages import ObservedChange, ObservedClient
from triagemq.cli.token import app as token_command
from triagemq.errors import TriageError

POLICY = """
roles: {command: {budget: 400}, visitor: {budget: 5, rank: 9, may: ["lobby/#", smoke]}}
clients: [{id: "panel-*", role: command}, {id: "*", role: visitor}]
phases: {search: {smoke: 4}}
"""


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


async def decided(here: Running, kind: str) -> list[dict[str, Any]]:
    answer = (await here.client.get("/v1/decisions?limit=1000")).json()
    return [each for each in answer["decisions"] if each["kind"] == kind]


async def weights(here: Running) -> dict[str, float]:
    answer = (await here.client.get("/v1/subscriptions")).json()
    return {f"{each['subscriber']} {each['topic']}": each["weight"] for each in answer["subscriptions"]}


@in_a_loop
async def test_a_policy_holds_at_once_is_recorded_with_its_author_and_survives_a_restart(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as here:
        await here.client.post("/v1/publishers", json=publisher("sensors", "smoke", "vault"))
        for name in ("panel-1", "guest"):
            await here.client.post("/v1/subscribers", json=subscriber(name, "smoke", "vault"))
        await here.settled()
        assert set((await weights(here)).values()) == {10.0}
        answer = await here.client.put("/v1/policy", json={"policy": POLICY, "reason": "an incident"})
        assert answer.status_code == 200
        assert answer.json()["roles"] == ["command", "visitor"]

        async def limited() -> bool:
            return (await weights(here))["guest vault"] == 0.0

        await here.until(limited)
        found = await weights(here)
        assert found["guest smoke"] == pytest.approx(7.2135, abs=1e-3)
        assert found["panel-1 smoke"] == found["panel-1 vault"] == 10.0
        (change,) = await decided(here, "policy")
        assert (change["before"], change["after"]) == ("none", "2 roles, 2 entries of clients, 1 phases")
        assert change["reason"] == "an incident, by an operator"
        (refused,) = await decided(here, "claim_refused")
        assert refused["subject"] == "guest vault"
        beat = (await here.client.post("/v1/subscribers/guest/heartbeat", json={})).json()
        assert [each["topic"] for each in beat["limited_claims"]] == ["", "vault"]
        assert "budget, 5" in beat["limited_claims"][0]["reason"]
    async with running(tmp_path) as here:
        answer = (await here.client.get("/v1/policy")).json()
        assert (answer["policy"], answer["author"]) == (POLICY, "an operator")
        await here.settled()
        assert (await weights(here))["guest vault"] == 0.0


@in_a_loop
async def test_a_phase_multiplies_worth_until_the_next_one_and_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        await here.client.put("/v1/policy", json={"policy": POLICY})
        await here.client.post("/v1/publishers", json=publisher("sensors", "smoke", "vault"))
        await here.client.post("/v1/subscribers", json=subscriber("panel-1", "smoke", "vault"))
        await here.settled()
        answer = (await here.client.put("/v1/phase", json={"phase": "search"})).json()
        assert (answer["phase"], answer["factors"]) == ("search", {"smoke": 4.0})
        assert answer["phases"] == ["usual", "search"]

        async def switched() -> bool:
            return (await weights(here))["panel-1 smoke"] == 40.0

        await here.until(switched)
        assert (await weights(here))["panel-1 vault"] == 10.0
        (change,) = await decided(here, "phase")
        assert (change["before"], change["after"]) == ("usual", "search")
        assert [each["kind"] for each in here.link.told_decisions].count("phase") == 1
        assert (await here.client.put("/v1/phase", json={"phase": "lunch"})).status_code == 400
    async with running(tmp_path) as here:
        assert (await here.client.get("/v1/phase")).json()["phase"] == "search"
        await here.settled()
        assert (await weights(here))["panel-1 smoke"] == 40.0
        await here.client.put("/v1/policy", json={"policy": POLICY.replace("search", "lunch")})
        assert (await here.client.get("/v1/phase")).json()["phase"] == "usual"


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (POLICY.replace("budget: 5", "budget: -5"), "policy:2: roles.visitor.budget: is -5; write a number"),
        ("[", "text: is not YAML"),
        ("", "policy:1: text: is empty"),
        (POLICY.replace('{id: "panel-*"', '{port: attic, id: "panel-*"'), "there is no output port 'attic'"),
    ],
)
@in_a_loop
async def test_what_is_wrong_with_a_policy_is_said_and_nothing_changes(
    tmp_path: Path, policy: str, problem: str
) -> None:
    async with running(tmp_path) as here:
        answer = await here.client.put("/v1/policy", json={"policy": policy})
        assert answer.status_code == 400
        assert problem in answer.json()["detail"]
        assert (await here.client.get("/v1/policy")).json()["policy"] == ""


@in_a_loop
async def test_a_token_brings_its_role_along_and_only_operators_change_policy_and_phase(
    tmp_path: Path,
) -> None:
    boss = bearer(make_token(database_in(tmp_path), "operator"))
    looker = bearer(make_token(database_in(tmp_path), "viewer"))
    async with running(tmp_path, access=True) as here:
        for path, body in (("policy", {"policy": POLICY}), ("phase", {"phase": "usual"})):
            assert (await here.client.put(f"/v1/{path}", json=body, headers=looker)).status_code == 403
            assert (await here.client.put(f"/v1/{path}", json=body, headers=boss)).status_code == 200
            assert (await here.client.get(f"/v1/{path}", headers=looker)).status_code == 200
        rights = {"roles": ["subscriber"], "subscribe": ["#"], "label": "x"}
        refused = await here.client.post("/v1/tokens", json=rights | {"policy_role": "crew"}, headers=boss)
        assert (refused.status_code, "has no role 'crew'" in refused.text) == (400, True)
        headers = {}
        for role in ("command", "visitor"):
            made = await here.client.post("/v1/tokens", json=rights | {"policy_role": role}, headers=boss)
            headers[role] = bearer(made.json()["token"])
            body = subscriber(f"one-of-{role}", "vault")
            assert (
                await here.client.post("/v1/subscribers", json=body, headers=headers[role])
            ).status_code == 201

        async def claims(role: str) -> list[dict[str, str]]:
            path = f"/v1/subscribers/one-of-{role}"
            return list((await here.client.get(path, headers=headers[role])).json()["limited_claims"])

        await here.until(lambda: claims("visitor"))
        assert await claims("command") == []


@in_a_loop
async def test_a_client_that_is_only_observed_is_planned_for_while_it_is_there_also_after_a_restart(
    tmp_path: Path,
) -> None:
    link = FakeLink()
    panel = ObservedClient("panel 1", "192.0.2.7", "", {"smoke": "", "vault": "log:3"})
    link.observed = ObservedChange({"panel 1": panel}, whole=True)
    link.topics = {"smoke": (1, 100)}
    policy = POLICY.replace('"panel-*"', '"panel*", subscriptions: {"#": log:7}')
    for restart in range(2):
        async with running(tmp_path, link=link) as here:
            if not restart:
                await here.client.put("/v1/policy", json={"policy": policy})
                await here.client.post("/v1/publishers", json=publisher("sensors", "smoke", "vault"))
                await here.until(
                    lambda: len(here.link.told_orders[-1:]) and "panel 1" in link.told_orders[-1].topics
                )
            else:
                await here.until(lambda here=here: here.coordinator.runtime.decided is not None)
                assert here.coordinator.runtime.metrics.plans == 1
            found = await weights(here)
            assert (found["panel 1 smoke"], found["panel 1 vault"]) == (7.0, 3.0)
            assert all("panel 1" in each.topics for each in link.told_orders[-1:])
    async with running(tmp_path, link=link) as here:
        await here.until(lambda: here.coordinator.runtime.decided is not None)
        link.observed = ObservedChange({"panel 1": None})
        await here.until(lambda: "panel 1" not in link.told_orders[-1].topics)


def test_a_token_of_a_policy_role_is_made_on_the_command_line_if_the_policy_has_it(tmp_path: Path) -> None:
    async def with_policy() -> None:
        async with running(tmp_path) as here:
            await here.client.put("/v1/policy", json={"policy": POLICY})

    asyncio.run(with_policy())

    def made(*roles: str) -> Any:
        arguments = [word for role in roles for word in ("--role", role)]
        result = CliRunner().invoke(
            token_command, ["create", *arguments, "--subscribe", "#", "--state", str(tmp_path), "--json"]
        )
        if result.exception is not None:
            raise result.exception
        return json.loads(result.stdout)

    assert [made("visitor")[key] for key in ("roles", "policy_role")] == [["subscriber"], "visitor"]
    both = made("publisher", "command")
    assert (both["roles"], both["policy_role"]) == (["publisher"], "command")
    for roles, words in (
        (("crew",), "'crew' is none of .*command, visitor"),
        (("visitor", "command"), "give one"),
    ):
        with pytest.raises(TriageError, match=words):
            made(*roles)
