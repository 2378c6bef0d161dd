"""The gateway process with a real Mosquitto and real sockets: orders under load, kill -9, grants, marks, the trace."""

from __future__ import annotations

import json
import random
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.managed import Control, ManagedProcess
from tests.gateway.real import Mosquitto, Publisher, SnClient, ended

from triagemq.channel.grants import Grant, Grants
from triagemq.channel.messages import (
    ControlError,
    DesiredState,
    encode_line,
    shallow,
    state_message,
)
from triagemq.channel.orders import Orders, client_id_of
from triagemq.gateway.process import main
from triagemq.gateway.stored_state import StoredState
from triagemq.lab.generators import table2
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    RegAck,
    Register,
    ReturnCode,
    TopicIdType,
    WillTopic,
    WillTopicReq,
    decode,
)
from triagemq.plan.dataplane import SetFlow, SetPort
from triagemq.scenario import save
from triagemq.trace import Trace

PORT = SetPort("radio", 1e9, float("inf"), 8)
TOPICS = [f"floor/{number}" for number in range(8)]
CLASSES = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    running = Mosquitto(tmp_path_factory.mktemp("broker"))
    with ended(running):
        yield running


def orders_for(generation: int, classes: dict[str, int], name: str = "s", port: SetPort = PORT) -> Orders:
    topics = {topic: (priority_class, 0.0) for topic, priority_class in classes.items()}
    return Orders(generation, {"radio": port}, flow_for(name), {name: topics})


def flow_for(name: str, number: int = 0) -> dict[str, SetFlow[str]]:
    client_id = client_id_of(name)
    return {client_id: SetFlow(client_id, "radio", number, 7, 0.0)}


def open_client(port: int, name: str = "s") -> SnClient:
    return SnClient(port, client_id_of(name)).connect()


def gather(client: SnClient, got: Counter[bytes], seconds: float, expected: int) -> None:
    """Receive until `expected` different events are there."""
    deadline = time.monotonic() + seconds
    while len(got) < expected and (left := deadline - time.monotonic()) > 0:
        if select.select([client.socket], [], [], left)[0]:
            client.receive(0.0)
            got.update(message.payload for message in client.messages)
            client.messages.clear()


@pytest.mark.parametrize("qos", [0, 1])
def test_topics_change_their_class_under_load_and_every_event_comes_once(
    broker: Mosquitto, tmp_path: Path, qos: int
) -> None:
    chance = random.Random(qos)
    gateway = ManagedProcess(tmp_path, broker.url)
    control = Control(gateway.socket)
    publisher = Publisher(broker.port, f"load-{qos}")
    client = open_client(gateway.port)
    with ended(client, publisher, control, gateway):
        assert client.subscribe("floor/#", qos).return_code is ReturnCode.ACCEPTED
        got: Counter[bytes] = Counter()
        expected = 0
        for generation in range(60):
            classes = {topic: chance.randrange(CLASSES) for topic in TOPICS if chance.random() < 0.8}
            control.orders(orders_for(generation, classes))
            for number in range(chance.randrange(20, 120)):
                topic = chance.choice(TOPICS)
                publisher.publish(topic, f"{generation} {topic} {number}".encode(), qos)
                expected += 1
            if qos:
                publisher.wait()
            # Some changes come while events are on their way, others when all have arrived.
            gather(client, got, 60.0 if generation % 3 == 0 else 0.01, expected)
            assert generation % 3 or len(got) == expected
        gather(client, got, 60.0, expected)
        assert expected > 3000
        assert len(got) == expected
        assert set(got.values()) == {1}
        measured = gateway.ask(lambda link: link.measure())
        assert sum(count for count, _ in measured.topics.values()) == expected
        again = gateway.ask(lambda link: link.measure(after=measured.mark))
        assert (again.topics, again.begun) == ({}, []), "only what has changed crosses the channel"
        assert gateway.ask(lambda link: link.measure(topics=False)).topics == {}
        assert gateway.ask(lambda link: link.measure(after="another 7")).topics == measured.topics
        assert measured.broker_since_ns is not None
        assert measured.broker_since_ns < measured.at_ns
        assert sum(size for _, size in measured.topics.values()) == sum(map(len, got))
        assert sum(flow.packets_out for flow in measured.flows.values()) == expected
        assert measured.generation == 59
        assert measured.broker_connected
        assert measured.sessions == 1
        passed = [queue.packets_out for queue in measured.ports["radio"].queues]
        assert sum(passed) == expected
        assert all(passed[:CLASSES])


def test_killed_and_started_again_it_follows_its_orders_and_loses_nothing(
    broker: Mosquitto, tmp_path: Path
) -> None:
    gateway = ManagedProcess(tmp_path, broker.url, trace=str(tmp_path / "trace"))
    publisher = Publisher(broker.port, "kill")
    client = open_client(gateway.port)
    with ended(client, publisher, gateway):
        assert gateway.ready["generation"] == 0
        client.subscribe("floor/#", 1)
        control = Control(gateway.socket)
        control.orders(orders_for(41, {topic: number % CLASSES for number, topic in enumerate(TOPICS)}))
        control.orders(orders_for(42, {topic: (number + 1) % CLASSES for number, topic in enumerate(TOPICS)}))
        control.end()
        got: Counter[bytes] = Counter()
        expected = 0
        for round_number in range(3):
            for number in range(400):
                publisher.publish(
                    TOPICS[number % 8], f"{round_number} {TOPICS[number % 8]} {number}".encode(), 1
                )
                expected += 1
                if number == 200:
                    gather(client, got, 30.0, expected - 150)
                    gateway.kill()
            publisher.wait()
            gateway.start()
            assert gateway.ready["generation"] == 42
            gather(client, got, 60.0, expected)
            assert len(got) == expected
        flows = gateway.ask(lambda link: link.measure()).flows
        assert {client_id: flow.flow_id for client_id, flow in flows.items()} == {"s~0": 0}
        gateway.end()
    runs = sorted((tmp_path / "trace").iterdir())
    assert [run.name for run in runs] == ["run-0", "run-1", "run-2", "run-3"]
    assert [(run / "manifest.json").exists() for run in runs] == [False, False, False, True]


def test_grants_decide_who_may_do_what(broker: Mosquitto, tmp_path: Path) -> None:
    gateway = ManagedProcess(tmp_path, broker.url)
    grants = {
        "ff-7.k3y": Grant(subscribe=("floor/3/#", "help"), name="ff-7"),
        "pump.k3y": Grant(publish=("floor/+/water",), name="pump"),
    }
    gateway.grant(grants)
    publisher = Publisher(broker.port, "grants")
    client = SnClient(gateway.port, "ff-7.k3y~0").connect()
    pump = SnClient(gateway.port, "pump.k3y")
    stranger = SnClient(gateway.port, "stranger")
    control = Control(gateway.socket)
    with ended(client, pump, stranger, publisher, control, gateway):
        for client_id in ("ff-7~0", "ff-7", "ff-7.guess~0", "pump", "", "ff-7.k3y.~0"):
            answer = stranger.ask(Connect(client_id or "x", 60, clean_session=True), ConnAck)
            assert answer.return_code is ReturnCode.REJECTED_NOT_SUPPORTED
        assert pump.ask(Connect("pump.k3y", 60, clean_session=True, will=True), WillTopicReq)
        assert (
            pump.ask(WillTopic("floor/3/smoke", 0), ConnAck).return_code is ReturnCode.REJECTED_NOT_SUPPORTED
        )
        pump.connect()
        for topic in ("#", "+/3/smoke", "floor/#", "floor/+/smoke", "$SYS/#", "help/me", "floor/4/a"):
            assert client.subscribe(topic).return_code is ReturnCode.REJECTED_NOT_SUPPORTED
        assert pump.subscribe("floor/3/water").return_code is ReturnCode.REJECTED_NOT_SUPPORTED
        for topic in ("floor/3/#", "help"):
            assert client.subscribe(topic, 1).return_code is ReturnCode.ACCEPTED
        # Orders and the data plane know the subscriber by its name.
        control.orders(orders_for(1, {"floor/3/water": 1}, "ff-7"))
        allowed, forbidden = pump.register("floor/3/water"), pump.register("floor/3/smoke")
        for topic_id, code in (
            (forbidden, ReturnCode.REJECTED_NOT_SUPPORTED),
            (allowed, ReturnCode.ACCEPTED),
        ):
            message = Publish(TopicIdType.NORMAL, topic_id, b"wet", 1, message_id=9)
            assert pump.ask(message, PubAck).return_code is code
        one = client.register("help")
        refused = client.ask(Publish(TopicIdType.NORMAL, one, b"me", 1, message_id=9), PubAck)
        assert refused.return_code is ReturnCode.REJECTED_NOT_SUPPORTED
        client.collect(30.0, 1)
        assert [message.payload for message in client.messages] == [b"wet"]
        client.messages.clear()
        # Without a connection there is no client id, and so no grant.
        stranger.send(Publish(TopicIdType.SHORT, 0x6162, b"x", -1))
        measured = control.ask("measure")
        assert measured["flows"].keys() == {"ff-7~0"}
        refusals = measured["counters"]["refused"]
        assert refusals["connect: not allowed"] >= 6
        assert refusals["subscribe: not allowed"] == 8
        assert refusals["publish: not allowed"] == 3
        # A grant that is narrowed or ends, ends what was made with it. Killed or not, they stay in force.
        narrower = {"ff-7.k3y": Grant(subscribe=("help",), name="ff-7")}
        gateway.grant(narrower)
        while not isinstance(pump.receive(30.0), Disconnect):
            pass
        gateway.kill()
        gateway.start()
        publisher.publish("floor/3/water", b"not yours any more", 1)
        publisher.publish("help", b"still yours", 1)
        client.collect(30.0, 1)
        assert [message.payload for message in client.messages] == [b"still yours"]
        assert (
            stranger.ask(Connect("x", 60, clean_session=True), ConnAck).return_code is not ReturnCode.ACCEPTED
        )
        gateway.grant({}, required=False)
        stranger.connect()
        assert (tmp_path / "state" / "state.json").stat().st_mode & 0o777 == 0o600


def answer_to(gateway: ManagedProcess, client_id: str) -> ReturnCode:
    """What a CONNECT is answered with."""
    client = SnClient(gateway.port, client_id)
    with ended(client):
        return client.ask(Connect(client_id, 60, clean_session=False), ConnAck).return_code


def test_told_to_ask_for_access_it_is_closed_until_grants_have_come(
    broker: Mosquitto, tmp_path: Path
) -> None:
    later, never = ReturnCode.REJECTED_CONGESTION, ReturnCode.REJECTED_NOT_SUPPORTED
    gateway = ManagedProcess(tmp_path, broker.url, access="required")
    publisher = Publisher(broker.port, "closed")
    client = SnClient(gateway.port, "ff-7.k3y")
    with ended(client, publisher, gateway):
        client.send(Publish(TopicIdType.SHORT, 0x6162, b"without a connection", -1))
        # "Not now" and not "never": an honest client tries again.
        assert answer_to(gateway, "ff-7.k3y") is answer_to(gateway, "stranger") is later
        with pytest.raises(ControlError, match="a client needs a grant"):
            gateway.grant({}, required=False)
        refused = gateway.ask(lambda link: link.measure()).counters["refused"]
        assert refused["publish: not allowed"] == 1
        gateway.grant({"ff-7.k3y": Grant(subscribe=("#",))})
        assert answer_to(gateway, "stranger") is never
        client.connect()
        client.subscribe("closed/#", 1)
        # Whatever it finds when it is started again: it opens with grants that it kept, and with nothing else.
        kept = tmp_path / "state" / "state.json"
        good = kept.read_bytes()
        open_to_all = good.replace(b'"required":true', b'"required":false')
        assert open_to_all != good
        for found in (good[: len(good) // 2], open_to_all, None):
            gateway.kill()
            if found is None:
                kept.unlink()
            else:
                kept.write_bytes(found)
            gateway.start()
            assert answer_to(gateway, "ff-7.k3y") is answer_to(gateway, "stranger") is later
            assert not gateway.ask(lambda link: link.sessions()).sessions, (
                "a session of before is not let in either"
            )
        # What was kept for a client waits for it.
        publisher.publish("closed/topic", b"while closed", 1)
        publisher.wait()
        gateway.grant({"ff-7.k3y": Grant(subscribe=("#",))})
        client.connect()
        client.collect(30.0, 1)
        assert [message.payload for message in client.messages] == [b"while closed"]


WHOLE = b'{"author": "a", "version": 1, "orders": {"generation": 1}, "grants": {"required": true}}\n'


def test_a_state_that_the_version_before_stored_is_read_with_its_changes(tmp_path: Path) -> None:
    def flow(slot: int, priority_class: int) -> dict[str, Any]:
        terms = {"port": "radio", "flow_id": slot, "priority_class": priority_class, "drop_rate": 0.5}
        return {"key": f"s~{slot}", **terms}

    ports = {"radio": {"port": "radio", "bandwidth_bps": 1e6, "buffer_packets": 100, "classes": 8}}
    flows = {"s~0": flow(0, 2), "s~1": flow(1, 5)}
    whole = {"generation": 1, "ports": ports, "flows": flows, "slots": {"s": {"a": 0, "b": 1}}}
    change = {"generation": 2, "ports": None, "flows": {"s~1": flow(1, 6)}, "slots": {"t": {}, "s": None}}
    lines = [
        {"author": "me", "version": 1, "orders": whole, "grants": {"required": True, "by_base": {}}},
        {"author": "me", "version": 2, "base": 1, "orders": change},
    ]
    file = tmp_path / "state.json"
    file.write_bytes(encode_line(lines[0]))
    first = StoredState(tmp_path).read().orders
    assert first is not None
    assert first.topics == {"s": {"a": (2, 0.5), "b": (5, 0.5)}}
    assert list(first.flows) == ["s~0"]
    file.write_bytes(b"".join(map(encode_line, lines)))
    stored = StoredState(tmp_path)
    after = stored.read()
    assert (after.version, after.grants.required, stored.damaged) == (2, True, False)
    assert after.orders is not None
    assert after.orders.topics == {"t": {}}


@pytest.mark.parametrize(
    "found",
    [
        b"",
        b"\n",
        b"{}\n",
        b"\0" * 100,
        b'{"author": "a", "version": 1, "grants": ',
        b"[1]\n",
        b"{}",
        # Of another version: nothing in it may be taken for something else.
        b'{"author": "a", "version": 1, "grants": {"required": true, "grants": {"b.k": {}}}}\n',
        b'{"author": "a", "version": 1, "orders": {"generation": 1, "flows": {"s~0": ["radio", 0, 0, 0]}}}\n',
        WHOLE + b'{"author": "a", "version": 2, "base": 1, "orders_change": {"generation": 2}}\n',
    ],
)
def test_a_damaged_state_is_none_and_says_so(
    tmp_path: Path, found: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state.json").write_bytes(found)
    kept = StoredState(tmp_path)
    assert kept.read() == DesiredState()
    assert kept.damaged
    assert "state.json: cannot be used" in capsys.readouterr().err
    state = DesiredState("me", 1, Orders(4), Grants(True))
    kept.write(encode_line(shallow(state_message(None, state))), state, whole=False)
    assert StoredState(tmp_path).read() == state


def test_changes_are_written_behind_the_state_until_they_are_longer_than_it(tmp_path: Path) -> None:
    stored, state = StoredState(tmp_path), DesiredState("me", 1, Orders(1))
    stored.write(encode_line(shallow(state_message(None, state))), state, whole=True)
    file, longest = tmp_path / "state.json", 0
    for number in range(2, 12):
        topics = {f"subscriber {each}": {"x" * 100: (0, 0.0)} for each in range(2000)}
        after = DesiredState("me", number, Orders(number, topics={**topics, f"new {number}": {}}))
        line = encode_line(shallow(state_message(None, after)))
        stored.write(line, after, whole=False)
        assert StoredState(tmp_path).read() == after
        longest = max(longest, file.stat().st_size)
    assert 2 * len(line) < longest < 8 * len(line)


def test_grants_are_in_force_though_they_cannot_be_kept_and_are_not_confirmed_then(
    broker: Mosquitto, tmp_path: Path
) -> None:
    gateway = ManagedProcess(tmp_path, broker.url, access="required")
    both = {"a.k": Grant(subscribe=("#",)), "b.k": Grant(subscribe=("#",))}
    with ended(gateway):
        gateway.grant(both)
        kept = tmp_path / "state" / "state.json"
        kept.unlink()
        kept.mkdir()
        client = SnClient(gateway.port, "b.k").connect()
        with ended(client):
            with pytest.raises(ControlError, match=r"state\.json"):
                gateway.grant({"a.k": both["a.k"]})
            while not isinstance(client.receive(30.0), Disconnect):
                pass
        author, version = gateway.ask(lambda link: link.following())
        assert (author, version) == ("", 1), "a state without a number: nothing can be told as a change of it"
        kept.rmdir()
        gateway.grant({"a.k": both["a.k"]})
        assert gateway.ask(lambda link: link.following()) == ("tests", 3)


def marks(client: SnClient, count: int) -> list[tuple[str, int]]:
    """What comes, and the octet of its IP header that holds the DSCP."""
    found = []
    client.socket.settimeout(30.0)
    while len(found) < count:
        data, ancillary, _, _ = client.socket.recvmsg(2000, 100)
        (octet,) = [value[0] for level, kind, value in ancillary if (level, kind) == (0, socket.IP_TOS)]
        message = decode(data)
        found.append((type(message).__name__, octet))
        if isinstance(message, Register):
            client.send(RegAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
    return found


@pytest.mark.parametrize("dataplane", ["embedded", "none"])
def test_control_packets_are_marked_and_news_come_by_themselves(
    broker: Mosquitto, tmp_path: Path, dataplane: str
) -> None:
    gateway = ManagedProcess(tmp_path, broker.url, dataplane=dataplane)
    publisher = Publisher(broker.port, f"marks-{dataplane}")
    client = SnClient(gateway.port, "plain")
    control = Control(gateway.socket)
    with ended(client, publisher, control, gateway):
        client.socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        for step in range(2):
            # At first the client is unmanaged; with orders it has a flow without having been planned.
            client.send(Connect("plain", 60, clean_session=True))
            assert marks(client, 1) == [("ConnAck", 0xC0)]
            client.subscribe("marked/+", 0)
            for number in range(2):
                publisher.publish("marked/topic", b"%d" % number)
            # Queues elsewhere go by marks; the last class of eight has none.
            mark = 0xB8 if dataplane == "none" and not step else 0
            assert marks(client, 3) == [("Register", 0xC0), ("Publish", mark), ("Publish", mark)]
            flows = gateway.ask(lambda link: link.measure()).flows
            assert [flow.packets_out for flow in flows.values()] == (
                [2] if step and dataplane == "embedded" else []
            )
            if not step:
                control.orders(orders_for(1, {}))
        host, port = client.socket.getsockname()
        present = control.ask("sessions")["sessions"]
        assert [(one["client_id"], one["endpoint"]) for one in present] == [("plain", [host, port])]
        client.send(Disconnect())
        assert marks(client, 1) == [("Disconnect", 0xC0)]
        assert control.ask("sessions")["sessions"] == []
        while control.events[-1]["subscriptions"] == 0:
            control.events.append(control.line())
        assert [control.events[0][name] for name in ("generation", "subscriptions")] == [0, 0]
        assert {event["generation"] for event in control.events} == {0, 1}


def test_the_trace_has_the_scenarios_numbers_the_orders_flows_samples_and_decisions(
    broker: Mosquitto, tmp_path: Path
) -> None:
    scenario = table2(seed=1)
    save(scenario, tmp_path / "scenario.yaml")
    gateway = ManagedProcess(
        tmp_path / "run", broker.url, trace=str(tmp_path / "trace"), scenario=str(tmp_path / "scenario.yaml")
    )
    name = scenario.subscribers.name[2]
    rows = [row for row, owner in enumerate(scenario.subscriptions.subscriber.tolist()) if owner == 2][:3]
    topics = [scenario.topics.name[scenario.subscriptions.topic[row]] for row in rows]
    publisher = Publisher(broker.port, "trace")
    client = open_client(gateway.port, name)
    with ended(client, publisher, gateway):
        client.subscribe("#", 0)
        control = Control(gateway.socket)
        classes = {topic: (number + 1, 0.0) for number, topic in enumerate(topics)}
        control.orders(Orders(1, {scenario.ports.name[0]: SetPort(scenario.ports.name[0], 1e6, 100, 8)}))
        control.orders(Orders(2, {"radio": PORT}, flow_for(name, 10), {name: classes}))
        decision = {
            "decided_ns": 5,
            "kind": "plan",
            "subject": "all",
            "before": None,
            "after": "2",
            "reason": "why",
        }
        assert control.ask("decisions", rows=[decision])["ok"]
        assert not control.ask("decisions", rows=[decision | {"reason": None}])["ok"]
        assert control.ask("measured", from_ns=7, classes=[3, 1])["ok"]
        assert not control.ask("measured", from_ns=7, classes=[3, None])["ok"]
        assert not control.ask("measured", from_ns="now", classes=[])["ok"]
        for topic in topics * 5:
            publisher.publish(topic, b"x" * 10)
        client.collect(30.0, 15)
        assert len(client.messages) == 15
        control.end()
        gateway.end()
    assert "error" not in gateway.log()
    trace = Trace.open(tmp_path / "trace" / "run-0")
    assert trace.manifest.measured_from_ns == 7
    assert trace.manifest.extra["subscription_classes"] == [3, 1]
    deliveries = trace.table("deliveries").to_pydict()
    assert set(
        zip(deliveries["subscription_id"], deliveries["flow_id"], deliveries["priority_class"], strict=True)
    ) == {(row, 10, 1 + number) for number, row in enumerate(rows)}
    assert set(deliveries["subscriber_id"]) == {2}
    assert len(deliveries["outcome"]) == 15
    assert trace.table("decisions").to_pylist() == [decision]
    samples = trace.table("queue_samples").to_pydict()
    assert set(samples["queue"]) == set(range(8))
    assert len(scenario.ports) in samples["port_id"]
    assert max(samples["packets_out"]) == 5


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("nonsense", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"listen": "x"}', "broker: is missing"),
        ({"colour": 1}, "colour: there is no such field"),
        ({"listen": "here"}, "listen: must be HOST:PORT, as 127.0.0.1:10000, is 'here'"),
        ({"dataplane": "wires"}, "dataplane: Input should be 'embedded', 'reported', 'none' or 'plain'"),
        ({"seed": "one"}, "seed: Input should be a valid integer"),
        ({"scenario": "nowhere.yaml"}, "nowhere.yaml"),
        ({"control": "/nowhere/at/all"}, "control socket /nowhere/at/all"),
    ],
)
def test_a_wrong_configuration_is_one_clear_line(
    tmp_path: Path, config: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    if isinstance(config, dict):
        good = {
            "listen": "127.0.0.1:0",
            "broker": "mqtt://127.0.0.1:1",
            "state": str(tmp_path / "state"),
            "control": str(tmp_path / "control"),
        }
        config = json.dumps(good | config)
    path.write_text(config)
    assert main([str(path)]) in (1, 2)
    out, problem = capsys.readouterr()
    assert out == ""
    assert problem.startswith("error: ")
    assert problem.count("\n") == 1
    assert says in problem


def test_orders_that_cannot_be_followed_or_kept_change_nothing(broker: Mosquitto, tmp_path: Path) -> None:
    gateway = ManagedProcess(tmp_path, broker.url)
    control = Control(gateway.socket)
    with ended(control, gateway):
        control.orders(orders_for(1, {}))
        for wrong in (
            Orders(2, {}, {"s~0": SetFlow("s~0", "nowhere", 0, 0, 0.0)}),
            Orders(2, {"radio": SetPort("radio", 0.0, float("inf"), 8)}),
            Orders(2, {"radio": SetPort("radio", 1e6, 5, 99)}),
            {"generation": 2, "flows": {"s~0": ["radio", 0, 0, 0]}},
            "orders",
        ):
            answer = control.state(orders=wrong)
            assert not answer["ok"]
            assert answer["error"]
        kept = tmp_path / "state" / "state.json"
        before = kept.rename(kept.with_name("before"))
        kept.mkdir()
        everything = {"orders": {"generation": 3}, "grants": {"required": False}}
        assert "state.json" in control.state(**everything)["error"]
        kept.rmdir()
        before.rename(kept)
        assert control.ask("measure")["generation"] == 1
        # A change is kept behind the orders it changes; one that was not written to its end does not count.
        base = control.state(orders=orders_for(4, {"a": 1}))["version"]
        change = {"generation": 5, "ports": {}, "flows": {"s~1": None}, "topics": {"t": {"b": [2, 0.0]}}}
        assert not control.state(base=base - 1, orders=change)["ok"]
        assert not control.state(orders=change)["ok"]
        assert not control.state(base=base, orders=change)["ok"]
        del change["ports"]
        assert control.state(base=base, orders=change)["ok"]
        with kept.open("ab") as file:
            file.write(b'{"author": "test", "orders": {"generation": 6, "po')
        gateway.kill()
        gateway.start()
        assert gateway.ready["generation"] == 5
        # What comes next is not written behind half a line.
        gateway.grant({"a": Grant()}, required=False)
        gateway.kill()
        gateway.start()
        assert gateway.ready["generation"] == 5
        assert gateway.ask(lambda link: link.following()) == ("tests", 1)
        kept.write_text("torn")
        gateway.kill()
        gateway.start()
        assert gateway.ready["generation"] == 0
        assert "state.json: cannot be used" in gateway.log()


def test_what_matters_most_passes_an_overloaded_port_unharmed(broker: Mosquitto, tmp_path: Path) -> None:
    # 149 octets on the wire: the port carries 335 a second, and 600 come.
    port = SetPort("radio", 400e3, 200, 8)
    gateway = ManagedProcess(tmp_path, broker.url, seed=1)
    publisher = Publisher(broker.port, "overload")
    client = open_client(gateway.port)
    control = Control(gateway.socket)
    with ended(client, publisher, control, gateway):
        for topic in TOPICS[:4]:
            client.subscribe(topic)
        control.orders(orders_for(1, {topic: number for number, topic in enumerate(TOPICS[:4])}, port=port))
        got: Counter[bytes] = Counter()
        begin = time.monotonic()
        for number in range(450):
            for topic in TOPICS[:4]:
                publisher.publish(topic, f"{topic} {number} ".encode().ljust(100, b"x"))
            gather(client, got, begin + number / 150 - time.monotonic(), 1 << 30)
        gather(client, got, 1.0, 1 << 30)
        counts = Counter(payload.split(b" ")[0].decode() for payload in got)
        arrived = [counts[topic] for topic in TOPICS[:4]]
        measured = gateway.ask(lambda link: link.measure())
        (flow,) = measured.flows.values()
        queues = measured.ports["radio"].queues[:4]
        assert [queue.packets_in for queue in queues] == [450] * 4
        assert [queue.packets_out for queue in queues] == arrived
        assert arrived[:2] == [450, 450]
        assert arrived[3] < 225
        assert (flow.packets_in, flow.packets_out) == (1800, sum(arrived))
        assert flow.dropped_by_buffer == 1800 - sum(arrived)


def test_subscriptions_of_a_gateway_whose_state_is_lost_bring_no_second_copies(
    broker: Mosquitto, tmp_path: Path
) -> None:
    first = ManagedProcess(tmp_path / "first", broker.url)
    client = SnClient(first.port, "early").connect()
    with ended(client, first):
        client.subscribe("lost/#", 1)
        first.kill()
    second = ManagedProcess(tmp_path / "second", broker.url)
    publisher = Publisher(broker.port, "lost")
    client = SnClient(second.port, "late").connect()
    with ended(client, publisher, second):
        client.subscribe("lost/topic", 1)
        for number in range(3):
            publisher.publish("lost/topic", b"%d" % number, 1)
        client.collect(30.0, 3)
        client.collect(0.5, 4)
        assert sorted(message.payload for message in client.messages) == [b"0", b"1", b"2"]
