"""`triage up CAMPUS --dataplane linux`: several gateways of one machine, and the kernel's queues that they share."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.live.machine import TRIAGE, machine, until
from tests.live.up.test_existing_interface import CREW, GATEWAY, wire

from triagemq.live.up.kernel_ports import SharedPorts
from triagemq.plan import (
    Counters,
    FlowCounters,
    FlowKey,
    Instruction,
    PortCounters,
    QueueCounters,
    RemoveFlow,
    RemovePort,
    SetFlow,
    SetPort,
)

TOPIC = FlowKey("239.1.2.3", 5000)

CAMPUS = """
name: two brokers behind one radio
brokers: {north: {}, south: {}}
broker_links: [{between: [north, south]}]
switches: {core: {}}
ports: {radio: {switch: core, bandwidth_bps: 320000}}
publishers: {sensor: {broker: north, publishes: {smoke: {rate_per_second: 10, size_bytes: 50}}}}
subscribers: {crew-1: {broker: south, port: radio, subscribes: {smoke: {utility: "log:10"}}}}
"""


class Told:
    """Remembers what a plane was told."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []

    def apply(self, instructions: Sequence[Instruction]) -> None:
        self.instructions += instructions

    def take(self) -> list[Instruction]:
        taken, self.instructions = self.instructions, []
        return taken


def test_a_port_is_there_as_long_as_a_gateway_wants_it() -> None:
    told = Told()
    shared = SharedPorts(told, ["north", "south"])
    narrow, wide = SetPort("radio", 1e6, 100, 2), SetPort("radio", 2e6, 100, 2)
    promised = SetFlow(TOPIC, "radio", 1, 0, 0.0)
    shared.part("north").apply([narrow, promised])
    shared.part("south").apply([narrow])
    assert told.take() == [narrow, promised]
    shared.part("south").apply([wide])
    assert told.take() == [wide]
    shared.part("south").apply([RemovePort("radio")])
    assert told.take() == [narrow]
    shared.part("north").apply([RemoveFlow(TOPIC), RemovePort("radio")])
    assert told.take() == [RemoveFlow(TOPIC), RemovePort("radio")]


def counted(left: int, waiting: int, drops: int = 0) -> Counters:
    """Packets of 100 bytes that have left a queue, that wait there and were dropped."""
    queue = QueueCounters(
        100 * (left + waiting), left + waiting + drops, 100 * left, left, drops, 100 * waiting, waiting
    )
    return Counters(
        ports={"radio": PortCounters((queue,), QueueCounters(packets_out=3))},
        flows={TOPIC: FlowCounters(1, 5, packets_out=5)},
    )


def test_what_queues_have_counted_is_shared_out_and_none_of_it_twice() -> None:
    shared = SharedPorts(Told(), ["north", "south"])

    def shares(now: Counters, north: int, south: int) -> list[QueueCounters]:
        found = shared.shared_out(now, {"north": {("radio", 0): north}, "south": {("radio", 0): south}})
        assert [list(found[name].flows) for name in ("north", "south")] == [[TOPIC], []]
        controls = [found[name].ports["radio"].control.packets_out for name in ("north", "south")]
        assert controls == [3, 0]
        return [found[name].ports["radio"].queues[0] for name in ("north", "south")]

    north, south = shares(counted(30, 15), north=15, south=30)
    assert (north.packets_out, north.bytes_out, north.backlog_packets) == (10, 1000, 5)
    assert (south.packets_out, south.bytes_out, south.backlog_packets) == (20, 2000, 10)
    # Five of the north and ten of the south are under way, and fifteen more of the south.
    north, south = shares(counted(42, 12, drops=6), north=15, south=45)
    assert (north.packets_out, south.packets_out, north.drops, south.drops) == (12, 30, 1, 5)
    for each in (north, south):
        assert each.packets_in == each.packets_out + each.drops + each.backlog_packets
    north, south = shares(counted(54, 0, drops=6), north=15, south=45)
    assert north.packets_out + south.packets_out == 54
    assert north.backlog_packets == south.backlog_packets == 0


@pytest.mark.slow
@pytest.mark.needs_root("it makes namespaces of the network")
def test_a_subscriber_moves_between_gateways_behind_one_queue_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "campus.yaml").write_text(CAMPUS)
    rest = f"http://{GATEWAY}:8080"
    with machine() as alone:
        wire(alone, tmp_path)
        before = alone.seen()
        running = alone.start(
            *(TRIAGE, "up", "campus.yaml", "--dataplane", "linux", "--interface", "radio=eth1"),
            *("--gateway", f"{GATEWAY}:10000", "--rest", f"{GATEWAY}:8080", "--insecure"),
            *("--state", "state", "--json"),
            folder=tmp_path,
        )
        running.ready()

        def gateways() -> dict[str, dict[str, object]]:
            done = alone.run("curl", "-s", f"{rest}/v1/gateways", folder=tmp_path)
            return {each["name"]: each for each in json.loads(done.stdout or "[]")}

        until(lambda: gateways().keys() == {"north", "south"})
        coordinator = ("--coordinator", rest, "--timeout", "60")
        subscriber = alone.start(
            *(
                *CREW,
                TRIAGE,
                "sub",
                "-t",
                "smoke",
                "-u",
                "log:10",
                "--name",
                "crew-1",
                *coordinator,
                "-n",
                "150",
            ),
            folder=tmp_path,
        )
        publisher = alone.start(
            *(TRIAGE, "pub", "-t", "smoke", "--name", "sensor", "-r", "10", "-n", "600", *coordinator),
            folder=tmp_path,
        )
        until(lambda: (gateways()["south"]["uplink_bps"] or 0) > 0)  # type: ignore[operator]
        moved = alone.run(
            *(
                "curl",
                "-s",
                "-X",
                "POST",
                f"{rest}/v1/gateways/north/clients",
                "-H",
                "Content-Type: application/json",
            ),
            *("-d", '{"subscribers": ["crew-1"]}'),
            folder=tmp_path,
        )
        assert json.loads(moved.stdout) == {"moved": 1}
        until(lambda: (gateways()["north"]["uplink_bps"] or 0) > 0)  # type: ignore[operator]
        until(lambda: gateways()["south"]["uplink_bps"] == 0)
        received = subscriber.finish()
        assert received.returncode == 0, received.stderr
        publisher.kill()
        running.signal(signal.SIGINT)
        done = running.finish()
        assert done.returncode == 0, done.stderr
        (port,) = json.loads(done.stdout)["ports"]
        assert sum(row["packets_out"] for row in port["classes"]) >= 150
        assert alone.seen() == before
