"""The controller: keeps the rules of all switches as the network and the plan ask for, while both change.

Everything here belongs to one event loop. What is decided is pure (discovery.py, rule_sets.py, updates.py); here are
the clock and the order of events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from triagemq.errors import NetworkError, SessionClosedError, SwitchError
from triagemq.network.openflow.decoding import PacketIn, PortDescription
from triagemq.network.openflow.discovery import Discovery, Search, is_discovery, read_speaker
from triagemq.network.openflow.rule_sets import DISCOVERY_RULE, FlowRules, RuleBook
from triagemq.network.openflow.rules import FLOW_KINDS, Put, Rule, RuleKey, steps, switch_name
from triagemq.network.openflow.session import (
    Place,
    SessionTimes,
    SwitchServer,
    SwitchSession,
    SwitchTls,
)
from triagemq.network.openflow.switch_table import SwitchTable
from triagemq.network.openflow.topology import PortId, Topology
from triagemq.plan.dataplane import FlowKey

_LAST_REAL_PORT = 0xFFFFFF00


@dataclass(frozen=True, slots=True)
class Timing:
    """How often ports are tried for links, and how long a link may be silent."""

    try_seconds: float = 0.1
    link_seconds: float = 1.0
    edge_seconds: float = 30.0
    ask_seconds: float = 5.0
    link_lost_seconds: float = 5.0
    switch_lost_seconds: float = 60.0
    session: SessionTimes = field(default_factory=SessionTimes)


class Controller:
    """Serves switches from `open` to `close`. `expected` are the switches (datapath ids) that make up the network.

    `ports` says of the plan's ports at which switch they are, and what they are called there. `reserved` are ports for
    copies of multicast keys alone, by switch and name.
    """

    def __init__(
        self,
        expected: Collection[int],
        *,
        ports: Mapping[str, tuple[int, str]] | None = None,
        reserved: Collection[tuple[int, str]] = (),
        timing: Timing = Timing(),  # noqa: B008 (frozen)
        tls: SwitchTls | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        self.session_errors: Counter[str] = Counter()
        self.counters = {"rules put": 0, "rules deleted": 0, "updates": 0}
        self.problem: NetworkError | None = None
        self.discovery = Discovery(
            link_seconds=timing.link_lost_seconds, forget_seconds=timing.switch_lost_seconds
        )
        self.server = SwitchServer(self._serve, tls=tls, allowed=allowed)
        self._expected, self._timing = set(expected), timing
        self._ports = {} if ports is None else ports
        self._reserved = frozenset(reserved)
        self._tables: dict[int, SwitchTable] = {}
        self._search = Search(self.discovery, self._tables, timing.ask_seconds)
        self._ready: set[int] = set()
        self._started = asyncio.Event()
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._book = RuleBook()
        # Until it is known which flows there should be, those of an earlier process are left alone.
        self._flows_known = False
        self._maintaining: asyncio.Task[None] | None = None
        self._worked_seconds = 0.0

    @property
    def network(self) -> Topology:
        """The network for which the present rules were made."""
        return self._book.network

    @property
    def connected(self) -> set[int]:
        return set(self._tables)

    async def open(self, listen: Sequence[Place]) -> None:
        await self.server.open(listen)
        self._maintaining = asyncio.create_task(self._maintain())

    async def wait_until_ready(self, seconds: float) -> None:
        """Until all expected switches are connected, their links are known and they have their rules."""
        try:
            await asyncio.wait_for(self._started.wait(), seconds)
        except TimeoutError:
            missing = ", ".join(switch_name(each) for each in sorted(self._expected - set(self._tables)))
            if self.problem is not None:
                raise self.problem from None
            raise NetworkError(
                f"switch {missing} has not connected; set its controller to one of {self.server.listening}"
                if missing
                else "the switches are connected, but their links could not be found out in time"
            ) from None

    async def set_flows(self, flows: Mapping[FlowKey, FlowRules]) -> None:
        """Put the rules of flows on all connected switches; others get them when they come.

        On a SwitchError everything is as it was before.
        """
        async with self._lock:
            undoing, touched = self._book.change(flows)
            first, self._flows_known = not self._flows_known, True
            try:
                await self._bring(None if first else touched)
            except SwitchError:
                self._book.change(undoing)
                try:
                    await self._bring(None)
                except SwitchError as error:
                    # Some switches keep rules of the change until they are brought up to date.
                    self.problem = error
                raise
            finally:
                self._wake.set()

    async def statistics(self) -> dict[int, dict[RuleKey, tuple[int, int, int]]]:
        """Counters of flows' rules, of every connected switch."""
        found = {}
        for switch, table in list(self._tables.items()):
            with contextlib.suppress(SessionClosedError):
                found[switch] = await table.flow_counts()
        return found

    async def close(self, *, keep_rules: bool) -> None:
        """Leave the switches, with or without our rules."""
        if self._maintaining is not None:
            self._maintaining.cancel()
            await asyncio.gather(self._maintaining, return_exceptions=True)
        if not keep_rules:
            for table in list(self._tables.values()):
                with contextlib.suppress(NetworkError):
                    await table.erase()
        for table in list(self._tables.values()):
            table.session.close()
        await self.server.close()

    # What switches say.

    def packet_in(self, session: SwitchSession, packet: PacketIn) -> None:
        if not self._is_ours(session):
            return
        at = PortId(session.datapath_id, packet.port)
        if is_discovery(packet.frame):
            left = self._search.origin(packet.frame)
            if left is None:
                self.discovery.counters["discovery frames of others"] += 1
                return
            before = self.discovery.links
            self.discovery.frame_seen(left, at, self._now())
            if self.discovery.links != before:
                self._wake.set()
            elif at not in before:
                # It may be a link that was not one before: the other direction is to be tried.
                self._search.try_ports([at])
            return
        speaker = read_speaker(packet.frame)
        if speaker is not None and self.discovery.speaker_seen(at, *speaker):
            self._wake.set()

    def port_changed(self, session: SwitchSession, gone: bool, port: PortDescription) -> None:
        if self._is_ours(session) and port.number <= _LAST_REAL_PORT:
            self._search.begin_again(PortId(session.datapath_id, port.number))
            self.discovery.port_changed(session.datapath_id, port.number, None if gone else port.up)
            self._wake.set()

    def closed(self, session: SwitchSession) -> None:
        if self._is_ours(session):
            del self._tables[session.datapath_id]
            self._ready.discard(session.datapath_id)
            self.discovery.left(session.datapath_id, self._now())

    def _is_ours(self, session: SwitchSession) -> bool:
        """Whether this connection is the one its switch was let in by."""
        table = self._tables.get(session.datapath_id)
        return table is not None and table.session is session

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = SwitchSession(reader, writer, self, self.session_errors, self._timing.session)
        try:
            await session.open()
        except NetworkError:
            return  # Counted by the session.
        if session.datapath_id not in self._expected:
            session.close("not expected")
            return
        try:
            table = SwitchTable(session)
            await table.read()
            if table.rules.get(DISCOVERY_RULE.key) != DISCOVERY_RULE:
                table.request(Put(session.datapath_id, DISCOVERY_RULE))
                await session.barrier()
        except SwitchError as error:
            self.problem = error
            session.close("refused")
            return
        except SessionClosedError:
            return
        except Exception as error:  # Octets that no codec foresaw.
            session.close(f"nonsense: {error!r}")
            return
        # A switch that has lost its connection may come again before that is known here; a second one that claims to be
        # the first does not displace it.
        while (older := self._tables.get(session.datapath_id)) is not None:
            if await older.session.answers_echo(self._timing.session.echo_seconds):
                session.close("connected twice")
                return
        if session.closed:
            return
        self._tables[session.datapath_id] = table
        self.discovery.rules_seen(session.datapath_id, table.rules.values())
        ports = {port.number: port.up for port in session.ports.values() if port.number <= _LAST_REAL_PORT}
        self.discovery.joined(session.datapath_id, ports, self._now())
        self.discovery.reserved |= {
            PortId(session.datapath_id, port.number)
            for port in session.ports.values()
            if (session.datapath_id, port.name) in self._reserved
        }
        self._wake.set()
        await session.ended.wait()

    # What is done about it.

    async def _maintain(self) -> None:
        links_tried = edges_tried = self._now()
        looked = asyncio.get_running_loop().time()
        while True:
            unsettled = self.discovery.unsettled()
            with contextlib.suppress(TimeoutError):
                pause = self._timing.try_seconds if unsettled else self._timing.link_seconds / 2
                await asyncio.wait_for(self._wake.wait(), pause)
            self._wake.clear()
            before, looked = looked, asyncio.get_running_loop().time()
            self._worked_seconds += min(looked - before, self._timing.link_seconds)
            now = self._now()
            try:
                if now - links_tried >= self._timing.link_seconds:
                    links_tried = now
                    self._search.try_ports(self.discovery.links)
                if now - edges_tried >= self._timing.edge_seconds:
                    edges_tried = now
                    self._search.try_ports(self._edges())
                if self._started.is_set() or self._expected <= self._tables.keys():
                    # Earlier, ports that lead to a switch that has not come yet would look like edges.
                    await self._search.settle()
                self.discovery.expire(self._now())
                await self._refresh()
                async with self._lock:
                    for table in list(self._tables.values()):
                        await table.drop_meters()
                self._ask_for_hosts()
            except SessionClosedError:
                continue  # It has left the tables; when it is back, it is brought up to date.
            except SwitchError as error:
                self.problem = error
            except Exception as error:
                # Whatever it is: the switches go on, and so must what looks after them.
                self.problem = NetworkError(f"the controller stumbled: {error!r}")

    def _edges(self) -> list[PortId]:
        return [
            PortId(switch, port)
            for switch in self.network.ports
            if switch in self._tables
            for port in self._book.routes.edge_ports(switch)
        ]

    def _ask_for_hosts(self) -> None:
        if self._started.is_set():
            missing = [each for each in sorted(self._book.topic_sources) if each not in self.network.hosts]
            self._search.ask_for(missing, self._edges, self._now())

    async def _refresh(self) -> None:
        """Make the rules fit the network as it is now."""
        if not self._started.is_set() and (
            self._expected - self._tables.keys() or self.discovery.unsettled()
        ):
            return
        network = self.discovery.network
        uncertain = {port.switch for port in self.discovery.unsettled()}
        joining = self._tables.keys() - self._ready - uncertain
        places = self._places()
        same = network == self.network and places == self._book.places
        if same and not joining and self._started.is_set():
            return
        async with self._lock:
            if not same:
                self._book.fit(network, places)
            self._ready |= joining
            await self._bring(None)
        self.problem = None
        self._started.set()

    def _places(self) -> dict[str, PortId]:
        """Where the plan's ports are; those of a switch that is away stay where they were."""
        places = dict(self._book.places)
        for name, (switch, interface) in self._ports.items():
            if switch in self._tables:
                places.pop(name, None)
                for port in self._tables[switch].session.ports.values():
                    if port.name == interface:
                        places[name] = PortId(switch, port.number)
        return places

    async def _bring(self, touched: Mapping[int, Collection[RuleKey]] | None) -> None:
        """Bring switches from the rules they have to those they should have: all rules, or only some."""
        wanted = self._book.wanted
        before: dict[int, dict[RuleKey, Rule]] = {}
        after: dict[int, dict[RuleKey, Rule]] = {}
        for switch in self._ready & wanted.keys() if touched is None else self._ready & touched.keys():
            have = self._tables[switch].installed
            want = wanted.get(switch, {})
            keys = have.keys() | want.keys() if touched is None else touched[switch]
            before[switch] = {
                key: have[key].rule
                for key in keys
                if key in have and (self._flows_known or have[key].rule.kind not in FLOW_KINDS)
            }
            after[switch] = {key: want[key] for key in keys if key in want}
        todo = steps(before, after)
        if not todo:
            return
        self.counters["updates"] += 1
        refused: list[SwitchError] = []
        for step in todo:
            tables: dict[int, SwitchTable] = {}
            for change in step:
                table = self._tables.get(change.switch)
                if table is None:
                    continue
                try:
                    table.request(change)
                except SessionClosedError:
                    continue
                except SwitchError as error:
                    refused.append(error)
                tables[change.switch] = table
                self.counters["rules put" if isinstance(change, Put) else "rules deleted"] += 1
            answers = await asyncio.gather(
                *(table.session.barrier() for table in tables.values()), return_exceptions=True
            )
            refused += [each for each in answers if isinstance(each, SwitchError)]
            if refused:
                break
        if refused:
            for table in tables.values():
                with contextlib.suppress(NetworkError):
                    await table.read()
            raise refused[0]

    def _now(self) -> float:
        """Seconds in which this process was at work: while it waits for a processor it asks nothing and hears nothing,
        and that a link is silent means nothing."""
        return self._worked_seconds
