"""How fast the gateway is: full protocol, a real Mosquitto, 100-byte payloads, beside a plain Mosquitto fan-out.

Broker, gateway, publisher and subscribers are processes of their own on loopback. Rates are those at the subscribers;
CPU is that of the gateway (or of Mosquitto) alone, for each delivery. What DTLS adds to a delivery, and what a
handshake takes of the gateway's CPU, full and resumed, is measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gateway_load import PAYLOAD_BYTES, MqttSink, Publisher, UdpSink, free_port, shake_hands
from measuring import finish, machine, options
from triagemq.broker.process import find_mosquitto
from triagemq.certificates import own_certificate
from triagemq.dtls import ClientSecurity
from triagemq.mqttsn import Connect, Disconnect, encode

SUBSCRIBERS = 50
PORT_BANDWIDTH_BPS = 1e9


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", default="{}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        children: dict[str, Callable[..., None]] = {"serve": serve, "udp": udp_sink, "mqtt": mqtt_sink}
        children[arguments.child](**json.loads(arguments.arguments))
        return
    found = measure(arguments.quick)
    finish(found, described(found), as_json=arguments.json)


def measure(quick: bool) -> dict[str, Any]:
    seconds = 3.0 if quick else 10.0
    burst = 2_000 if quick else 5_000
    tries = 2 if quick else 3
    with tempfile.TemporaryDirectory() as name, mosquitto(Path(name)) as (broker_port, broker_pid):
        directory = Path(name)
        certificate = [str(file) for file in own_certificate(directory / "certificate")]
        found = {
            "machine": machine("triagemq", "numpy", "pyarrow"),
            "payload_bytes": PAYLOAD_BYTES,
            "subscribers": SUBSCRIBERS,
            "steady": calmest(lambda: steady(broker_port, SUBSCRIBERS, 400, seconds), tries),
            "one_subscriber": calmest(lambda: steady(broker_port, 1, 15_000, seconds), tries),
            "burst": (without := best(lambda: bursts(broker_port, burst), tries)),
            "burst_with_trace": (traced := best(lambda: bursts(broker_port, burst, trace=directory), tries)),
            "trace_cpu_cost": round(
                traced["cpu_microseconds_per_delivery"] / without["cpu_microseconds_per_delivery"] - 1, 3
            ),
            "burst_with_state_qos_1": bursts(broker_port, burst // 10, state=str(directory / "state"), qos=1),
            "embedded_port": best(lambda: bursts(broker_port, burst // 2, embedded=True), tries),
            "mosquitto": best(lambda: plain(broker_port, broker_pid, burst), tries),
            "connect_milliseconds": connects(broker_port, 200 if quick else 1000),
            "burst_dtls": best(lambda: bursts(broker_port, burst, certificate=certificate), tries),
            "embedded_port_dtls": best(
                lambda: bursts(broker_port, burst // 2, embedded=True, certificate=certificate), tries
            ),
            "handshakes": {
                kind: handshakes(broker_port, 300 if quick else 2_000, certificate, resumed=resumed)
                for kind, resumed in (("full", False), ("resumed", True))
            },
        }
    for name in ("burst", "embedded_port"):
        found[f"{name}_dtls_added_microseconds"] = round(
            found[f"{name}_dtls"]["cpu_microseconds_per_delivery"]
            - found[name]["cpu_microseconds_per_delivery"],
            2,
        )
    return found


def best(run: Any, tries: int) -> dict[str, Any]:
    found: dict[str, Any] = max((run() for _ in range(tries)), key=lambda one: one["deliveries_per_second"])
    return found


def calmest(run: Any, tries: int) -> dict[str, Any]:
    """The run that was disturbed least by whatever else the machine does; a loss would count in any."""
    runs = [run() for _ in range(tries)]
    found: dict[str, Any] = min(runs, key=lambda one: one["p99_milliseconds"])
    return found | {"lost": max(one["lost"] for one in runs)}


# What is measured.


def steady(broker_port: int, subscribers: int, rate: float, seconds: float) -> dict[str, Any]:
    """A constant rate: nothing may be lost."""
    with gateway(broker_port) as (port, pid), sink("udp", port=port, subscribers=subscribers) as results:
        before = cpu_seconds(pid)
        publisher = Publisher(broker_port)
        sent = publisher.publish(int(rate * seconds), rate)
        publisher.close()
        found = results()
        return figures(found, sent * subscribers, cpu_seconds(pid) - before)


def bursts(
    broker_port: int, messages: int, *, trace: Path | None = None, state: str | None = None, **others: Any
) -> dict[str, Any]:
    """Everything at once: as fast as it goes."""
    certificate = others.get("certificate")
    options: dict[str, Any] = {
        "embedded": others.get("embedded", False),
        "state": state,
        "certificate": certificate,
    }
    if trace is not None:
        options["trace"] = str(trace / f"trace-{time.monotonic_ns()}")
    qos = others.get("qos", 0)
    with (
        gateway(broker_port, **options) as (port, pid),
        sink(
            "udp",
            port=port,
            subscribers=SUBSCRIBERS,
            qos=qos,
            certificate=None if certificate is None else certificate[0],
        ) as results,
    ):
        before = cpu_seconds(pid)
        publisher = Publisher(broker_port)
        sent = publisher.publish(messages, None, qos=qos)
        publisher.close()
        found = results()
        return figures(found, sent * SUBSCRIBERS, cpu_seconds(pid) - before)


def plain(broker_port: int, broker_pid: int, messages: int) -> dict[str, Any]:
    """Mosquitto itself to MQTT subscribers on TCP."""
    with sink("mqtt", port=broker_port, subscribers=SUBSCRIBERS) as results:
        before = cpu_seconds(broker_pid)
        publisher = Publisher(broker_port)
        sent = publisher.publish(messages, None)
        publisher.close()
        found = results()
        return figures(found, sent * SUBSCRIBERS, cpu_seconds(broker_pid) - before)


def figures(found: dict[str, Any], expected: int, cpu: float) -> dict[str, Any]:
    received = found["received"]
    return {
        "deliveries_per_second": round(received / found["seconds"]) if found["seconds"] > 0 else 0,
        "expected": expected,
        "received": received,
        "lost": expected - received,
        "p50_milliseconds": found["p50_milliseconds"],
        "p99_milliseconds": found["p99_milliseconds"],
        "cpu_microseconds_per_delivery": round(1e6 * cpu / max(received, 1), 2),
    }


def connects(broker_port: int, count: int) -> dict[str, float]:
    """One client after the other: from CONNECT to CONNACK."""
    with gateway(broker_port) as (port, _), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", port))
        client.settimeout(2.0)
        times = []
        for number in range(count):
            started = time.perf_counter()
            client.send(encode(Connect(f"client{number}", 60, clean_session=True)))
            client.recv(100)
            times.append(time.perf_counter() - started)
            client.send(encode(Disconnect()))
            client.recv(100)
        median, late = np.percentile(1000 * np.array(times), [50, 99])
        return {"median": round(float(median), 3), "p99": round(float(late), 3)}


def handshakes(broker_port: int, count: int, certificate: list[str], *, resumed: bool) -> dict[str, float]:
    """One association after the other, each from a port of its own: what the gateway's CPU has to do for it."""
    with gateway(broker_port, certificate=certificate) as (port, pid):
        security = ClientSecurity(authority=certificate[0])
        times = []
        before = 0.0
        for number in range(count + 1):
            if number == 1:
                # The first has made the session that the others resume.
                before = cpu_seconds(pid)
            if not resumed:
                security.forget("127.0.0.1", port)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.connect(("127.0.0.1", port))
                client.settimeout(5.0)
                started = time.perf_counter()
                association = shake_hands(client, security, port)
                times.append(time.perf_counter() - started)
                if number and association.was_resumed is not resumed:
                    sys.exit("a handshake was not of the kind that is measured")
                for datagram in association.close():
                    client.send(datagram)
        cpu = cpu_seconds(pid) - before
        return {
            "gateway_cpu_microseconds": round(1e6 * cpu / count, 1),
            "per_second_of_gateway_cpu": round(count / cpu) if cpu else 0,
            "median_milliseconds": round(1000 * float(np.median(times[1:])), 3),
        }


# Processes.


@contextlib.contextmanager
def mosquitto(directory: Path) -> Iterator[tuple[int, int]]:
    command = find_mosquitto()
    if command is None:
        sys.exit("this benchmark needs Mosquitto: apt install mosquitto")
    port = free_port()
    configuration = directory / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n"
        "set_tcp_nodelay true\nlog_type none\n"
    )
    process = subprocess.Popen([command, "-c", str(configuration)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.02)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def child(kind: str, **arguments: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--child", kind, "--arguments", json.dumps(arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        sys.exit("a process of the benchmark has failed")
    found: dict[str, Any] = json.loads(text)
    return found


@contextlib.contextmanager
def gateway(broker_port: int, **arguments: Any) -> Iterator[tuple[int, int]]:
    with child("serve", broker_port=broker_port, **arguments) as process:
        yield line(process)["port"], process.pid


@contextlib.contextmanager
def sink(kind: str, **arguments: Any) -> Iterator[Any]:
    with child(kind, **arguments) as process:
        line(process)
        yield lambda: line(process)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# What children do.


def serve(
    broker_port: int,
    trace: str | None = None,
    state: str | None = None,
    embedded: bool = False,
    certificate: list[str] | None = None,
) -> None:
    """A gateway, perhaps with a trace, a state, an embedded output port, or DTLS."""
    asyncio.run(_serve(broker_port, trace, state, embedded, certificate))


async def _serve(
    broker_port: int, trace: str | None, state: str | None, embedded: bool, certificate: list[str] | None
) -> None:
    from triagemq.broker import BrokerAddress
    from triagemq.dtls import ServerSecurity
    from triagemq.gateway import Gateway, GatewaySettings, LiveTrace

    def make_plane(udp_socket: socket.socket, on_transmitted: Any, clock: Any) -> Any:
        return embedded_port(udp_socket, on_transmitted, clock, running.seal)

    running = Gateway(
        GatewaySettings(broker_client_id=f"gateway-{os.getpid()}"),
        BrokerAddress("127.0.0.1", broker_port),
        ("127.0.0.1", 0),
        state=None if state is None else Path(state),
        trace=None if trace is None else LiveTrace(Path(trace)),
        make_plane=make_plane if embedded else None,
        security=None if certificate is None else ServerSecurity(*certificate),
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await running.start()
    await running.wait_for_broker(10.0)
    gc.collect()
    gc.freeze()
    print(json.dumps({"port": running.address[1]}), flush=True)
    await ended.wait()
    await running.close()


def embedded_port(udp_socket: socket.socket, on_transmitted: Any, clock: Any, seal: Any) -> Any:
    """One output port with room for everything: what is measured is what a packet costs."""
    from triagemq.network import DatagramSender, EmbeddedDataPlane
    from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort

    plane = EmbeddedDataPlane(DatagramSender(udp_socket, seal=seal), on_transmitted, clock=clock)
    flows = [
        SetFlow(FlowKey("127.0.0.1", udp_port), "port", flow_id, flow_id % 8, 0.0)
        for flow_id, udp_port in enumerate(range(UdpSink.FIRST_PORT, UdpSink.FIRST_PORT + SUBSCRIBERS))
    ]
    plane.apply([SetPort("port", PORT_BANDWIDTH_BPS, 1e9, 8), *flows])
    return plane


def udp_sink(port: int, subscribers: int, qos: int = 0, certificate: str | None = None) -> None:
    """MQTT-SN subscribers."""
    _receive(UdpSink(port, subscribers, qos, certificate))


def mqtt_sink(port: int, subscribers: int) -> None:
    """MQTT subscribers."""
    _receive(MqttSink(port, subscribers))


def _receive(receiver: UdpSink | MqttSink) -> None:
    """Receive until nothing has come for a second; then print what there was."""
    selector = selectors.DefaultSelector()
    for number, one in enumerate(receiver.sockets):
        selector.register(one, selectors.EVENT_READ, number)
    print(json.dumps({"ready": True}), flush=True)
    first_ns = last_ns = 0
    begin_ns = time.monotonic_ns()
    latencies = []
    while True:
        ready = selector.select(0.05)
        now_ns = time.monotonic_ns()
        if not ready and ((last_ns and now_ns - last_ns > 1.5e9) or now_ns - begin_ns > 60e9):
            break
        for key, _ in ready:
            sent_ns = receiver.take(key.data)
            if len(sent_ns):
                last_ns = time.monotonic_ns()
                first_ns = first_ns or now_ns
                latencies.append(last_ns - sent_ns)
    every = np.concatenate(latencies) if latencies else np.zeros(1)
    p50, p99 = np.percentile(every, [50, 99]) / 1e6
    found = {
        "received": sum(map(len, latencies)),
        "seconds": (last_ns - first_ns) / 1e9,
        "p50_milliseconds": round(float(p50), 3),
        "p99_milliseconds": round(float(p99), 3),
    }
    print(json.dumps(found), flush=True)
    receiver.close()


def described(found: dict[str, Any]) -> list[str]:
    names = {
        "steady": "50 subscribers x 400/s",
        "one_subscriber": "one subscriber, 15,000/s",
        "burst": "burst to 50 subscribers",
        "burst_with_trace": "the same, with a trace",
        "burst_with_state_qos_1": "burst at QoS 1, stored",
        "embedded_port": "burst, embedded output port",
        "mosquitto": "burst, plain Mosquitto (TCP)",
        "burst_dtls": "burst, DTLS",
        "embedded_port_dtls": "burst, embedded port, DTLS",
    }
    lines = [f"{'':30} {'deliveries/s':>12} {'lost':>8} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>7}"]
    for name, text in names.items():
        row = found[name]
        lines.append(
            f"{text:30} {row['deliveries_per_second']:12,} {row['lost']:8,} {row['p50_milliseconds']:8.1f} "
            f"{row['p99_milliseconds']:8.1f} {row['cpu_microseconds_per_delivery']:7.1f}"
        )
    lines.append(f"a trace costs {100 * found['trace_cpu_cost']:.0f} % more CPU for each delivery")
    connect = found["connect_milliseconds"]
    lines.append(f"CONNECT: median {connect['median']} ms, p99 {connect['p99']} ms")
    lines.append(
        f"DTLS adds {found['burst_dtls_added_microseconds']} us to a delivery, "
        f"{found['embedded_port_dtls_added_microseconds']} us through an embedded output port"
    )
    for kind, row in found["handshakes"].items():
        lines.append(
            f"{kind} handshakes: {row['per_second_of_gateway_cpu']:,}/s of gateway CPU "
            f"({row['gateway_cpu_microseconds']:.0f} us each), median {row['median_milliseconds']} ms"
        )
    return lines


if __name__ == "__main__":
    main()
