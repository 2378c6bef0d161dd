"""TriageMQ beside its peers: the building fire over the same links with the same events, and what arrives.

Every contender runs in a network in a box of its own (namespaces, which are removed at the end, also on Ctrl-C), each
set up as its makers write (benchmarks/peer_programs/settings.py). For each: the share of the utility captured; success
and latency of the critical class and of the lowest, by TriageMQ's plan and so the same subscriptions for all; what the
ports carried, and the processors' time of all processes. Needs root. What is not installed is left out, and named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from measuring import finish, machine, options
from peer_programs.client import SCHEDULE, Told
from peer_programs.contenders import CONTENDERS, INSTALL, Contender
from peer_programs.evaluation import as_scheduled, evaluated
from peer_programs.network import carried_bytes, processor_seconds, unmanaged_network
from triagemq.channel.grants import Grants
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import DesiredState
from triagemq.channel.orders import Orders
from triagemq.coordinator.decide.decide import Question, decide
from triagemq.errors import NetworkError, TriageError
from triagemq.gateway.front.downlink import HEADER_BYTES
from triagemq.lab.box import Box, Host, Layout
from triagemq.lab.box.processes import Running
from triagemq.lab.emulate.boxed import BoxedExchange, BoxedOptions, require_machine
from triagemq.lab.emulate.receipts import RECEIPT, SENT, read_receipts
from triagemq.lab.emulate.run import run_emulation
from triagemq.lab.papers.experiment import Panel, Series
from triagemq.lab.papers.plotting import draw_png
from triagemq.live.rig import GATEWAY_MODULE, planner_settings
from triagemq.live.up.run import expected_figures, measured_from
from triagemq.mqttsn.timestamps import PREFIX_BYTES
from triagemq.plain import plain
from triagemq.processes import last_words
from triagemq.scenario import Integers, Scenario, load
from triagemq.simulate.source import PublicationStream

FOLDER = Path(__file__).parent
SCENARIO = FOLDER.parent / "examples" / "building-fire.yaml"
SECONDS_OF = {False: 20.0, True: 5.0}
"""With and without --quick."""
DRAINING_SECONDS = {False: 15.0, True: 3.0}
"""After the last event: what waits still counts when it arrives until then. TriageMQ's own runs have as long."""
READY_SECONDS = 90.0
LAST_SECONDS = 0.2
"""What is due so shortly before the end is not counted: some are told to end before it."""
SEED = 0
FRONT_PORT = 1884
PUBLISH_BYTES = 5
"""Of an MQTT 5 PUBLISH at QoS 0 without its topic and payload."""
PACKED_EVENTS = 3.0
"""As seen: in one packet of the front."""

_LOOK_SECONDS, _IDLE_SECONDS, _BEGIN_SECONDS = 0.05, 1.0, 0.5
_IDLE_SHARE = 0.02
"""Of what ports can carry: who sends less than that has nothing waiting."""
_AS_MUCH = 0.001
"""Who delivers less than that fewer delivers as much."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", choices=CONTENDERS, help="one contender; may be repeated")
    parser.add_argument(
        "--picture", type=Path, default=Path("out/peers.png"), help="where it goes (out/peers.png)"
    )
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # Who is started in the background of a script ignores Ctrl-C, which SIGTERM is made into.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    # The front has a comparison of its own (front.py).
    chosen = arguments.only or [name for name, each in CONTENDERS.items() if not each.front]
    seconds = arguments.seconds or SECONDS_OF[arguments.quick]
    draining = DRAINING_SECONDS[arguments.quick]
    absent = {name: CONTENDERS[name].missing for name in chosen if CONTENDERS[name].missing}
    for name, missing in absent.items():
        print(f"{name} is left out: no {', '.join(missing)}; to install: {INSTALL}", file=sys.stderr)
    try:
        require_machine("linux")
        with _folder(arguments.keep) as folder:
            comparison = Comparison(seconds, draining, folder)
            rows = {}
            for name in (each for each in chosen if each not in absent):
                print(f"{CONTENDERS[name].title} ...", file=sys.stderr, flush=True)
                rows[name] = comparison.run(name)
    except (TriageError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing was left behind")
    found = {"machine": machine("triagemq"), **comparison.facts, "absent": absent, "contenders": rows}
    if rows:
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        draw(arguments.picture, rows)
        found["picture"] = str(arguments.picture)
    finish(plain(found), described(found), as_json=arguments.json)


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        yield Path(name)


class Comparison:
    """The scenario, its events and its classes: what is the same for all."""

    def __init__(self, seconds: float, draining_seconds: float, folder: Path) -> None:
        self.scenario, self._folder = load(SCENARIO), folder
        self._seconds, self._draining_seconds = seconds, draining_seconds
        settings, triage = planner_settings(BoxedOptions(scenario=SCENARIO, state=folder / "none"))
        self._level: Integers = expected_figures(self.scenario, settings, triage).level
        self._schedule = schedule(self.scenario, seconds)
        np.save(folder / "schedule.npy", self._schedule)

    @property
    def facts(self) -> dict[str, Any]:
        """What was compared."""
        return {
            "scenario": self.scenario.name,
            "seconds": self._seconds,
            "draining_seconds": self._draining_seconds,
            "events": len(self._schedule),
            "ports_bps": float(self.scenario.ports.bandwidth_bps.sum()),
        }

    def run(self, name: str) -> dict[str, Any]:
        """One contender's figures."""
        contender, folder = CONTENDERS[name], self._folder / name
        folder.mkdir()
        run: type[_Run] = _TriageRun if contender.dataplane else FrontRun if contender.front else PeerRun
        measured = run(contender, self.scenario, folder, self._seconds)
        begun_ns, sent, receipts = measured.go(self._told(contender, folder), self._draining_seconds)
        warm_up_ns = measured_from(0, round(self._seconds * 1e9))
        counted = as_scheduled(
            self._schedule, sent, begun_ns, (warm_up_ns, round((self._seconds - LAST_SECONDS) * 1e9))
        )
        figures = evaluated(self.scenario, self._level, counted, receipts)
        return {"title": contender.title, "comes_from": contender.comes_from, **figures, **measured.spent}

    def _told(self, contender: Contender, folder: Path) -> dict[str, Any]:
        """What publishers are told, and a server; subscribers have other topics and notes."""
        topics, wanted = self.scenario.topics.name, self.scenario.subscriptions.topic
        own = (
            {"client_ids": self.scenario.subscribers.name, "front_port": FRONT_PORT}
            if contender.front
            else {}
        )
        return {
            "topics": {name: row for row, name in enumerate(topics)},
            "level": topic_levels(self.scenario, self._level),
            "settings": {
                **contender.settings,
                **own,
                "readers": {name: int((wanted == row).sum()) for row, name in enumerate(topics)},
            },
            "schedule": str(self._folder / "schedule.npy"),
            "begin": str(folder / "begin"),
        }


def schedule(scenario: Scenario, seconds: float) -> NDArray[np.void]:
    """What TriageMQ's own publishers draw from the same seed, and a second more for who ends by the clock."""
    drawn = PublicationStream(scenario, seed=SEED).until(seconds + 1.0)
    found = np.empty(len(drawn), dtype=SCHEDULE)
    found["due_ns"] = drawn["published_ns"]
    found["publisher"] = scenario.publications.publisher[drawn["publication"]]
    found["topic"] = scenario.publications.topic[drawn["publication"]]
    found["size_bytes"] = np.maximum(PREFIX_BYTES, np.rint(drawn["size_bytes"]))
    return found


def topic_levels(scenario: Scenario, level: Integers) -> dict[str, int]:
    """The class of each topic, for who has priorities by topic: the mean of its subscriptions', weighted by worth."""
    weight, topic = scenario.subscriptions.utility_weight, scenario.subscriptions.topic
    names = scenario.topics.name
    worth = np.bincount(topic, weight, minlength=len(names))
    mean = np.bincount(topic, weight * level, minlength=len(names)) / np.maximum(worth, 1e-9)
    return {name: round(float(mean[row])) for row, name in enumerate(names)}


class _Run:
    """One contender, once."""

    def __init__(self, contender: Contender, scenario: Scenario, folder: Path, seconds: float) -> None:
        self.contender, self.scenario, self.folder, self.seconds = contender, scenario, folder, seconds
        self._looks: list[tuple[float, int, float]] = []
        self._running: dict[str, Running] = {}

    @property
    def spent(self) -> dict[str, float]:
        """Between the first look and the last: what ports carried, and the share of one processor."""
        (begin, bytes_then, processor_then), (end, bytes_now, processor_now) = self._looks[0], self._looks[-1]
        return {
            "carried_bps": 8 * (bytes_now - bytes_then) / (end - begin),
            "processors": (processor_now - processor_then) / (end - begin),
        }

    def look(self, layout: Layout, processes: list[int]) -> None:
        self._looks.append((time.monotonic(), carried_bytes(layout), processor_seconds(processes)))

    def go(
        self, told: dict[str, Any], draining_seconds: float
    ) -> tuple[int, NDArray[np.void], NDArray[np.void]]:
        """When it began, what was sent, and what arrived."""
        raise NotImplementedError


class PeerRun(_Run):
    def go(
        self, told: dict[str, Any], draining_seconds: float
    ) -> tuple[int, NDArray[np.void], NDArray[np.void]]:
        with unmanaged_network(self.scenario) as box:
            (broker,) = box.layout.brokers.values()
            (publishing,) = {host.namespace: host for host in box.layout.publishers.values()}.values()
            told = told | {"server": broker.ipv4}
            self._start_server(box, told)
            hosts = [box.layout.subscribers[name] for name in self.scenario.subscribers.name]
            subscribers = [f"subscriber-{row}" for row in range(len(hosts))]
            for row, (name, host) in enumerate(zip(subscribers, hosts, strict=True)):
                self._start_client(box, host, name, told | {"role": "subscriber", **self._wanted(row)})
            self._await(*subscribers)
            told |= {"role": "publishers", "notes": str(self.folder / "sent")}
            self._start_client(box, publishing, "publishers", told)
            self._await("publishers")
            begun_ns = time.time_ns() + round(_BEGIN_SECONDS * 1e9)
            # As a whole, or not at all: they look for it all the time.
            writing = self.folder / "begin.new"
            writing.write_text(str(begun_ns))
            writing.rename(self.folder / "begin")
            time.sleep(_BEGIN_SECONDS)
            processes = [each.pid for each in self._running.values()]
            self.look(box.layout, processes)
            time.sleep(self.seconds)
            self.look(box.layout, processes)
            self._require_alive()
            box.processes.end(self._running.pop("publishers"))
            self._drain(box.layout, draining_seconds)
            self._require_alive()
            for name in subscribers:
                box.processes.end(self._running.pop(name))
        receipts = [
            read_receipts(self.folder / f"got-{row}", RECEIPT)
            for row in range(len(self.scenario.subscribers))
        ]
        return begun_ns, read_receipts(self.folder / "sent", SENT), np.concatenate(receipts)

    def _wanted(self, row: int) -> dict[str, Any]:
        table, names = self.scenario.subscriptions, self.scenario.topics.name
        topics = table.topic[table.subscriber == row].tolist()
        return {
            "subscriber": row,
            "notes": str(self.folder / f"got-{row}"),
            "topics": {names[topic]: topic for topic in topics},
        }

    def _start_server(self, box: Box, told: dict[str, Any]) -> None:
        (broker,) = box.layout.brokers.values()
        if self.contender.serves:
            self._start_client(box, broker, "server", told | {"role": "server", "notes": ""})
            self._await("server")
        elif self.contender.server is not None:
            command = self.contender.server(self.folder, broker.ipv4)
            log = self.folder / "server.log"
            self._running["server"] = box.processes.start(broker.namespace, command, output=log)
            time.sleep(_BEGIN_SECONDS)

    def _start_client(self, box: Box, host: Host, name: str, told: dict[str, Any]) -> None:
        path = self.folder / f"{name}.json"
        fields = {each: told[each] for each in Told.__slots__ if each in told}
        path.write_text(json.dumps(fields | {"interface": host.interface}))
        self._running[name] = box.processes.start(
            host.namespace,
            [sys.executable, "-m", f"peer_programs.{self.contender.module}", str(path)],
            environment={**os.environ, "PYTHONPATH": str(FOLDER)},
            output=self.folder / f"{name}.out",
            errors=self.folder / f"{name}.log",
        )

    def _await(self, *names: str) -> None:
        """Until these have said that they are connected."""
        deadline = time.monotonic() + READY_SECONDS
        for name in names:
            while not (self.folder / f"{name}.out").stat().st_size:
                self._require_alive()
                if time.monotonic() > deadline:
                    raise NetworkError(f"{self.contender.title}: {name} is not ready in {READY_SECONDS:g} s")
                time.sleep(_LOOK_SECONDS)

    def _require_alive(self) -> None:
        for name, process in self._running.items():
            if process.exit_code() is not None:
                why = last_words(self.folder / f"{name}.log")
                raise NetworkError(f"{self.contender.title}: {name} has ended by itself: {why}")

    def _drain(self, layout: Layout, most_seconds: float) -> None:
        """Until ports are idle, though not for ever."""
        deadline, before = time.monotonic() + most_seconds, carried_bytes(layout)
        idle_bytes = _IDLE_SHARE * float(self.scenario.ports.bandwidth_bps.sum()) / 8 * _IDLE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_IDLE_SECONDS, left))
            now = carried_bytes(layout)
            if now - before < idle_bytes:
                return
            before = now


class FrontRun(PeerRun):
    """Mosquitto and a gateway with a front before it: the same clients as at Mosquitto, at another port."""

    def _start_server(self, box: Box, told: dict[str, Any]) -> None:
        super()._start_server(box, told)
        (broker,) = box.layout.brokers.values()
        # A socket's path has to be short.
        control = Path(tempfile.mkdtemp(prefix="front-")) / "control.sock"
        config = {
            "listen": f"{broker.ipv4}:10000",
            "front": f"{broker.ipv4}:{FRONT_PORT}",
            "broker": f"mqtt://{broker.ipv4}:1883",
            "state": str(self.folder / "gateway"),
            "control": str(control),
        }
        path = self.folder / "gateway.json"
        path.write_text(json.dumps(config))
        self._running["gateway"] = box.processes.start(
            broker.namespace,
            [sys.executable, "-m", GATEWAY_MODULE, str(path)],
            output=self.folder / "gateway.out",
            errors=self.folder / "gateway.log",
        )
        self._await("gateway")
        orders = decide(Question(self._as_sent(), settings=planner_settings(self._options)[0]), None).orders
        asyncio.run(_send_orders(control, orders))

    @property
    def _options(self) -> BoxedOptions:
        return BoxedOptions(scenario=SCENARIO, state=self.folder / "none", dataplane="embedded")

    def _as_sent(self) -> Scenario:
        """The scenario with what MQTT and TCP have around an event."""
        topic_bytes = float(np.mean([len(name) for name in self.scenario.topics.name]))
        headers = HEADER_BYTES / PACKED_EVENTS
        return replace(self.scenario, overhead_bytes=headers + PUBLISH_BYTES + topic_bytes)


async def _send_orders(control: Path, orders: Orders) -> None:
    link = GatewayLink(control)
    link.start()
    try:
        await link.wait_connected(READY_SECONDS)
        await link.send_state(None, DesiredState("benchmark", 1, orders, Grants()))
    finally:
        await link.close()


class _TriageRun(_Run):
    def go(
        self, told: dict[str, Any], draining_seconds: float
    ) -> tuple[int, NDArray[np.void], NDArray[np.void]]:
        """When it began, what was sent, and what arrived. How long it drains is for itself: until queues are empty."""
        begun_ns = 0

        def on_tick(rig: BoxedExchange, elapsed: float) -> None:
            nonlocal begun_ns
            if elapsed >= 0:
                begun_ns = begun_ns or time.time_ns() - round(elapsed * 1e9)
                # The kernel's queues are led, and read, by this process.
                self.look(rig.layout, [*rig.pids.values(), os.getpid()])

        options = BoxedOptions(
            scenario=SCENARIO,
            state=self.folder / "state",
            dataplane=self.contender.dataplane,
            no_triage=self.contender.no_triage,
            seed=SEED,
        )
        asyncio.run(
            run_emulation(
                options, seconds=self.seconds, ended=asyncio.Event(), on_tick=on_tick, compared=False
            )
        )
        sent, got = (options.state / name for name in ("sent", "receipts"))
        return begun_ns, read_receipts(sent, SENT), read_receipts(got, RECEIPT)


# What is said of it.


def described(found: dict[str, Any]) -> list[str]:
    """The table, and where a peer is before TriageMQ."""
    lines = [
        f"{found['scenario']}: {found['seconds']:g} s, the same events for all; "
        f"the ports carry {found['ports_bps'] / 1000:.0f} kbit/s",
        f"{'':26}{'utility':>8}  {'critical class':^24}  {'lowest class':^24}  {'carried':>8} {'CPU':>6}",
        f"{'':26}{'':>8}  {'success':>8}{'p50':>8}{'p95':>8}  {'success':>8}{'p50':>8}{'p95':>8}  "
        f"{'kbit/s':>8} {'':>6}",
    ]
    for row in found["contenders"].values():
        first, last = row["classes"][0], row["classes"][-1]
        lines.append(
            f"{row['title']:26}{_percent(row['utility']['rate']):>8}  {_class(first)}  {_class(last)}  "
            f"{row['carried_bps'] / 1000:8.0f} {_percent(row['processors']):>6}"
        )
    return [*lines, *wins(found["contenders"]), f"picture: {found.get('picture')}"]


def wins(rows: dict[str, dict[str, Any]]) -> list[str]:
    """In which figure which peer is before TriageMQ with triage, and why."""
    ours = [rows[name] for name in ("triage-linux", "triage-embedded") if name in rows]
    if not ours:
        return []
    peers = [row for name, row in rows.items() if not (CONTENDERS[name].dataplane or CONTENDERS[name].front)]
    utility = max(row["utility"]["rate"] for row in ours)
    critical = max(row["classes"][0]["success_rate"] for row in ours)
    quickest = min(row["classes"][0]["p95_seconds"] for row in ours)
    lowest = max(row["classes"][-1]["success_rate"] for row in ours)
    processors = min(row["processors"] for row in ours)
    lines = []
    for row in peers:
        first, last = row["classes"][0], row["classes"][-1]
        as_much = first["success_rate"] >= critical - _AS_MUCH
        better = {
            f"utility {_percent(row['utility']['rate'])}": row["utility"]["rate"] > utility,
            f"critical class delivered {_percent(first['success_rate'])}": first["success_rate"] > critical,
            f"critical p95 {_duration(first['p95_seconds'])}": as_much and first["p95_seconds"] < quickest,
            f"lowest class delivered {_percent(last['success_rate'])}": last["success_rate"] > lowest,
            f"CPU {_percent(row['processors'])}": row["processors"] < processors,
        }
        named = [words for words, is_better in better.items() if is_better]
        if named:
            lines.append(f"{row['title']} is before TriageMQ in: {', '.join(named)} ({row['comes_from']})")
    return lines


def draw(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    """Bars for all contenders, side by side."""

    def panel(title: str, unit: str, values: list[float], *, logarithmic: bool = False) -> Panel:
        titles = [row["title"] for row in rows.values()]
        bars = tuple(
            Series.of("TriageMQ" if name.startswith("TriageMQ,") else "peer", [name], [value])
            for name, value in zip(titles, values, strict=True)
        )
        return Panel(title, "", unit, bars, bars=True, logarithmic=logarithmic)

    first = [row["classes"][0] for row in rows.values()]
    draw_png(
        path,
        "A building on fire, with too little radio: the same events over the same links",
        (
            panel(
                "utility captured",
                "% of the maximum",
                [100 * row["utility"]["rate"] for row in rows.values()],
            ),
            panel("critical class delivered", "% of events", [100 * each["success_rate"] for each in first]),
            panel(
                "critical class, p95 of latency",
                "seconds",
                [each["p95_seconds"] or float("nan") for each in first],
                logarithmic=True,
            ),
        ),
    )


def _class(row: dict[str, Any]) -> str:
    return f"{_percent(row['success_rate']):>8}{_duration(row['p50_seconds']):>8}{_duration(row['p95_seconds']):>8}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    main()
