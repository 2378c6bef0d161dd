"""REST as a client sees it: announcing, changing, reading, waiting, and being told in words what is wrong."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.coordinating import (
    LONG_SECONDS,
    FakeLink,
    Running,
    publisher,
    running,
    served,
    subscriber,
)
from websockets.asyncio.client import connect

from triagemq.channel.messages import Measured
from triagemq.child import load_config
from triagemq.client import Assignment
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.loop.figures import Live
from triagemq.coordinator.settings import Settings, check_listening
from triagemq.errors import ParameterError
from triagemq.plan.dataplane import PortCounters, QueueCounters
from triagemq.scenario import loads


def test_the_life_of_a_subscriber(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            said = await here.client.post("/v1/publishers", json=publisher("p", "a/1", "a/2"))
            assert said.status_code == 201
            assert said.json()["connection"] == {
                "gateway": "127.0.0.1:10000",
                "client_id": "p",
                "broker": "mqtt://127.0.0.1:1883",
                "may_move": False,
            }
            body = {
                "subscriptions": [{"topic": "a/+", "utility": "step:3@0.5"}],
                "lease_seconds": 30,
                "port": "port",
                "flows": 5,
            }
            made = await here.client.put("/v1/subscribers/ff:7@x", json=body)
            assert made.status_code == 201
            assert made.json()["lease_seconds"] == 30
            assert made.json()["connection"]["client_id"] == "ff:7@x"
            way = "/v1/subscribers/ff:7@x/assignment?wait_seconds=60&after="
            waited = await here.client.get(f"{way}0")
            if not waited.json()["classes"]:  # A plan was under way when it announced itself.
                waited = await here.client.get(f"{way}{waited.json()['generation']}")
            assert set(waited.json()["classes"]) == set(waited.json()["drop_rates"]) == {"a/1", "a/2"}
            read = (await here.client.get("/v1/subscribers/ff:7@x")).json()
            assert read["in_force"] is True
            assert read["subscriptions"] == [
                {"topic": "a/+", "utility": {"shape": "step", "weight": 3.0, "threshold": 0.5}}
            ]
            assert (read["port"], read["flows"]) == ("port", 5)
            again = await here.client.put("/v1/subscribers/ff:7@x", json=read_back(read))
            assert again.status_code == 200, "what is read may be written again"
            assert again.json()["in_force"] is True, "and is no change"
            beat = await here.client.post("/v1/subscribers/ff:7@x/heartbeat")
            assert beat.json() == {
                "lease_seconds": 30.0,
                "generation": waited.json()["generation"],
                "refused_delays": [],
                "limited_claims": [],
            }
            assert (await here.client.delete("/v1/subscribers/ff:7@x")).status_code == 204
            assert (await here.client.delete("/v1/subscribers/ff:7@x")).status_code == 404
            assert (await here.client.post("/v1/subscribers/ff:7@x/heartbeat")).status_code == 404

    asyncio.run(run())


def read_back(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("subscriptions", "port", "flows", "lease_seconds")}


def test_a_change_that_is_none_makes_no_plan(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            await here.client.post("/v1/publishers", json=publisher("p", "a"))
            await here.client.post("/v1/subscribers", json=subscriber("s", "a"))
            await here.settled()
            plans = here.coordinator.runtime.metrics.plans
            answer = await here.client.post("/v1/subscribers", json=subscriber("s", "a"))
            assert answer.json()["in_force"] is True
            await asyncio.sleep(1.0)
            assert here.coordinator.runtime.metrics.plans == plans

    asyncio.run(run())


def test_ten_thousand_at_once_and_the_loop_stays_awake(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            everyone = [subscriber(f"s{number}", f"a/{number % 50}") for number in range(10_000)]
            sensors = [publisher("p", *(f"a/{number}" for number in range(50)), rate=0.1)]
            body = {"announce": {"subscribers": everyone, "publishers": sensors}}
            answer = await here.client.post("/v1/intents", json=body)
            assert answer.status_code == 200, answer.text[:300]
            assert len(answer.json()["subscribers"]) == 10_000
            assert (await here.client.get("/v1/health")).json()["subscribers"] == 10_000
            await here.settled()
            assert len(here.coordinator.runtime.decided.scenario.subscriptions) == 10_000  # type: ignore[union-attr]
            gone = {"withdraw": {"subscribers": [f"s{number}" for number in range(9_999)]}}
            answer = await here.client.post("/v1/intents", json=gone)
            assert answer.json()["withdrawn"] == 9_999
            assert (await here.client.get("/v1/subscribers")).json() == ["s9999"]

    asyncio.run(run())


def test_bulk_is_all_or_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            for body in (
                {"announce": {"subscribers": [subscriber("a", "x"), subscriber("a", "y")]}},
                {"announce": {"subscribers": [subscriber("a", "x")]}, "withdraw": {"subscribers": ["a"]}},
            ):
                answer = await here.client.post("/v1/intents", json=body)
                assert answer.status_code == 409
                assert "named twice" in answer.json()["detail"]
            missing = {"announce": {"subscribers": [subscriber("a", "x")]}, "withdraw": {"publishers": ["b"]}}
            assert (await here.client.post("/v1/intents", json=missing)).status_code == 404
            assert (await here.client.get("/v1/subscribers")).json() == []

    asyncio.run(run())


WRONG: list[tuple[str, Any, int, str]] = [
    ("/v1/subscribers", {"name": "a~b", "subscriptions": []}, 422, "name"),
    ("/v1/subscribers", {"name": "..", "subscriptions": []}, 422, "name"),
    ("/v1/subscribers", {"name": "x" * 201, "subscriptions": []}, 422, "name"),
    ("/v1/subscribers", {"name": "é", "subscriptions": []}, 422, "name"),
    ("/v1/subscribers", {"name": "a", "subscriptions": [{"topic": "a/#/b"}]}, 422, "let + or # stand alone"),
    ("/v1/subscribers", {"name": "a", "subscriptions": [{"topic": ""}]}, 422, "topic"),
    ("/v1/subscribers", {"name": "a", "subscriptions": [{"topic": "x\0y"}]}, 422, "topic filter"),
    ("/v1/subscribers", {"name": "a", "subscriptions": [{"topic": "x\ud800"}]}, 422, "topic"),
    ("/v1/subscribers", {"name": "a", "subscriptions": [], "\ud800": 1}, 422, "unicode"),
    ("/v1/subscribers", subscriber("a", "x", "x"), 422, "there twice"),
    ("/v1/subscribers", subscriber("a", "x", port="nowhere"), 400, "there are port"),
    ("/v1/subscribers", subscriber("a", "x", flows=0), 422, "flows"),
    ("/v1/subscribers", subscriber("a", "x", lease_seconds=0), 422, "lease_seconds"),
    ("/v1/subscribers", subscriber("a", "x", lease_seconds=1e9), 422, "lease_seconds"),
    ("/v1/subscribers", subscriber("a", "x", surprise=1), 422, "Extra inputs"),
    *(
        (
            "/v1/subscribers",
            {"name": "a", "subscriptions": [{"topic": "x", "utility": utility}]},
            422,
            "utility",
        )
        for utility in (
            "log",
            "log:-1",
            "step:3",
            "step:3@2",
            "log:3@0.5",
            "log:1e99",
            "cubic:1",
            7,
            {"shape": "step", "weight": 1},
            {"shape": "log", "weight": -1},
        )
    ),
    (
        "/v1/publishers",
        {"name": "a", "publications": [{"topic": "x/+"}]},
        422,
        "not the name of an MQTT topic",
    ),
    ("/v1/publishers", publisher("a", "x", rate=-1.0), 422, "rate_per_second"),
    ("/v1/publishers", publisher("a", "x", rate=1e300), 422, "rate_per_second"),
    ("/v1/publishers", {"name": "a"}, 422, "publications: Field required"),
    ("/v1/what-if", {"rate_factors": {"no/such": 2}}, 400, "no topic is matched by 'no/such'"),
    ("/v1/what-if", {"bandwidths_bps": {"nowhere": 1e6}}, 400, "no port 'nowhere'"),
    ("/v1/tokens", {"roles": []}, 422, "body.roles: List should have at least 1 item"),
    ("/v1/tokens", {"roles": "viewer"}, 422, "body.roles: Input should be a valid list"),
    (
        "/v1/tokens",
        {"roles": ["viewer"], "surprise": 1},
        422,
        "body.surprise: Extra inputs are not permitted",
    ),
    (
        "/v1/subscribers",
        {"name": "a", "subscriptions": [7]},
        422,
        "body.subscriptions.0: Input should be an object",
    ),
    ("/v1/tokens", {"roles": ["king"]}, 422, "roles"),
]


@pytest.fixture(scope="module")
def wrong_answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    async def run() -> list[tuple[int, str]]:
        async with running(tmp_path_factory.mktemp("wrong")) as here:
            await here.until(lambda: here.coordinator.runtime.decided is not None)
            found = []
            for path, body, _, _ in WRONG:
                content = json.dumps(body).encode()
                headers = {"Content-Type": "application/json"}
                answer = await here.client.post(path, content=content, headers=headers)
                found.append((answer.status_code, answer.json()["detail"]))
            return found

    return asyncio.run(run())


@pytest.mark.parametrize("number", range(len(WRONG)), ids=lambda number: f"{number}-{WRONG[number][3]}")
def test_what_is_wrong_is_said_in_one_line(number: int, wrong_answers: list[tuple[int, str]]) -> None:
    _, _, status, words = WRONG[number]
    found, detail = wrong_answers[number]
    assert found == status, detail
    assert words in detail
    assert "\n" not in detail


def test_bodies_that_are_no_json_or_too_long(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            post = here.client.post
            headers = {"Content-Type": "application/json"}
            for content in (b"{", b"\xff\xfe", b"[" * 100_000, b'{"name": NaN}', b"null", b"[]"):
                answer = await post("/v1/subscribers", content=content, headers=headers)
                assert answer.status_code in (400, 422), answer.text
                assert answer.json()["detail"]
            answer = await post("/v1/subscribers", content=b" " * 4_000_001, headers=headers)
            assert answer.status_code == 413
            assert "4000000 bytes at most" in answer.json()["detail"]

            async def pieces() -> Any:
                for _ in range(41):
                    yield b" " * 100_000

            answer = await post("/v1/subscribers", content=pieces(), headers=headers)
            assert answer.status_code == 413
            assert (await here.client.get("/v1/nothing")).json() == {"detail": "Not Found"}
            assert (await here.client.patch("/v1/subscribers")).status_code == 405

    asyncio.run(run())


async def _with_three_topics(here: Running) -> None:
    await here.client.post("/v1/publishers", json=publisher("p", "a/1", "a/2", "b", rate=50.0))
    await here.client.post("/v1/subscribers", json=subscriber("s", "a/+", "b"))
    await here.settled()


def test_what_can_be_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            await _with_three_topics(here)
            get = here.client.get
            text = (await get("/v1/scenario")).text
            assert len(loads(text).subscriptions) == 3
            assert "publishers:" in (await get("/v1/scenario")).text
            plan = (await get("/v1/plan?full=true")).json()
            assert plan["subscriptions"] == 3
            assert plan["plan"]["format"] == "triagemq-plan"
            forecast = (await get("/v1/forecast")).json()
            assert forecast["generation"] == plan["generation"]
            assert 0 < forecast["utility"]["rate"] <= 1
            assert forecast["subscriptions"] is None
            told = {"p95_seconds", "p99_seconds", "flag", "latency_error", "success_error"}
            assert all(told <= set(row) for row in forecast["classes"])
            in_full = (await get("/v1/forecast?full=true")).json()
            assert in_full["classes"] == forecast["classes"]
            assert [row["topic"] for row in in_full["subscriptions"]] == ["a/1", "a/2", "b"]
            assert all(told <= set(row) for row in in_full["subscriptions"])

            def promised() -> list[dict[str, Any]]:
                rows = (here.coordinator.live.latest or {}).get("classes", ())
                return [{name: row[f"forecast_{name}"] for name in told} for row in rows]

            expected = [{name: row[name] for name in told} for row in forecast["classes"]]
            await here.until(lambda: promised() == expected)
            topics = (await get("/v1/topics?after=a/1&limit=1")).json()
            assert topics == [
                {"topic": "a/2", "rate_per_second": 50.0, "size_bytes": 100.0, "measured": False}
            ]
            explained = (await get("/v1/explanation?subscriber=s&topic=b")).json()
            assert "s wants b" in explained["explanation"]
            assert explained["forecast"] == in_full["subscriptions"][2]
            for nothing in ("subscriber=s&topic=c", "subscriber=nobody&topic=b"):
                absent = await get(f"/v1/explanation?{nothing}")
                assert absent.status_code == 404, absent.text
                assert "no topic 'c'" in absent.text or "no subscriber 'nobody'" in absent.text
            metrics = (await get("/metrics")).text
            assert 'triage_intents{kind="subscriber"} 1' in metrics
            assert 'triage_gateway_total{counter="refused",gateway="gateway",reason="publish"} 1' in metrics
            first = (await get("/v1/decisions?limit=1")).json()
            second = (await get(f"/v1/decisions?after={first['last']}&limit=1000")).json()
            assert first["decisions"][0]["number"] < second["decisions"][0]["number"]
            assert all(row["reason"] for row in second["decisions"])

    asyncio.run(run())


def test_a_share_within_a_time_can_be_asked_for_is_planned_by_and_explained(tmp_path: Path) -> None:
    """Two topics fill a port: the one of which 95 % shall come in time goes first, though it is worth less."""
    late = {"topic": "now", "utility": "log:5", "max_latency_seconds": 0.15}

    async def run() -> None:
        network = Network.plain(bandwidth_bps=2e4)
        async with running(tmp_path, network=network) as here:
            await here.client.post("/v1/publishers", json=publisher("p", "now", "later", rate=8.0))
            patient = subscriber("patient", flows=1, subscriptions=[{"topic": "later", "utility": "log:6"}])
            await here.client.post("/v1/subscribers", json=patient)
            put = await here.client.put("/v1/subscribers/hurried", json={"flows": 1, "subscriptions": [late]})
            assert put.status_code == 201, put.text
            await here.settled()

            async def classes() -> dict[str, int]:
                rows = (await here.client.get("/v1/forecast?full=true")).json()["subscriptions"]
                return {row["topic"]: row["priority_class"] for row in rows}

            assert await classes() == {"later": 0, "now": 1}
            asked = late | {"max_latency_share": 0.95}
            for wrong in ({"max_latency_share": 1.5}, {"max_latency_seconds": None}):
                body = {"flows": 1, "subscriptions": [asked | wrong]}
                assert (await here.client.put("/v1/subscribers/hurried", json=body)).status_code == 422
            await here.client.put("/v1/subscribers/hurried", json={"flows": 1, "subscriptions": [asked]})
            await here.settled()
            assert await classes() == {"later": 1, "now": 0}
            read = (await here.client.get("/v1/subscribers/hurried")).json()["subscriptions"]
            assert read[0]["max_latency_share"] == 0.95
            kinds = {row["kind"]: row for row in (await here.client.get("/v1/decisions")).json()["decisions"]}
            assert kinds["deadlines"]["before"] == "1 subscriptions ask for a share in time"
            words = (await here.client.get("/v1/explanation?subscriber=hurried&topic=now")).json()
            assert "times the part that is met of 0.95 within 0.15 s" in words["explanation"]
            assert (
                f"{words['forecast']['share_within_max_latency']:.1%} within 0.15 s" in words["explanation"]
            )
            answer = (await here.client.post("/v1/what-if", json={"subscribers_factor": 2.0})).json()
            assert (answer["before"]["deadlines"]["judged"], answer["after"]["deadlines"]["judged"]) == (1, 2)

    asyncio.run(run())


def test_what_if_changes_nothing_and_forecasts_the_change(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            await _with_three_topics(here)
            before = (await here.client.get("/v1/scenario")).text
            generation = here.coordinator.runtime.generation

            async def ask(**changes: Any) -> tuple[float, float]:
                answer = await here.client.post("/v1/what-if", json=changes)
                assert answer.status_code == 200, answer.text
                found = answer.json()
                return found["before"]["utility"]["rate"], found["after"]["utility"]["rate"]

            now, doubled = await ask(rate_factors={"#": 2.0})
            assert doubled < now
            now, wider = await ask(bandwidths_bps={"port": 1e7})
            assert now < wider == pytest.approx(1.0)
            now, crowded = await ask(subscribers_factor=2.0)
            assert crowded < now
            assert (await here.client.get("/v1/scenario")).text == before
            assert here.coordinator.runtime.generation == generation

    asyncio.run(run())


def test_live_figures_come_and_a_slow_listener_is_dropped(tmp_path: Path) -> None:
    async def run() -> None:
        link = FakeLink()
        async with running(tmp_path, link=link) as here, served(here.app) as address:
            await _with_three_topics(here)
            async with connect(f"ws://{address}/v1/live") as socket:
                link.topics = {"b": (1_000, 100_000)}
                received = {"b": {"count": 40, "latency_seconds_sum": 8.0, "latency_seconds_max": 0.5}}
                counted = latency = None
                while counted is None or latency is None:
                    # Figures are of the last seconds; a busy machine may be later than that.
                    beat = await here.client.post("/v1/subscribers/s/heartbeat", json={"received": received})
                    assert beat.status_code == 200
                    figures = json.loads(await asyncio.wait_for(socket.recv(), LONG_SECONDS))
                    counted = counted or next(
                        (each for each in figures["topics"] if each["topic"] == "b"), None
                    )
                    heard = [each["mean_latency_seconds"] for each in figures["classes"]]
                    latency = latency or next((each for each in heard if each is not None), None)
                assert latency == pytest.approx(0.2)
            assert 'triage_received_total{priority_class="' in (await here.client.get("/metrics")).text

    asyncio.run(run())

    async def slow() -> None:
        live = Live()
        queue = live.listen()
        for number in range(7):
            live.publish({"number": number})
        assert live.listeners == 0
        taken = [queue.get_nowait() for _ in range(queue.qsize())]
        assert taken[-1] is None

    asyncio.run(slow())


class BusyLink(FakeLink):
    """In every full measurement class 0 has 10 copies more, of which 3 and 1 are dropped, and 6 have left."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    async def measure(self, *, flows: bool = True, topics: bool = True, after: str = "") -> Measured:
        measured = await super().measure(flows=flows, topics=topics, after=after)
        if not flows or not self.told_orders:
            return measured
        self.rounds += 1
        n = self.rounds
        first = QueueCounters(packets_in=7 * n, packets_out=6 * n, drops=n)
        queue = QueueCounters(bytes_out=1_000 * n, backlog_packets=7, backlog_bytes=700)
        return replace(
            measured,
            planned_drops={0: 3 * n},
            ports={"port": PortCounters((first, queue), QueueCounters())},
        )


def test_prometheus_is_told_load_backlog_drops_and_success(tmp_path: Path) -> None:
    async def run() -> None:
        link = BusyLink()
        async with running(tmp_path, link=link) as here:
            await _with_three_topics(here)
            passed = here.coordinator.live.traffic
            await here.until(lambda: sum(row["offered"] for row in passed.values()) >= 20)
            text = (await here.client.get("/metrics")).text
            level = min(passed)
            label = f'{{priority_class="{level}"}}'
            offered = int(figure(text, f"triage_offered_total{label}"))
            assert offered % 10 == 0
            for outcome, share in (("dropped_by_policy", 0.3), ("dropped_by_buffer", 0.1)):
                dropped = figure(
                    text, f'triage_dropped_total{{outcome="{outcome}",priority_class="{level}"}}'
                )
                assert dropped == pytest.approx(share * offered)
            assert figure(text, f"triage_sent_total{label}") == pytest.approx(0.6 * offered)
            assert figure(text, f"triage_success_rate{label}") == pytest.approx(0.6)
            # 8,000 bits in 0.8 s (measurements are out of step by up to 0.2 s) or more, of 100,000 bit/s.
            assert 0 < figure(text, 'triage_port_load{port="port"}') <= 0.1
            assert figure(text, 'triage_port_planned_load{port="port"}') > 0.5
            waiting = '{port="port",priority_class="1"}'
            assert figure(text, f"triage_port_backlog_packets{waiting}") == 7
            assert figure(text, f"triage_port_backlog_bytes{waiting}") == 700
            link.connected = False
            text = (await here.client.get("/metrics")).text
            assert "triage_port_load{" not in text
            assert "triage_success_rate{" not in text
            assert f"triage_offered_total{label}" in text

    asyncio.run(run())


def figure(text: str, sample: str) -> float:
    """The value of one line of what Prometheus reads."""
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{sample} "))


def test_reports_about_topics_that_are_not_assigned_count_nowhere() -> None:
    from triagemq.coordinator.loop.figures import Received

    live = Live()
    live.received(Assignment(classes={"a": 1}), {"a": Received(count=2), "b": Received(count=7)})
    assert {level: row.count for level, row in live.total.items()} == {1: 2}


def test_ports_change_by_name_only(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here:
            put = here.client.put
            assert (await put("/v1/ports/nowhere", json={"bandwidth_bps": 1e6})).status_code == 404
            assert (await put("/v1/ports/port", json={"bandwidth_bps": 0})).status_code == 422
            assert (await put("/v1/ports/port", json={"bandwidth_bps": 5e4})).status_code == 200
            assert (await here.client.get("/v1/ports")).json()[0]["bandwidth_bps"] == 5e4
        async with running(tmp_path) as here:
            assert (await here.client.get("/v1/ports")).json()[0]["bandwidth_bps"] == 5e4, "kept"

    asyncio.run(run())


def _settings(**given: Any) -> Settings:
    return Settings(database="", gateway_socket="", gateway_address="", **given)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"])
def test_loopback_needs_nothing(host: str) -> None:
    check_listening(_settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_beyond_loopback_tls_and_tokens_are_needed_or_waived(host: str) -> None:
    with pytest.raises(ParameterError, match="add tls_certificate with tls_key, or --insecure"):
        check_listening(_settings(host=host, access=True))
    with pytest.raises(ParameterError, match="add access and tls_certificate with tls_key, or --insecure"):
        check_listening(_settings(host=host))
    (said,) = check_listening(_settings(host=host, insecure=True, access=True))
    assert said.endswith("without encryption")
    (said,) = check_listening(_settings(host=host, insecure=True))
    assert said.endswith("without tokens or encryption")


def test_tls_files_are_looked_at_before_anything_is_opened(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    with pytest.raises(ParameterError, match="belong together"):
        check_listening(_settings(tls_certificate="x"))
    for name in ("cert.pem", "missing.pem"):
        path = str(tmp_path / name)
        with pytest.raises(ParameterError, match="cannot be used"):
            check_listening(_settings(tls_certificate=path, tls_key=path))


def test_a_configuration_is_checked_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text, words in (
        ("{", "is not JSON"),
        ("{}", "database: is missing"),
        (
            '{"database": "d", "gateway_socket": "s", "gateway_address": "a", "prot": 1}',
            "prot: there is no such field",
        ),
        ('{"database": "d", "gateway_socket": "s", "gateway_address": "a", "port": 70000}', "port: "),
    ):
        file.write_text(text)
        with pytest.raises(ParameterError, match=words):
            load_config(Settings, file)
