"""The direct path of guaranteed topics beside the path through a broker, in the same run: what is lost, how late is it?

    multicast, one host      two processes of one host
    broker, one host         the same two, through our gateway and Mosquitto on loopback
    multicast, 2 switches    publisher and subscriber behind two Open vSwitch switches, whose rules replicate the group
    broker, 2 switches       the same two, with broker and gateway on a host behind the first switch

Latency runs from `publish` to the subscriber's program. Hosts are network namespaces, one clock serves all. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from measuring import finish, machine, options
from triagemq.broker import BrokerAddress
from triagemq.broker.process import find_mosquitto
from triagemq.client import Publisher, Subscriber
from triagemq.client.direct import BlockingDirectPublisher, BlockingDirectSubscriber, NetworkSettings
from triagemq.gateway import Gateway, GatewaySettings
from triagemq.lab.box import VirtualSwitches
from triagemq.lab.box.interfaces import switch_offloads_off
from triagemq.lab.box.journal import Journal
from triagemq.lab.box.namespaces import create_namespace, remove_namespace
from triagemq.network.linux.netlink import in_namespace
from triagemq.programs import search_path

TOPIC, GROUP = "ward/3/pulse", "239.1.2.3:7400"
PAYLOAD_BYTES = 100
MESSAGES, QUICK_MESSAGES, PER_SECOND = 10_000, 1_000, 1_000.0
SECONDS_WITHOUT_A_MESSAGE = 5.0
HOSTS = {"pub": "10.77.0.1", "sub": "10.77.0.2", "hall": "10.77.0.3"}
BROKER_PORT, GATEWAY_PORT = 1883, 10000


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", default="{}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        children: dict[str, Callable[..., None]] = {
            "publish": publish,
            "subscribe": subscribe,
            "publish_brokered": publish_brokered,
            "subscribe_brokered": subscribe_brokered,
            "serve": serve,
        }
        children[arguments.child](**json.loads(arguments.arguments))
        return
    found = measure(QUICK_MESSAGES if arguments.quick else MESSAGES)
    finish(found, described(found), as_json=arguments.json)
    if any(row["lost"] for row in found["paths"].values()):
        sys.exit("messages were lost")


def measure(messages: int) -> dict[str, Any]:
    paths = {}
    with tempfile.TemporaryDirectory() as name, network(Path(name)) as namespaces:
        one_host, pub, sub, hall = (namespaces[host] for host in ("one", "pub", "sub", "hall"))
        paths["multicast, one host"] = run(one_host, one_host, messages, direct=GROUP, interface="lo")
        with broker(Path(name), one_host, "127.0.0.1"):
            paths["broker, one host"] = run(one_host, one_host, messages, gateway="127.0.0.1")
        paths["multicast, 2 switches"] = run(pub, sub, messages, direct=GROUP, interface="eth0")
        with broker(Path(name), hall, HOSTS["hall"]):
            paths["broker, 2 switches"] = run(pub, sub, messages, gateway=HOSTS["hall"])
    return {
        "machine": machine("triagemq"),
        "messages": messages,
        "per_second": PER_SECOND,
        "payload_bytes": PAYLOAD_BYTES,
        "paths": paths,
    }


def run(
    publisher: str,
    subscriber: str,
    messages: int,
    *,
    direct: str | None = None,
    interface: str | None = None,
    gateway: str | None = None,
) -> dict[str, Any]:
    """Publish at an even pace; what came, and how late."""
    kind = "" if gateway is None else "_brokered"
    where: dict[str, Any] = (
        {"direct": direct, "interface": interface}
        if gateway is None
        else {"gateway": f"{gateway}:{GATEWAY_PORT}"}
    )
    with (
        child(f"subscribe{kind}", subscriber, messages=messages, **where) as receiving,
        child(f"publish{kind}", publisher, messages=messages, **where) as sending,
    ):
        sent, received = line(sending), line(receiving)
    latencies = received.pop("latencies_ns")
    p50, p99, worst = np.percentile(np.array(latencies) / 1000, [50, 99, 100]) if latencies else (0, 0, 0)
    return {
        "sent": sent.pop("sent"),
        "received": len(latencies),
        "lost": messages - len(latencies),
        "p50_microseconds": round(float(p50), 1),
        "p99_microseconds": round(float(p99), 1),
        "worst_microseconds": round(float(worst), 1),
        **sent,
        **received,
    }


# The network: two switches, a publisher and a hall of servers behind the first, a subscriber behind the second.


@contextlib.contextmanager
def network(directory: Path) -> Iterator[dict[str, str]]:
    unique, journal = f"dp{secrets.token_hex(3)}", Journal(directory / "journal")
    with contextlib.ExitStack() as undo:

        def namespace(name: str) -> str:
            made = f"{unique}-{name}"
            note = journal.note("namespace", name=made)
            create_namespace(made)
            undo.callback(journal.done, note)
            undo.callback(remove_namespace, made)
            ip(made, "link set lo up")
            return made

        switches = namespace("switches")
        found = {name: namespace(name) for name in ("one", *HOSTS)}
        for name, address in HOSTS.items():
            ip(
                switches,
                f"link add p-{name} type veth peer name eth0 netns {found[name]}",
                f"link set p-{name} up",
            )
            ip(found[name], f"addr add {address}/24 dev eth0", "link set eth0 up")
            in_namespace(found[name], lambda: switch_offloads_off("eth0"))
            in_namespace(switches, lambda port=f"p-{name}": switch_offloads_off(port))  # type: ignore[misc]
        ip(
            switches,
            "link add link-1 type veth peer name link-2",
            "link set link-1 up",
            "link set link-2 up",
        )
        for port in ("link-1", "link-2"):
            in_namespace(switches, lambda port=port: switch_offloads_off(port))  # type: ignore[misc]
        running = undo.enter_context(VirtualSwitches(journal, namespace=switches))
        running.add_switch("s1", 1, ["p-pub", "p-hall", "link-1"])
        running.add_switch("s2", 2, ["p-sub", "link-2"])
        group = GROUP.partition(":")[0]
        for switch, outputs in (("s1", [3]), ("s2", [1])):
            buckets = ",".join(f"bucket=actions=output:{port}" for port in outputs)
            openflow(running, switch, "add-group", f"group_id=1,type=all,{buckets}")
            openflow(running, switch, "add-flow", f"priority=10,udp,nw_dst={group},actions=group:1")
            openflow(running, switch, "add-flow", "priority=1,actions=NORMAL")
        yield found


def ip(namespace: str, *lines: str) -> None:
    text = "\n".join(lines) + "\n"
    subprocess.run(["ip", "-n", namespace, "-batch", "-"], input=text, text=True, check=True)


def openflow(switches: VirtualSwitches, switch: str, order: str, rule: str) -> None:
    command = ["ovs-ofctl", "-O", "OpenFlow13", order, switches.management(switch), rule]
    subprocess.run(command, check=True, env=os.environ | {"PATH": search_path()})


# Processes.


@contextlib.contextmanager
def child(kind: str, namespace: str, **arguments: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--child", kind, "--arguments", json.dumps(arguments)]
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, *command], stdout=subprocess.PIPE, text=True
    )
    try:
        if line(process) != {"ready": True}:
            sys.exit("a process of the benchmark has failed")
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate()


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        sys.exit("a process of the benchmark has failed")
    found: dict[str, Any] = json.loads(text)
    return found


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


@contextlib.contextmanager
def broker(directory: Path, namespace: str, address: str) -> Iterator[None]:
    """Mosquitto, and our gateway beside it."""
    command = find_mosquitto()
    if command is None:
        sys.exit("this benchmark needs Mosquitto: apt install mosquitto")
    configuration = directory / "mosquitto.conf"
    configuration.write_text(
        f"listener {BROKER_PORT} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
        "set_tcp_nodelay true\nlog_type none\n"
    )
    process = subprocess.Popen(["ip", "netns", "exec", namespace, command, "-c", str(configuration)])
    try:
        with child("serve", namespace, address=address):
            yield
    finally:
        process.terminate()
        process.wait()


# What children do.


def serve(address: str) -> None:
    asyncio.run(_serve(address))


async def _serve(address: str) -> None:
    gateway = Gateway(GatewaySettings(), BrokerAddress("127.0.0.1", BROKER_PORT), (address, GATEWAY_PORT))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await gateway.start()
    if not await gateway.wait_for_broker(20.0):
        sys.exit("the gateway has not reached the broker")
    say(ready=True)
    await ended.wait()
    await gateway.close()


def publish(messages: int, direct: str, interface: str) -> None:
    network = NetworkSettings(interface=interface)
    with BlockingDirectPublisher(TOPIC, direct, max_size_bytes=PAYLOAD_BYTES, network=network) as publisher:
        say(ready=True)
        started = time.monotonic()
        for number in range(messages):
            time.sleep(max(0.0, started + number / PER_SECOND - time.monotonic()))
            publisher.publish(os.urandom(PAYLOAD_BYTES))
        say(sent=publisher.counters.published, publisher_host_delay=publisher.host_delay.as_json())


def subscribe(messages: int, direct: str, interface: str) -> None:
    network = NetworkSettings(interface=interface)
    latencies: list[int] = []
    with BlockingDirectSubscriber(TOPIC, direct, network=network) as subscriber:
        say(ready=True)
        patience = 60.0
        while len(latencies) < messages and (event := subscriber.next(patience)) is not None:
            latencies.append(event.received_ns - event.published_ns)
            patience = SECONDS_WITHOUT_A_MESSAGE
        delays = {"multicast": subscriber.host_delay.as_json()}
        say(latencies_ns=latencies, missing=subscriber.counters.missing, subscriber_host_delay=delays)


def publish_brokered(messages: int, gateway: str) -> None:
    asyncio.run(_publish_brokered(messages, gateway))


async def _publish_brokered(messages: int, gateway: str) -> None:
    async with Publisher(gateway=gateway, stamp=True) as publisher:
        await publisher.register([TOPIC])
        say(ready=True)
        loop = asyncio.get_running_loop()
        started = loop.time()
        for number in range(messages):
            await asyncio.sleep(max(0.0, started + number / PER_SECOND - loop.time()))
            await publisher.publish(TOPIC, os.urandom(PAYLOAD_BYTES))
        say(sent=publisher.counters.published)


def subscribe_brokered(messages: int, gateway: str) -> None:
    asyncio.run(_subscribe_brokered(messages, gateway))


async def _subscribe_brokered(messages: int, gateway: str) -> None:
    latencies: list[int] = []
    async with Subscriber(gateway=gateway) as subscriber:
        await subscriber.subscribe(TOPIC)
        say(ready=True)
        patience = 60.0
        while len(latencies) < messages and (event := await subscriber.next(patience)) is not None:
            if event.published_ns is not None:
                latencies.append(event.received_ns - event.published_ns)
            patience = SECONDS_WITHOUT_A_MESSAGE
        say(latencies_ns=latencies)


def described(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['messages']:,} messages of {found['payload_bytes']} bytes, {found['per_second']:g} a second",
        f"{'microseconds':24} {'lost':>6} {'p50':>9} {'p99':>9} {'worst':>9}",
    ]
    for name, row in found["paths"].items():
        figures = (row[f"{which}_microseconds"] for which in ("p50", "p99", "worst"))
        lines.append(f"{name:24} {row['lost']:6,} " + " ".join(f"{figure:9,.0f}" for figure in figures))
    for name, row in found["paths"].items():
        if "publisher_host_delay" in row:
            delays = {"publisher": row["publisher_host_delay"]} | row["subscriber_host_delay"]
            lines += [
                f"host delay, {name}, {who}: p50 {1e6 * delay['p50_seconds']:.0f}, "
                f"p99.9 {1e6 * delay['p99_9_seconds']:.0f}"
                for who, delay in delays.items()
            ]
    return lines


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("this benchmark makes network namespaces: run it as root")
    main()
