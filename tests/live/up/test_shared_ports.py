"""`triage up CAMPUS --dataplane linux`: several gateways of one machine, and the kernel's queues that they share."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.live.machine import TRIAGE, machine, until
from tests.live.up.test_existing_interface import CREW, GATEWAY, wire

from triagemq.live.up.shared_ports import SharedPorts
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

NORTH, SOUTH = FlowKey("10.0.0.1", 1), FlowKey("10.0.0.1", 2)

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


def test_a_port_is_there_as_long_as_a_gateway_wants_it_and_flows_are_those_of_their_gateway() -> None:
    told = Told()
    shared = SharedPorts(told, ["north", "south"])
    narrow, wide = SetPort("radio", 1e6, 100, 2), SetPort("radio", 2e6, 100, 2)
    flow = SetFlow(NORTH, "radio", 1, 0, 0.0)
    shared.part("north").apply([narrow, flow])
    shared.part("south").apply([narrow])
    assert told.take() == [narrow, flow]
    shared.part("south").apply([wide, RemoveFlow(NORTH)])
    assert told.take() == [wide]
    shared.part("south").apply([RemovePort("radio")])
    assert told.take() == [narrow]
    shared.part("north").apply([RemoveFlow(NORTH), RemovePort("radio")])
    assert told.take() == [RemoveFlow(NORTH), RemovePort("radio")]


def counted(north: int, south: int, waiting: int, drops: int = 0) -> Counters:
    """Packets of 100 bytes that have left a queue for a client of each; those of the south wait, and are dropped."""
    left = north + south
    queue = QueueCounters(
        100 * (left + waiting), left + waiting + drops, 100 * left, left, drops, 100 * waiting, waiting
    )
    return Counters(
        ports={"radio": PortCounters((queue,), QueueCounters(packets_out=3))},
        flows={
            NORTH: FlowCounters(1, north, packets_out=north),
            SOUTH: FlowCounters(2, south + waiting + drops, dropped_by_buffer=drops, packets_out=south),
        },
    )


def test_what_queues_have_counted_is_shared_out_and_none_of_it_twice() -> None:
    shared = SharedPorts(Told(), ["north", "south"])
    port = SetPort("radio", 1e6, 100, 1)
    shared.part("north").apply([port, SetFlow(NORTH, "radio", 1, 0, 0.0)])
    shared.part("south").apply([port, SetFlow(SOUTH, "radio", 2, 0, 0.0)])
    shared.shared_out(counted(10, 30, 5))
    found = shared.shared_out(counted(20, 30, 7, drops=2))
    north, south = (found[name].ports["radio"].queues[0] for name in ("north", "south"))
    assert (north.packets_out, north.bytes_out, north.backlog_packets, north.drops) == (20, 2000, 0, 0)
    assert (south.packets_out, south.bytes_out, south.backlog_packets, south.drops) == (30, 3000, 7, 2)
    assert south.packets_in == south.packets_out + south.drops + south.backlog_packets
    assert [list(found[name].flows) for name in ("north", "south")] == [[NORTH], [SOUTH]]
    assert [found[name].ports["radio"].control.packets_out for name in ("north", "south")] == [3, 0]
    # One that has gone is told to whom it belonged, once.
    shared.part("south").apply([RemoveFlow(SOUTH)])
    last = Counters(
        ports=counted(20, 40, 0, drops=2).ports,
        flows={NORTH: FlowCounters(1, 20, packets_out=20)},
        gone=((SOUTH, FlowCounters(2, 42, dropped_by_buffer=2, packets_out=40)),),
    )
    found = shared.shared_out(last)
    assert found["south"].gone == last.gone
    assert not found["north"].gone
    assert found["south"].ports["radio"].queues[0].packets_out == 40


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
