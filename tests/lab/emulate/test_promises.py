"""Promised messages with real packets: from an access link through limiter and levels to whom they are promised."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.live.machine import TRIAGE, machine

from triagemq.errors import NetworkError
from triagemq.lab.box import Box, lay_out, new_run
from triagemq.lab.box.journal import Journal
from triagemq.lab.emulate.copying import (
    CopyingPlane,
    idle_instructions,
    require_buckets,
    with_idle_port,
)
from triagemq.lab.emulate.promised import (
    IDLE,
    PromisedClients,
    PromisedPublications,
    PromisedReceipts,
    RealMessages,
)
from triagemq.lab.emulate.promises import (
    ActiveInterval,
    MeasuredPromise,
    PromisedRun,
    cut_packets,
    promised_run,
)
from triagemq.network.linux import Interface, LinuxDataPlane
from triagemq.network.linux.netlink import in_namespace
from triagemq.plan.dataplane import FlowKey, SetFlow, SetLimiter, SetPort
from triagemq.scenario import Scenario, loads
from triagemq.scenario.conditions import Conditions, situations
from triagemq.trace import Trace

ROOT = pytest.mark.needs_root("it makes namespaces of the network")

WARD = """
name: Ward
overhead_bytes: 66
mtu_bytes: 1500
fragmentation: true
planning: {priority_classes: 4}
brokers: {hall: {}}
switches: {bed: {}, desk: {}}
ports:
  over: {switch: bed, bandwidth_bps: 10 Mbit/s, to: desk}
  monitor: {switch: desk, bandwidth_bps: 10 Mbit/s}
  other: {switch: desk, bandwidth_bps: 10 Mbit/s}
publishers:
  ecg:
    access: bed
    access_bps: 10 Mbit/s
    publishes: {pulse: {min_separation_seconds: 0.02, max_size_bytes: 4000, size_bytes: 4000, sizes: constant}}
subscribers:
  nurse: {port: monitor, subscribes: {pulse: {max_latency_seconds: 0.03, guaranteed: true}}}
  guest: {port: other, subscribes: {pulse: log:1}}
"""
ADDRESS = "239.192.0.0:17000"
KEY = FlowKey("239.192.0.0", 17000)


def test_real_messages_take_of_a_wire_what_those_of_the_scenario_take() -> None:
    messages = RealMessages(1500, 66.0)
    for size in (24, 100, 1434, 1435, 4000, 192_192):
        packets = messages.packets(size)
        real = messages.payload_bytes(size)
        assert real + 78 * packets == size + 66 * packets
        assert -(-real // (1500 - 78)) <= packets
    with pytest.raises(NetworkError, match="state an overhead_bytes of 78 or more"):
        messages.require(23, "pulse")
    # A publisher of the product sends no message that is longer than declared.
    assert RealMessages(1500, 102.0).payload_bytes(200) == 200


def test_open_vswitch_has_no_windows() -> None:
    require_buckets(loads(WARD.replace("bed: {}", "bed: {model: open-vswitch}")), ["ecg"])
    with pytest.raises(NetworkError, match="limiters of switch 'bed' are windows"):
        require_buckets(loads(WARD), ["ecg"])


class Clients:
    """The ward without its exchange: bridges, queues, a publisher and a subscriber of what is promised.

    The wire to the switch may be slower than everybody knows.
    """

    def __init__(self, folder: Path, wire: str = "10 Mbit/s") -> None:
        self.ward: Scenario = loads(WARD)
        self.folder = folder
        real = loads(WARD.replace("access_bps: 10 Mbit/s", f"access_bps: {wire}"))
        self.layout = lay_out(with_idle_port(real, ["ecg"]), new_run(), plugged=["ecg", IDLE])
        names = self.ward.ports.name
        row = self.ward.subscriptions.guaranteed.tolist().index(1)
        path = (names.index("over"), names.index("monitor"))
        self.promise = MeasuredPromise(0, row, ADDRESS, 0, 0.02, path, (0, 0))

    async def run(self, *limiters: SetLimiter, babbling: bool = False) -> PromisedRun:
        """Until some messages have come."""
        access = {name: way.interface for name, way in self.layout.access.items()}
        hosts = {name: host.interface for name, host in self.layout.subscribers.items()}
        babblers = ["ecg"] if babbling else []
        sent, got = self.folder / "sent", self.folder / "got"
        course = situations(self.ward, Conditions())
        publishers = PromisedPublications(
            self.ward,
            course,
            PromisedClients(access, str(sent), babbling=babblers),
            {name: one.namespace for name, one in self.layout.access.items()},
        )
        subscribers = PromisedReceipts(
            PromisedClients(hosts, str(got)),
            {name: one.namespace for name, one in self.layout.subscribers.items()},
        )
        with Box(self.layout, journal=Journal(self.folder / "journal")) as box:
            ports = {one.name: Interface(one.interface, namespace=one.namespace) for one in self.layout.ports}
            plane = LinuxDataPlane(ports)
            copying = CopyingPlane(plane, box)
            copying.apply([*idle_instructions(1e7), *(SetPort(name, 1e7, 1000, 7) for name in ports)])
            copying.apply([SetFlow(KEY, name, 1, 0, 0.0) for name in ("over", "monitor")])
            copying.apply(limiters)
            await subscribers.listen_to_idle_port()
            await subscribers.listen(self.ward, 0, self.promise.subscription, ADDRESS)
            await publishers.promise([(0, ADDRESS)])
            await self._until_groups_are_known(plane)
            ended = asyncio.Event()
            sending = asyncio.create_task(publishers.run(time.time_ns(), ended))
            before = plane.counters().flows[KEY].packets_out
            while plane.counters().flows[KEY].packets_out < before + 60:
                await asyncio.sleep(0.01)
            ended.set()
            await sending
            counters = plane.counters()
            while any(flow.backlog_packets for flow in counters.flows.values()):
                await asyncio.sleep(0.01)
                counters = plane.counters()
            assert all(not queue.packets_in for queue in counters.ports["other"].queues)
            await publishers.close()
            await subscribers.close()
            plane.close()
        cut = cut_packets([(1, counters)], self.folder / "no meters")
        return promised_run(self.ward, [ActiveInterval(self.promise)], [sent], got, cut)

    async def _until_groups_are_known(self, plane: LinuxDataPlane) -> None:
        """A bridge goes by its groups a moment after it was made: until then nothing comes by both ports."""
        access = self.layout.access["ecg"]
        with in_namespace(
            access.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ) as knocking:
            knocking.setsockopt(
                socket.IPPROTO_IP,
                socket.IP_MULTICAST_IF,
                struct.pack("@4s4si", bytes(4), bytes(4), access.index),
            )
            while plane.counters().flows[KEY].packets_out < 2:
                knocking.sendto(b"?", (KEY.address, KEY.udp_port))
                await asyncio.sleep(0.02)


def test_without_promises_there_is_nothing_to_tell(tmp_path: Path) -> None:
    run = promised_run(loads(WARD), [], [tmp_path / "sent"], tmp_path / "got", {})
    assert (len(run.results), run.decisions, run.copies) == (0, (), {})
    assert run.as_json()["idle_port"]["count"] == 0
    assert run.as_json()["late_messages"] == []


@ROOT
def test_promised_messages_come_by_their_ports_and_no_others(tmp_path: Path) -> None:
    run = asyncio.run(Clients(tmp_path).run())
    (messages,), (delivered,) = run.results.messages, run.results.delivered
    assert messages == delivered > 5
    assert run.results.limited[0] == run.results.lost[0] == 0
    # Three packets of which two are full, over three links of 10 Mbit/s: no message is quicker than that, but for what
    # links may be ahead to make up for timers that ring late: 50 us each, and the first by a bucket of 1600 octets.
    ahead = 3 * 50e-6 + (1600 - 1500) * 8 / 1e7
    assert run.results.worst_latency_seconds[0] > (4000 + 3 * 66 + 2 * 1198) * 8 / 1e7 - ahead
    assert run.decisions == ()
    assert run.as_json()["idle_port"]["count"] > 0
    assert run.as_json()["host_delay"]["subscribers"]["count"] == delivered


@ROOT
def test_who_sees_its_packets_leave_late_keeps_its_distance_and_is_not_cut(tmp_path: Path) -> None:
    # A message takes 16.8 ms of this wire, and one may be sent every 20 ms of those that take 3.4.
    limiter = SetLimiter(KEY, 4198.0, 4198.0 / 0.02, "over", jitter_seconds=0.001)
    run = asyncio.run(Clients(tmp_path, wire="2 Mbit/s").run(limiter))
    (messages,), (delivered,) = run.results.messages, run.results.delivered
    assert messages == delivered > 5
    assert run.results.limited[0] == 0
    assert np.diff(run.sent["published_ns"]).min() > 20e6


@ROOT
def test_who_babbles_is_cut_and_that_is_a_decision(tmp_path: Path) -> None:
    limiter = SetLimiter(KEY, 4198.0, 4198.0 / 0.02, "over")
    run = asyncio.run(Clients(tmp_path).run(limiter, babbling=True))
    assert run.results.limited[0] > 0
    assert run.results.lost[0] == 0
    assert [each.kind for each in run.decisions] == ["limited"]
    assert run.decisions[0].subject == "ecg on pulse"


@ROOT
@pytest.mark.slow
@pytest.mark.parametrize("dataplane", ["linux", "openflow"])
def test_emulate_keeps_promises_beside_other_traffic(dataplane: str, tmp_path: Path) -> None:
    model = {"linux": "linux-htb", "openflow": "open-vswitch"}[dataplane]
    switches = f"switches: {{bed: {{model: {model}}}, desk: {{model: {model}}}}}"
    (tmp_path / "ward.yaml").write_text(WARD.replace("switches: {bed: {}, desk: {}}", switches))
    with machine() as alone:
        done = alone.run(
            *(TRIAGE, "emulate", "ward.yaml", "--dataplane", dataplane, "--for", "3", "--json"),
            *("--trace", "trace"),
            folder=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    (promise,) = figures["promises"]
    assert set(promise) == set(figures["simulated"]["promises"][0])
    assert promise["delivered"] > 50
    assert promise["messages"] == promise["delivered"]
    assert promise["limited"] == promise["lost"] == promise["late"] == 0
    assert figures["decisions"] == []
    assert figures["idle_port"]["p99_9_seconds"] > 0
    trace = Trace.open(tmp_path / "trace")
    copies = trace.table("deliveries").to_pandas()
    # The guest gets by the broker what the nurse gets directly: the same events, each copy once.
    assert not copies.duplicated(["publication_id", "subscription_id"]).any()
    by_event = copies.groupby("publication_id").size()
    assert (by_event == 2).mean() > 0.9
