"""Delay requirements of subscriptions: constraints of ports, refusals over REST, publishers that are asked for less."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.coordinating import FakeLink, running

from triagemq.channel.messages import Measured, PortDelays
from triagemq.coordinator.decide.decide import PlannerSettings, Question, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.loop.delay_requirements import DelayRequirements
from triagemq.delay.constraints import HOLD_SECONDS, PROBE_PER_SECOND, RETURN_PER_SECOND
from triagemq.scenario import Scenario, loads

TEXT = """
name: two switches
overhead_bytes: 0
planning: {priority_classes: 2, flows_per_subscriber: 2}
brokers: {b: }
switches: {near: , far: {fed_by: trunk}}
ports:
  trunk: {switch: near, bandwidth_bps: 10e6, discipline: queue_rates, queue_rates_bps: [8e6, 2e6]}
  radio: {switch: far, bandwidth_bps: 2e6, discipline: queue_rates,
    queue_rates_bps: [1.5e6, 0.5e6], floors_bps: [0.5e6, 0.2e6]}
publishers:
  pump: {publishes: {pressure: {rate_per_second: 100, size_bytes: 1000}, notes: {rate_per_second: 10, size_bytes: 500}}}
subscribers:
  crew:
    port: radio
    subscribes: {pressure: {utility: "log:1000", max_latency_seconds: 0.2}, notes: {utility: "log:1"}}
  hasty:
    port: radio
    subscribes: {pressure: {utility: "log:1000", max_latency_seconds: 0.001}}
"""
LEAST = {"trunk": 8 * 1000 / 9.8e6, "radio": 8 * 1000 / 1.8e6}
"""A packet of 1000 bytes at what floors leave for class 0: 10 - 0.2 and 2 - 0.2 Mbit/s."""


def network() -> Scenario:
    return loads(TEXT, "two.yaml")


def waits(trunk: float, radio: float) -> dict[str, PortDelays]:
    return {
        "trunk": PortDelays((8_000_000, 2_000_000), (trunk, 0.0)),
        "radio": PortDelays((1_500_000, 500_000), (radio, 0.0)),
    }


def required() -> tuple[DelayRequirements, list[Any]]:
    delays = DelayRequirements()
    decided = decide(Question(network(), settings=PlannerSettings(drops="none")))
    return delays, delays.planned(decided)


def test_a_requirement_is_divided_among_the_ports_of_its_way_and_an_impossible_one_is_refused() -> None:
    delays, news = required()
    # 0.2 s less the reserve of a tenth, in halves; the one that is refused does not count.
    assert delays.constraints == {
        "trunk": {0: pytest.approx(0.09)},
        "radio": {0: pytest.approx(0.09)},
    }
    (refused,) = news
    assert (refused.kind, refused.subject) == ("delay_refused", "hasty pressure")
    (crew,), (hasty,) = delays.of("crew"), delays.of("hasty")
    assert not crew.refused
    assert hasty.offer_seconds == pytest.approx(sum(LEAST.values()))
    assert "is refused: that is less than sending takes there; ask for 5.2" in str(hasty)
    assert crew.ports == ("trunk", "radio")


@pytest.mark.parametrize("discipline", ["", ", discipline: queue_rates, queue_rates_bps: [1e6, 1e6]"])
def test_without_control_each_subscription_is_refused_a_delay_that_sending_takes_longer_than(
    discipline: str,
) -> None:
    """And nothing else: a delay that may hold is required of no queue."""
    text = f"""
name: one port
overhead_bytes: 50
planning: {{priority_classes: 2, flows_per_subscriber: 2}}
brokers: {{b: }}
switches: {{s: }}
ports: {{radio: {{switch: s, bandwidth_bps: 2e6{discipline}}}}}
publishers: {{pump: {{publishes: {{pressure: {{rate_per_second: 10, size_bytes: 450}}}}}}}}
subscribers:
  first: &hasty {{port: radio, subscribes: {{pressure: {{utility: "log:1", max_latency_seconds: 0.001}}}}}}
  second: *hasty
  calm: {{port: radio, subscribes: {{pressure: {{utility: "log:1", max_latency_seconds: 0.01}}}}}}
"""
    delays = DelayRequirements(controlled=False)
    news = delays.planned(decide(Question(loads(text, "one.yaml"), settings=PlannerSettings(drops="none"))))
    assert [(each.kind, each.subject) for each in news] == [
        ("delay_refused", "first pressure"),
        ("delay_refused", "second pressure"),
    ]
    for name in ("first", "second"):
        (refused,) = delays.of(name)
        assert (refused.refused, refused.ports) == (True, ("radio",))
        assert refused.offer_seconds == pytest.approx(8 * 500 / 2e6)
    assert delays.of("calm") == []
    assert delays.constraints == {}


def test_every_refused_subscriber_gets_a_decision_of_its_own_once() -> None:
    def planned(text: str) -> list[tuple[str, str]]:
        decided = decide(Question(loads(text, "two.yaml"), settings=PlannerSettings(drops="none")))
        return [(each.subject, each.reason) for each in delays.planned(decided)]

    delays, _ = required()
    own = TEXT[TEXT.index("  hasty:") :]
    # The second and the third ask for the same as the first, which was refused before they came.
    second = TEXT + own.replace("hasty", "hurried")
    [(subject, reason)] = planned(second)
    assert subject == "hurried pressure"
    assert reason.startswith("hurried: 0.001 s is less than")
    third = second + own.replace("hasty", "rash")
    assert [subject for subject, _ in planned(third)] == ["rash pressure"]
    assert all(delays.of(name)[0].refused for name in ("hasty", "hurried", "rash"))
    assert planned(third) == []
    # The first one leaves: for the others nothing is new.
    assert planned(third.replace(own, "", 1)) == []
    # Another delay of one of them is another decision.
    assert [subject for subject, _ in planned(third.replace("0.001", "0.002", 1))] == ["hasty pressure"]


def test_a_delay_that_ports_can_hold_by_now_is_refused_no_more() -> None:
    delays, _ = required()
    wider = TEXT.replace("10e6", "800e6").replace("[8e6, 2e6]", "[700e6, 100e6]")
    wider = wider.replace(": 2e6", ": 200e6").replace("[1.5e6, 0.5e6]", "[150e6, 50e6]")
    decided = decide(Question(loads(wider, "two.yaml"), settings=PlannerSettings(drops="none")))
    assert delays.planned(decided) == []
    assert not delays.of("hasty")[0].refused


def test_the_same_requirements_keep_what_constraints_were_adjusted_to() -> None:
    delays, _ = required()
    delays.on_delays(waits(0.01, 0.5), 0.0)
    adjusted = delays.constraints
    assert adjusted["radio"][0] < 0.09
    decided = decide(Question(network(), settings=PlannerSettings(drops="none")))
    assert delays.planned(decided) == []
    assert delays.constraints == adjusted
    # In time again they rise to what they were.
    for second in range(20):
        delays.on_delays(waits(0.001, 0.01), float(second))
    assert delays.constraints["radio"][0] == pytest.approx(0.09, rel=0.06)


def test_publishers_slow_down_when_a_port_cannot_be_quick_enough_and_come_back() -> None:
    delays, _ = required()
    news: list[Any] = []
    second = 0.0
    while not news:
        second += 1.0
        assert second < 30
        news = delays.on_delays(waits(0.0, 2.0), second)
    assert [each.kind for each in news] == ["slow_down"]
    assert news[0].subject == "pump pressure"
    asked = delays.slow_down("pump", second)
    assert asked.keys() == {"pressure"}
    assert 50 <= asked["pressure"] < 100
    assert delays.slow_down("other", second) == {}
    # Asked again it is less, but never nothing; and nothing is said twice.
    for more in range(1, 20):
        assert delays.on_delays(waits(0.0, 2.0), second + more) == []
    least = delays.slow_down("pump", second + 19)["pressure"]
    assert least == pytest.approx(5.0)
    calm = second + 19
    # Half of the way back quickly, then by hundredths.
    over = calm + HOLD_SECONDS + 0.475 / RETURN_PER_SECOND + 0.475 / PROBE_PER_SECOND
    assert delays.slow_down("pump", over - 1)["pressure"] == pytest.approx(100 - 100 * PROBE_PER_SECOND)
    assert [each.kind for each in delays.on_delays(waits(0.0, 0.01), over + 1e-6)] == ["as_before"]
    assert delays.slow_down("pump", over + 1e-6) == {}


def test_ports_without_queue_rates_and_judged_latencies_require_nothing() -> None:
    plain = loads(
        TEXT.replace("max_latency_seconds: 0.2", "max_latency_seconds: 0.2, max_latency_share: 0.9"), "x"
    )
    delays = DelayRequirements()
    delays.planned(decide(Question(plain, settings=PlannerSettings(drops="none"))))
    assert delays.of("crew") == []
    assert delays.constraints == {}


class ControllingLink(FakeLink):
    """A gateway whose queues are controlled."""

    def __init__(self) -> None:
        super().__init__()
        self.managed: dict[str, PortDelays] = {}

    async def measure(self, *, flows: bool = True, topics: bool = True, after: str = "") -> Measured:
        return replace(await super().measure(flows=flows, topics=topics, after=after), managed=self.managed)


def test_rest_tells_refusals_queue_rates_and_whom_to_slow_down(tmp_path: Path) -> None:
    async def scene() -> None:
        link = ControllingLink()
        async with running(
            tmp_path,
            link=link,
            network=Network(network()),
            planner=PlannerSettings(drops="none"),
            queue_control=True,
        ) as here:
            publishes = [{"topic": "pressure", "rate_per_second": 100, "size_bytes": 1000}]
            terms = {"publications": publishes, "lease_seconds": 600}
            assert (await here.client.put("/v1/publishers/pump", json=terms)).status_code == 201
            for name, seconds in (("crew", 0.2), ("hasty", 0.001)):
                subscribes = [{"topic": "pressure", "max_latency_seconds": seconds}]
                wanted = {"subscriptions": subscribes, "lease_seconds": 600}
                answer = await here.client.put(f"/v1/subscribers/{name}", json=wanted)
                assert answer.status_code == 201, answer.text
            await here.settled()
            link.managed = waits(0.0, 0.01)
            await here.until(lambda: link.state.constraints)
            assert link.state.constraints is not None
            assert link.state.constraints["radio"][0] == pytest.approx(0.09)
            (refused,) = (await here.client.get("/v1/subscribers/hasty")).json()["delays"]
            assert refused["refused"]
            assert refused["offer_seconds"] == pytest.approx(sum(LEAST.values()))
            (held,) = (await here.client.get("/v1/subscribers/crew")).json()["delays"]
            assert (held["refused"], held["ports"]) == (False, ["trunk", "radio"])
            told = (await here.client.post("/v1/subscribers/hasty/heartbeat")).json()["refused_delays"]
            assert told == [refused]
            assert (await here.client.post("/v1/subscribers/crew/heartbeat")).json()["refused_delays"] == []
            query = {"subscriber": "hasty", "topic": "pressure"}
            words = (await here.client.get("/v1/explanation", params=query)).json()["explanation"]
            assert "sending takes there; ask for 5.2" in words
            ports = {each["name"]: each for each in (await here.client.get("/v1/ports")).json()}
            assert ports["radio"]["queue_rates_bps"] == [1_500_000, 500_000]
            assert ports["radio"]["delay_seconds"] == [0.01, 0.0]
            assert ports["radio"]["constraint_seconds"] == [pytest.approx(0.09), None]

            async def slowed() -> dict[str, float]:
                answer = await here.client.post("/v1/publishers/pump/heartbeat")
                found: dict[str, float] = answer.json()["slow_down"]
                return found

            assert await slowed() == {}
            link.managed = waits(0.0, 60.0)
            assert (await here.until(slowed))["pressure"] < 100
            for kind in ("delay_refused", "slow_down"):
                await here.until(lambda kind=kind: kind in {each["kind"] for each in link.told_decisions})

    asyncio.run(scene())
