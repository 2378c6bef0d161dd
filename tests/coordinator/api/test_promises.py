"""Promises over REST: admitted with the bound, refused with what would be admitted; told in stages, kept for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.coordinating import FakeLink, Running, running
from tests.coordinator.promising import publisher, subscriber, ward

from triagemq.channel.messages import ControlError, DesiredState
from triagemq.channel.orders import Orders
from triagemq.intents import Intent, PublicationIntent, PublisherIntent, SubscriberIntent, SubscriptionIntent
from triagemq.plan.dataplane import FlowCounters


async def announce(here: Running, *intents: Intent) -> None:
    for intent in intents:
        kind = "publishers" if isinstance(intent, PublisherIntent) else "subscribers"
        answer = await here.client.put(f"/v1/{kind}/{intent.name}", json=intent.as_json())
        assert answer.status_code in (200, 201), answer.text
    await here.settled()


async def promises(here: Running, name: str) -> dict[str, Any]:
    answer = await here.client.get(f"/v1/subscribers/{name}/promises", params={"wait_seconds": 30})
    found: dict[str, Any] = answer.json()
    return found


def test_a_subscription_is_admitted_with_its_bound_or_refused_with_what_would_do(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, network=ward()) as here:
            await announce(here, publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.02))
            found = await promises(here, "nurse")
            (promise,) = found["promises"]
            assert found["in_force"]
            assert promise["admitted"]
            assert promise["bound_seconds"] < 0.02
            assert promise["address"] == "239.192.0.0:17000"
            assert [hop["port"] for hop in promise["hops"]] == ["", "over", "monitor"]
            read = (await here.client.get("/v1/subscribers/nurse")).json()
            published = (await here.client.get("/v1/publishers/ecg")).json()
            assert read["promises"] == published["promises"] == [promise]
            before = here.link.state.orders
            await announce(here, subscriber("hasty", "pulse", 0.001), subscriber("early", "nothing", 0.02))
            # The second that asks for the same is refused, and told, like the first.
            await announce(here, subscriber("rash", "pulse", 0.001))
            assert not (await promises(here, "rash"))["promises"][0]["admitted"]
            (refused,) = (await promises(here, "hasty"))["promises"]
            assert not refused["admitted"]
            assert "the path alone takes" in refused["reason"]
            assert here.link.state.orders is not None
            assert before is not None
            assert here.link.state.orders.copies == before.copies
            assert (await promises(here, "early"))["waiting"] == ["nothing"]
            await announce(here, subscriber("hasty", "pulse", refused["offer_seconds"]))
            (accepted,) = (await promises(here, "hasty"))["promises"]
            assert accepted["admitted"]
            everything = (await here.client.get("/v1/promises")).json()
            assert {each["subscriber"] for each in everything} == {"nurse", "hasty", "rash"}
            decisions = (await here.client.get("/v1/decisions", params={"limit": 1000})).json()["decisions"]
            told = {(each["kind"], each["subject"]) for each in decisions}
            assert {
                ("admitted", "nurse pulse"),
                ("refused", "hasty pulse"),
                ("refused", "rash pulse"),
                ("admitted", "hasty pulse"),
            } <= told
            figures = (await here.client.get("/metrics")).text
            assert "triage_promises 2" in figures
            assert 'triage_promise_decisions_total{kind="refused"} 2' in figures

    asyncio.run(scene())


@pytest.mark.parametrize(
    "terms",
    [
        {"min_separation_seconds": 0, "max_size_bytes": 100},
        {"min_separation_seconds": 0.01, "max_size_bytes": 0},
        {"min_separation_seconds": 0.01, "max_separation_seconds": 0.001, "max_size_bytes": 100},
    ],
)
def test_impossible_terms_are_no_intent(tmp_path: Path, terms: dict[str, float]) -> None:
    async def scene() -> None:
        async with running(tmp_path, network=ward()) as here:
            body = {"publications": [{"topic": "pulse", **terms}]}
            answer = await here.client.put("/v1/publishers/ecg", json=body)
            assert answer.status_code in (400, 422)
            assert (
                next(iter(terms)) in answer.text
                or "max_size_bytes" in answer.text
                or "separation" in answer.text
            )

    asyncio.run(scene())


class Interrupted(FakeLink):
    """A gateway that is away for good after so many orders with promises."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    async def send_state(self, before: DesiredState | None, after: DesiredState) -> bool:
        if after.orders is not None and after.orders is not self.state.orders and self._is_news(after.orders):
            if not self.left:
                self.connected = False
                raise ControlError("the gateway is not there")
            self.left -= 1
        return await super().send_state(before, after)

    def _is_news(self, orders: Orders) -> bool:
        before = self.state.orders
        return before is None or (orders.copies, orders.limiters) != (before.copies, before.limiters)


def test_every_stage_is_told_by_itself_and_a_coordinator_killed_between_two_goes_on(tmp_path: Path) -> None:
    first = (publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.02))
    second = (publisher("alarm", "fire"), subscriber("doctor", "fire", 0.0064))

    async def undisturbed() -> list[dict[str, int]]:
        async with running(tmp_path, network=ward()) as here:
            await announce(here, *first)
            await announce(here, *second)
            told = [
                {name: copy.priority_class for name, copy in orders.copies.items()}
                for orders in here.link.told_orders
            ]
            return [each for number, each in enumerate(told) if number == 0 or each != told[number - 1]]

    whole = asyncio.run(undisturbed())
    assert len(whole) >= 5

    async def interrupted(directory: Path, most: int) -> None:
        link = Interrupted(most)
        async with running(directory, network=ward(), link=link) as here:
            for intent in (*first, *second):
                kind = "publishers" if isinstance(intent, PublisherIntent) else "subscribers"
                await here.client.put(f"/v1/{kind}/{intent.name}", json=intent.as_json())
            await here.until(lambda: not link.connected)
        again = FakeLink()
        again.state = link.state
        async with running(directory, network=ward(), link=again) as here:
            await here.settled()
            assert again.state.orders is not None
            found = {name: copy.priority_class for name, copy in again.state.orders.copies.items()}
            assert len(found) == len(whole[-1])
            for name in ("nurse", "doctor"):
                (promise,) = (await promises(here, name))["promises"]
                assert promise["admitted"]

    for most in (1, 2):
        directory = tmp_path / str(most)
        directory.mkdir()
        asyncio.run(interrupted(directory, most))


def test_the_next_stage_waits_until_queues_and_switches_have_carried_one_out(tmp_path: Path) -> None:
    async def scene() -> None:
        link = FakeLink()
        async with running(tmp_path, network=ward(), link=link) as here:
            await here.until(lambda: here.coordinator.runtime.generation > 0)
            link.carried = here.coordinator.runtime.generation
            for intent in (publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.02)):
                kind = "publishers" if isinstance(intent, PublisherIntent) else "subscribers"
                await here.client.put(f"/v1/{kind}/{intent.name}", json=intent.as_json())
            runtime = here.coordinator.runtime
            await here.until(
                lambda: len(runtime._stages) > 1 and link.told_orders[-1].generation > link.carried
            )
            seen = []
            while len(runtime._stages) != 1 or not runtime.is_in_force(("subscriber", "nurse")):
                generation = link.told_orders[-1].generation
                # Told again and again, and never the next one.
                await runtime._send()
                assert link.told_orders[-1].generation == generation
                seen.append(generation)
                link.carried = generation
                await here.until(
                    lambda before=generation: (
                        link.told_orders[-1].generation > before
                        or runtime.is_in_force(("subscriber", "nurse"))
                    )
                )
            assert len(set(seen)) >= 2
            assert (await promises(here, "nurse"))["promises"][0]["admitted"]

    asyncio.run(scene())


def test_a_publisher_that_exceeds_what_it_declared_is_a_decision_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, network=ward()) as here:
            await announce(here, publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.02))
            measured = here.coordinator.runtime.measuring
            for cut in (5, 9, 14):
                here.link.flows = {"239.192.0.0:17000": FlowCounters(0, 100, limited=cut)}
                at_ns = measured.latest.at_ns if measured.latest is not None else 0
                await here.until(
                    lambda at_ns=at_ns: measured.latest is not None and measured.latest.at_ns > at_ns + 1e9
                )

            async def limited() -> list[str]:
                rows = (await here.client.get("/v1/decisions", params={"limit": 1000})).json()["decisions"]
                return [each["subject"] for each in rows if each["kind"] == "limited"]

            assert await here.until(limited) == ["ecg pulse"]

    asyncio.run(scene())


def test_plan_forecast_explanation_and_what_if_know_promises(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, network=ward()) as here:
            chat = PublisherIntent((PublicationIntent("chat", 5.0, 100.0),), name="pump")
            listener = SubscriberIntent((SubscriptionIntent("chat"),), "monitor", name="visitor")
            await announce(
                here, publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.02), chat, listener
            )
            answers = [
                await here.client.get("/v1/plan", params={"full": True}),
                await here.client.get("/v1/forecast", params={"full": True}),
                await here.client.get("/v1/scenario"),
                await here.client.post("/v1/what-if", json={"rate_factors": {"chat": 2.0}}),
                await here.client.get("/v1/explanation", params={"subscriber": "nurse", "topic": "pulse"}),
            ]
            assert [answer.status_code for answer in answers] == [200] * 5
            assert "proven" in answers[-1].json()["explanation"]
            assert "guaranteed: true" in answers[2].text

    asyncio.run(scene())
