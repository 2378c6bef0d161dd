"""/v1/subscriptions and /v1/planner: what people look at, and which drop policy is planned with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.coordinator.coordinating import Running, publisher, running, subscriber

from triagemq.coordinator.decide.decide import PlannerSettings
from triagemq.coordinator.decide.network import Network

_TOPICS = ("hall/smoke", "hall/noise", "attic/smoke")


async def _crowded(here: Running) -> None:
    """More than fits, so that classes and drop rates differ."""
    await here.client.post("/v1/publishers", json=publisher("sensors", *_TOPICS, rate=50.0))
    for name, weight in (("crew", 20), ("press", 1)):
        body = subscriber(name, *_TOPICS)
        body["subscriptions"] = [{"topic": topic, "utility": f"log:{weight}"} for topic in _TOPICS]
        await here.client.post("/v1/subscribers", json=body)
    await here.settled()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one overloaded exchange answers, to all questions below."""

    async def run() -> dict[str, Any]:
        directory = tmp_path_factory.mktemp("subscriptions")
        async with running(directory, network=Network.plain(2e5)) as here:
            await _crowded(here)
            get = here.client.get
            await get("/v1/forecast")
            found: dict[str, Any] = {
                "all": (await get("/v1/subscriptions")).json(),
                "smoke": (await get("/v1/subscriptions?search=press+smoke&order=topic")).json(),
                "page": (await get("/v1/subscriptions?order=weight&descending=true&offset=2&limit=2")).json(),
                "unsorted": (await get("/v1/subscriptions?order=success_rate")).json(),
            }
            here.link.topics = dict.fromkeys(_TOPICS, (1000, 100000))
            for count in (0, 30):
                await here.client.post(
                    "/v1/subscribers/crew/heartbeat",
                    json={"received": {"hall/smoke": {"count": count, "latency_bins": {"50": count}}}},
                )
            found["measured"] = (await get("/v1/subscriptions?search=crew+hall/smoke")).json()
            what_if = await here.client.post("/v1/what-if", json={"subscribers_factor": 2.0, "drops": "none"})
            found["what_if"] = what_if.json()
            found["refused"] = (await here.client.put("/v1/planner", json={"drops": "mine:all"})).status_code
            generation = here.coordinator.runtime.generation
            found["planner"] = (
                await here.client.put("/v1/planner", json={"drops": "none", "reason": "a test"})
            ).json()
            await here.until(lambda: here.coordinator.runtime.generation > generation)
            found["undropped"] = (await get("/v1/subscriptions")).json()
        for name, settings in (("kept", PlannerSettings()), ("configured", PlannerSettings(drops="linear"))):
            async with running(directory, network=Network.plain(2e5), planner=settings) as here:
                found[name] = (await here.client.get("/v1/planner")).json()["drops"]
                found["decisions"] = (await here.client.get("/v1/decisions")).json()["decisions"]
        return found

    return asyncio.run(run())


def test_what_is_worth_most_comes_first_and_has_a_forecast(answers: dict[str, Any]) -> None:
    rows = answers["all"]["subscriptions"]
    assert answers["all"]["total"] == len(rows) == 6
    assert [row["subscriber"] for row in rows[:3]] == ["crew"] * 3
    assert rows[0]["utility"] == "log:20"
    assert rows[0]["priority_class"] < rows[-1]["priority_class"]
    assert rows[-1]["drop_rate"] > 0
    assert rows[-1]["forecast"]["success_rate"] < rows[0]["forecast"]["success_rate"]


def test_every_word_of_a_search_is_in_subscriber_or_topic(answers: dict[str, Any]) -> None:
    found = [(row["subscriber"], row["topic"]) for row in answers["smoke"]["subscriptions"]]
    assert found == [("press", "attic/smoke"), ("press", "hall/smoke")]


def test_a_page_is_a_part_of_what_was_found(answers: dict[str, Any]) -> None:
    assert answers["page"]["total"] == 6
    assert [row["weight"] for row in answers["page"]["subscriptions"]] == [20.0, 1.0]


def test_what_is_not_measured_yet_is_there_nevertheless(answers: dict[str, Any]) -> None:
    assert answers["unsorted"]["total"] == 6
    assert all(row["measured"] is None for row in answers["unsorted"]["subscriptions"])


def test_reports_of_a_subscriber_are_its_measured_figures(answers: dict[str, Any]) -> None:
    (row,) = answers["measured"]["subscriptions"]
    assert row["measured"]["delivered_per_second"] > 0
    assert row["measured"]["p50_seconds"] == row["measured"]["p95_seconds"] > 0


def test_twice_the_subscribers_and_no_drops_are_supposed_together(answers: dict[str, Any]) -> None:
    before, after = answers["what_if"]["before"], answers["what_if"]["after"]
    assert sum(row["subscriptions"] for row in after["classes"]) == 12
    assert after["ports"][0]["rho_offered"] == pytest.approx(2 * before["ports"][0]["rho_offered"])
    assert all(row["drop_rate"] == 0 for row in after["classes"])


def test_another_drop_policy_is_planned_with_and_others_code_is_not(answers: dict[str, Any]) -> None:
    assert answers["refused"] == 422
    assert answers["planner"]["drops"] == "none"
    assert all(row["drop_rate"] == 0 for row in answers["undropped"]["subscriptions"])


def test_a_drop_policy_is_kept_over_a_restart_with_its_reason_until_another_is_configured(
    answers: dict[str, Any],
) -> None:
    assert (answers["kept"], answers["configured"]) == ("none", "linear")
    (decision,) = (row for row in answers["decisions"] if row["kind"] == "drop_policy")
    assert (decision["before"], decision["after"]) == ("optimal", "none")
    assert decision["reason"] == "a test, by an operator"
