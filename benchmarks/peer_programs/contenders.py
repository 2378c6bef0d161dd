"""Who takes part: what each needs, how its server and clients are started, and what its figures come from."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer_programs.settings import MOSQUITTO, NATS
from triagemq.programs import find_program

INSTALL = (
    ".venv/bin/uv pip install --no-deps --require-hashes -r requirements/peers.txt; apt install mosquitto"
)


@dataclass(frozen=True, slots=True)
class Contender:
    """`module` is the program of its clients, which is its server's, too, if `serves` (TriageMQ has none of these).
    `server` says in a folder and at an address how another server is started. It needs all of `packages` and `program`.
    `comes_from` says in words what its figures come from."""

    title: str
    comes_from: str
    module: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    program: str = ""
    serves: bool = False
    server: Callable[[Path, str], list[str]] | None = None
    dataplane: str = ""
    no_triage: bool = False
    front: bool = False
    """Subscribers connect to the front of a gateway, publishers to its broker, the server."""

    @property
    def missing(self) -> list[str]:
        """What this machine lacks for it."""
        lacking = [name for name in self.packages if importlib.util.find_spec(name) is None]
        return lacking + ([self.program] if self.program and _found(self.program) is None else [])


def _found(program: str) -> str | None:
    """Beside Python, where its packages put programs, or where servers are."""
    return shutil.which(program, path=str(Path(sys.executable).parent)) or find_program(program)


def _with_configuration(program: str, text: str) -> Callable[[Path, str], list[str]]:
    def command(folder: Path, address: str) -> list[str]:
        path = folder / f"{program}.conf"
        path.write_text(text.format(address=address))
        return [_found(program) or program, "-c", str(path)]

    return command


def _mosquitto(qos: int, comes_from: str, *, front: bool = False) -> Contender:
    return Contender(
        f"TriageMQ, MQTT front, QoS {qos}" if front else f"Mosquitto, QoS {qos}",
        comes_from,
        "with_mqtt",
        {"qos": qos},
        packages=("paho",),
        program="mosquitto",
        server=_with_configuration("mosquitto", MOSQUITTO),
        front=front,
    )


def _zenoh(title: str, transport: str, comes_from: str, *, marked: bool = False) -> Contender:
    settings = {"transport": transport, "marked": marked}
    return Contender(title, comes_from, "with_zenoh", settings, packages=("zenoh",), serves=True)


def _dds(title: str, multicast: str, comes_from: str) -> Contender:
    return Contender(title, comes_from, "with_dds", {"multicast": multicast}, packages=("cyclonedds",))


def _triage(title: str, dataplane: str, comes_from: str, *, no_triage: bool = False) -> Contender:
    return Contender(title, comes_from, dataplane=dataplane, no_triage=no_triage)


CONTENDERS = {
    "mosquitto-qos0": _mosquitto(0, "one TCP stream per subscriber, first come first served"),
    "mosquitto-qos1": _mosquitto(
        1, "as QoS 0, with acknowledgements; the broker lets 1000 messages wait for each subscriber"
    ),
    "nats": Contender(
        "NATS",
        "one TCP stream per subscriber, first come first served",
        "with_nats",
        packages=("nats",),
        program="nats-server",
        server=_with_configuration("nats-server", NATS),
    ),
    "zenoh-tcp": _zenoh(
        "Zenoh, TCP", "tcp", "priorities in the router's queues, before TCP streams that share one FIFO"
    ),
    "zenoh-udp": _zenoh(
        "Zenoh, UDP", "udp", "priorities never wait in the router: all waits in the port's FIFO"
    ),
    "zenoh-marked": _zenoh(
        "Zenoh, TCP, marked links",
        "tcp",
        "the port knows priorities of topics, though not what a topic is worth to whom",
        marked=True,
    ),
    "dds": _dds(
        "Cyclone DDS", "spdp", "best effort into the port's FIFO; transport priority marks no packet"
    ),
    "dds-multicast": _dds(
        "Cyclone DDS, multicast",
        "true",
        "one packet serves everyone behind a port: most of the overload is gone, and nobody goes first in the rest",
    ),
    "no-triage": _triage(
        "TriageMQ without triage", "linux", "best effort into the port's FIFO", no_triage=True
    ),
    "front-qos0": _mosquitto(
        0, "triage by subscription, for the same Paho clients at the same Mosquitto", front=True
    ),
    "front-qos1": _mosquitto(1, "as QoS 0, acknowledged to the broker when the client has", front=True),
    "triage-linux": _triage("TriageMQ, kernel queues", "linux", "triage by subscription"),
    "triage-embedded": _triage("TriageMQ, in the gateway", "embedded", "triage by subscription"),
}
