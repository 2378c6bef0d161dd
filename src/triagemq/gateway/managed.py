"""A gateway that follows a desired state: MQTT-SN gateway, data plane, control channel and trace put together.

Orders take effect between two packets: the classes of topics first, then the flows, with nothing sent in between. A
state is confirmed when it is on disk, too, so that a gateway that is killed starts with what it last did. Grants are in
force even before that: a client that has lost a right does not go on because a disk is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triagemq.addresses import host_and_port, place
from triagemq.broker import BrokerAddress
from triagemq.channel.grants import Grants
from triagemq.channel.link import ControlServer
from triagemq.channel.messages import (
    ControlError,
    GatewayIdentity,
    GatewayNews,
    Measured,
    ObservedChange,
    ObservedClient,
    PortDelays,
    PresentClient,
    parse_counted,
    parse_expected,
    parse_managed,
    parse_state,
    shallow,
)
from triagemq.channel.orders import (
    Orders,
    OrdersChange,
    client_id_of,
    reranked,
    subscriber_of,
)
from triagemq.client.connection import CONNECTION_MARK
from triagemq.dtls import RECORD_BYTES, ServerSecurity
from triagemq.errors import PlanError
from triagemq.files import private_directory
from triagemq.gateway import Gateway, GatewaySettings, Gone, LiveTrace, Present
from triagemq.gateway.binder import FlowBinder, NoPlane
from triagemq.gateway.config import GatewayConfig
from triagemq.gateway.core.lifecycle import policy_changed, send_elsewhere
from triagemq.gateway.core.restoring import expect
from triagemq.gateway.front.managed import ManagedFront
from triagemq.gateway.joining import Joining
from triagemq.gateway.observed import MOST_FILTERS, ObservedClients
from triagemq.gateway.policy import GrantSource, ManagedPolicy, Rules
from triagemq.gateway.stored_state import StoredState
from triagemq.gateway.trace import decision_columns, next_run, numbering, sample_columns
from triagemq.network import (
    UDP_HEADER_BYTES,
    UDP_OVER_ETHERNET_BYTES,
    DatagramSender,
    EmbeddedDataPlane,
    ReportedDataPlane,
)
from triagemq.waiting import end

if TYPE_CHECKING:
    from triagemq.gateway.core import GatewayCore
    from triagemq.gateway.queue_control import ControlledQueues
    from triagemq.plan.dataplane import Instructed, OnTransmitted

_SAMPLE_EVERY_SECONDS = 0.2
_BROKER_ANSWERS_NS = 150_000_000
_POLL_SECONDS = 0.002
_GATHER_SECONDS = 0.05
_EXPECT_NS = 2_500_000_000
_WATCH_SECONDS = 0.5


class ManagedGateway:
    """`start`, then `wait` until it fails or is cancelled, then `close`.

    `on_subscriptions` is called when a broker has taken subscriptions, which it should save: a killed one would not
    know what to store for this gateway.
    """

    def __init__(
        self,
        config: GatewayConfig,
        grants: GrantSource | None = None,
        on_subscriptions: Callable[[], None] | None = None,
    ) -> None:
        self._state = Path(config.state)
        # Client ids may hold keys.
        private_directory(self._state)
        self._reported = config.dataplane == "reported"
        self._queue_control: ControlledQueues | None = None
        # What those say who control queues elsewhere.
        self._managed: dict[str, PortDelays] = {}
        self.config = config
        self._joining: asyncio.Task[None] | None = None
        self._stored = StoredState(self._state)
        before = self._stored.read()
        self._access_required = config.access == "required"
        self.rules = Rules(
            grants=before.grants,
            source=grants,
            closed=self._stored.damaged or (self._access_required and not before.grants.required),
        )
        # What it follows, on the disk; without an author while that differs from what is in force.
        self._followed = before
        self._plane: EmbeddedDataPlane | ReportedDataPlane | NoPlane = NoPlane()
        self._binder = FlowBinder(self._plane, self.rules.identify, replicates=self._reported)
        self._epoch = secrets.token_hex(8)
        # When the broker last left a question open.
        self._unheard_ns = 0
        self._subscriptions = 0
        self._changing = asyncio.Lock()
        # Which orders those carry out who follow this gateway.
        self._carried: dict[str, int] = {}
        self._sampling: asyncio.Task[None] | None = None
        self._watching_grants: asyncio.Task[None] | None = None
        self.unbound = 0
        """Clients at addresses that the data plane cannot send to."""
        self.observed = ObservedClients()
        """Unannounced clients that subscribe, of all protocols."""
        numbers, self._port_numbers, scenario_text, fingerprint = numbering(config)
        self.trace_directory = None if config.trace is None else next_run(Path(config.trace))
        self._trace = None
        if self.trace_directory is not None:
            self._trace = LiveTrace(
                self.trace_directory,
                numbers=numbers,
                scenario_text=scenario_text,
                plan_text=None if config.plan is None else Path(config.plan).read_text(encoding="utf-8"),
                scenario_fingerprint=fingerprint,
                rotate_seconds=config.rotate_seconds,
                keep_seconds=config.keep_trace_seconds,
            )
        self.gateway = Gateway(
            GatewaySettings(
                gateway_id=config.gateway_id,
                broker_client_id=config.broker_client_id or f"triage-gateway-{config.gateway_id}",
                policy=ManagedPolicy(
                    rules=self.rules,
                    priorities=list(config.priorities.items()),
                    lowest_class=1 + max(config.priorities.values(), default=-1),
                    maximum_clients_per_address=config.clients_per_address,
                ),
                predefined_topics=config.predefined,
                buffer_messages=config.buffer_messages,
                seed=config.seed,
                read_timestamps=config.timestamps,
                marks_classes=config.dataplane == "none",
            ),
            BrokerAddress.parse(config.broker),
            config.address,
            listen_option="--gateway",
            state=self._state if config.stores else None,
            trace=self._trace,
            make_plane=None if config.dataplane in ("none", "plain") else self._make_plane,
            broadcast=None if config.advertise is None else host_and_port(config.advertise, "--advertise"),
            identify=self.rules.identify,
            presence=self._presence,
            broker_boot=None if config.broker_boot is None else Path(config.broker_boot),
            security=None
            if config.certificate is None or config.private_key is None
            else ServerSecurity(
                config.certificate, config.private_key, client_authority=config.client_authority
            ),
        )
        self.front: ManagedFront | None = None
        """Where MQTT clients connect."""
        self._control = ControlServer(Path(config.control), self._answer)
        self._on_subscriptions = on_subscriptions
        self._subscriptions_news: asyncio.TimerHandle | None = None
        self.gateway.core.on_subscriptions = self._subscriptions_changed

    async def start(self) -> None:
        """Take up sessions and orders of before, and listen, also on the control socket."""
        try:
            self._follow(self._followed.orders or Orders())
        except PlanError as error:
            self._not_followed(error)
        await self.gateway.start()
        if self.rules.closed:
            # Sessions of before may be anybody's: they wait, and come again.
            self.gateway.change(policy_changed)
        if self.config.front is not None:
            await self._start_front()
        if self._trace is not None or self._queue_control is not None:
            self._sampling = asyncio.get_running_loop().create_task(self._keep_sampling())
        self._fit_peers(self.rules.orders)
        try:
            await self._control.start()
            self._push_news()
        except ControlError:
            await self.close()
            raise
        if self.config.join is not None:
            join = Joining(self.config, self._control.answered)
            self._joining = asyncio.get_running_loop().create_task(join.run())
        if self.rules.source is not None:
            watching = self._watch_grants(self.rules.source)
            self._watching_grants = asyncio.get_running_loop().create_task(watching)

    async def wait(self) -> None:
        """Run until something fails that cannot be put right."""
        waiting = {asyncio.ensure_future(self.gateway.wait())}
        if self._sampling is not None:
            waiting.add(self._sampling)
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting - {self._sampling}:
                task.cancel()
        for task in done:
            task.result()

    async def close(self) -> None:
        """Stop; sessions and orders stay stored, the trace is finished."""
        await end(self._joining, self._watching_grants)
        await self._control.close()
        if self.front is not None:
            await self.front.close()
        await end(self._sampling)
        with contextlib.suppress(Exception):
            self._sample()
        await self.gateway.close(tell_clients=not self.config.stores)

    def abort(self, reason: str) -> None:
        """Give the trace up."""
        if self._trace is not None:
            self._trace.abort(reason)

    async def _start_front(self) -> None:
        plane = self._plane if isinstance(self._plane, EmbeddedDataPlane) else None
        front = ManagedFront(
            self.config,
            self.gateway,
            identify=self.rules.identify,
            observed=self.observed,
            plane=plane,
            binder=self._binder,
        )
        try:
            await front.start(self.rules.orders)
        except BaseException:
            await self.gateway.close()
            raise
        self.front = front

    # Orders.

    def _make_plane(
        self, udp_socket: socket.socket, on_transmitted: OnTransmitted, clock: Callable[[], int]
    ) -> EmbeddedDataPlane | ReportedDataPlane:
        plane: EmbeddedDataPlane | ReportedDataPlane
        sealed_bytes = 0 if self.gateway.seal is None else RECORD_BYTES
        sender = DatagramSender(udp_socket, seal=self.gateway.seal, marks_classes=self._reported)
        if self._reported:
            plane = ReportedDataPlane(
                sender,
                on_transmitted,
                clock=clock,
                seed=self.config.seed,
                overhead_bytes_per_packet=UDP_HEADER_BYTES + sealed_bytes,
            )
        else:
            plane = EmbeddedDataPlane(
                sender,
                on_transmitted,
                clock=clock,
                control_sender=sender.control,
                closing=sender.close,
                overhead_bytes_per_packet=UDP_OVER_ETHERNET_BYTES + sealed_bytes,
            )
        sender.on_settled = plane.settled_later
        binder = FlowBinder(self._controlled(plane), self.rules.identify, replicates=self._reported)
        try:
            binder.order(self.rules.orders)
        except PlanError as error:
            self._not_followed(error)
            self._follow(Orders())
        self._plane, self._binder = plane, binder
        return plane

    def _controlled(self, plane: EmbeddedDataPlane | ReportedDataPlane) -> Instructed:
        """The data plane with control of its queues, if that is configured and the queues are here."""
        control, model = self.config.queue_control, self.config.delay_model
        if control == "off" or self._reported:
            return plane
        # Late: most gateways do without, and compiled trees take a moment to load.
        from triagemq.gateway.queue_control import ControlledQueues, Estimators

        estimators = Estimators(
            control,
            None if model is None else Path(model),
            lambda words: print(words, file=sys.stderr, flush=True),
            self.config.scenario,
        )
        self._queue_control = ControlledQueues(plane, estimators, self.gateway.queue_rates)
        self._queue_control.constrain(self._followed.constraints or {})
        return self._queue_control

    def _not_followed(self, error: PlanError) -> None:
        print(f"{self._state}: stored orders are not followed: {error}", file=sys.stderr, flush=True)
        self._followed = replace(self._followed, author="", orders=None)

    def _follow(self, orders: Orders, change: OrdersChange | None = None) -> None:
        """Put orders in force, or leave everything as it is; `change` is what differs in them, if that is known."""
        before = self.rules.orders
        change = orders.since(before) if change is None else change
        self.rules.orders = orders
        try:
            self._binder.order(orders, change)
        except PlanError:
            self.rules.orders = before
            raise
        self.gateway.core.planned_anew(reranked(before, orders, change))
        self.gateway.rerank()
        if self.front is not None:
            self.front.follow(orders, change)
        if self._trace is not None:
            self._trace.write()

    def _fit_peers(self, orders: Orders) -> None:
        addresses = {name: BrokerAddress.parse(url) for name, url in orders.peers.items()}
        self.gateway.fit_peers(addresses, self.config.name)

    def _identity(self) -> GatewayIdentity:
        where = place(*self.gateway.address)
        secure = self.gateway.security is not None
        return GatewayIdentity(f"mqttsns://{where}" if secure else where, self.config.broker)

    def _presence(self, news: Present | Gone) -> None:
        if isinstance(news, Gone):
            self._binder.gone(news.client_id)
            self.observed.remove(news.client_id)
            return
        self._observe(news)
        try:
            self._binder.connected(news.client_id, news.endpoint[:2], subscribes=news.subscribes)
        except PlanError:
            self.unbound += 1

    def _observe(self, news: Present) -> None:
        """Report a client that subscribes, unless it is one of our library's or has a grant: those are announced."""
        client_id = news.client_id
        session = self.gateway.core.sessions.get(client_id)
        if session is None or CONNECTION_MARK in client_id or self.rules.required:
            return
        # One more than are reported, so that it is seen that there are more.
        filters = dict.fromkeys(islice(session.subscriptions, MOST_FILTERS + 1), "")
        self.observed.put(ObservedClient(client_id, news.endpoint[0], "", filters))

    def _sessions(self) -> dict[str, Any]:
        """The clients that are connected, and the flows of those that are away and whose sessions are stored."""
        sessions = self.gateway.core.sessions.items()
        return {
            "sessions": [
                PresentClient(client_id, session.endpoint[:2], client_id_of(*self.rules.identify(client_id)))
                for client_id, session in sessions
                if session.connected
            ]
            + ([] if self.front is None else self.front.clients),
            "stored": [
                self._called(client_id)
                for client_id, session in sessions
                if not session.connected and subscriber_of(client_id)[1] == 0
            ],
        }

    def _send_elsewhere(self, client_ids: object, seconds: object) -> dict[str, Any]:
        if not isinstance(client_ids, list) or not isinstance(seconds, int | float):
            raise ControlError("elsewhere: client ids and seconds are needed")
        ids = [each for each in client_ids if isinstance(each, str)]
        disconnected: list[int] = []
        self.gateway.change(lambda core: disconnected.append(send_elsewhere(core, ids, seconds)))
        return {"disconnected": sum(disconnected)}

    async def _watch_grants(self, source: GrantSource) -> None:
        """A client whose grant ends is out; one with a new grant is let in."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if source.look():
                self.gateway.change(policy_changed)

    def _subscriptions_changed(self) -> None:
        if self._subscriptions_news is None:
            self._subscriptions_news = asyncio.get_running_loop().call_later(
                _GATHER_SECONDS, self._push_subscriptions
            )

    def _push_subscriptions(self) -> None:
        self._subscriptions_news = None
        self._subscriptions += 1
        if self._on_subscriptions is not None:
            self._on_subscriptions()
        self._push_news()

    def _push_news(self) -> None:
        self._control.push(GatewayNews(self._epoch, self.rules.orders.generation, self._subscriptions))

    def _name_of(self, client_id: str) -> str:
        return self.rules.identify(client_id)[0]

    def _called(self, client_id: str) -> str:
        """A client id with the name instead of the key that it may hold."""
        base, _ = subscriber_of(client_id)
        return self._name_of(client_id) + client_id[len(base) :]

    # The control channel.

    async def _answer(self, what: str, request: dict[str, Any], line: bytes) -> dict[str, Any]:
        match what:
            case "state":
                return await self._take_state(request, line)
            case "version":
                return {"author": self._followed.author, "version": self._followed.version}
            case "measure":
                with_topics = request.get("topics") is not False
                measured = self._measure(
                    broker_since_ns=await self._broker_since_ns() if with_topics else None,
                    with_flows=request.get("flows") is not False,
                    with_topics=with_topics,
                    after=request.get("after"),
                )
                return shallow(measured)
            case "save_broker":
                self._push_subscriptions()
                return {}
            case "current":
                return {"orders": self.rules.orders}
            case "sessions":
                return self._sessions()
            case "expect":
                return await self._expect(request.get("sessions"))
            case "elsewhere":
                return self._send_elsewhere(request.get("client_ids"), request.get("seconds"))
            case "identity":
                return shallow(self._identity())
            case "queues":
                if not isinstance(self._plane, ReportedDataPlane):
                    raise ControlError("this gateway has its own queues, or does not want to hear of others")
                counted = parse_counted(request)
                self._plane.report(counted.ports, dict(counted.flows), counted.at_ns)
                return {}
            case "managed":
                self._managed = parse_managed(request.get("ports"))
                self._store_queue_rates(self._managed)
                return {"constraints": self._followed.constraints or {}}
            case "queue_rates":
                return {"ports": self.gateway.queue_rates}
            case "carried":
                by, generation = request.get("by"), request.get("generation")
                if not isinstance(by, str) or not isinstance(generation, int):
                    raise ControlError("carried: a name and a generation are needed")
                self._carried[by] = generation
                return {}
            case "measured":
                return self._take_measured(request.get("from_ns"), request.get("classes"))
            case "decisions":
                columns = decision_columns(request.get("rows"))
                if self._trace is not None and columns["kind"]:
                    self._trace.writer.decisions(columns)
                return {"traced": self._trace is not None}
        raise ControlError(f"{what!r} is nothing that a gateway does")

    async def _expect(self, sessions: object) -> dict[str, Any]:
        """Store for clients that are on their way; answered when the brokers have taken their filters."""
        wanted = parse_expected(sessions)
        waiting = 0

        def answered() -> None:
            nonlocal waiting
            waiting -= 1

        def begin(core: GatewayCore) -> None:
            nonlocal waiting
            for client_id, filters in wanted.items():
                waiting += expect(core, client_id, filters, answered)

        self.gateway.change(begin)
        end_at = self.gateway.clock() + _EXPECT_NS
        while waiting > 0 and self.gateway.clock() < end_at:
            await asyncio.sleep(_POLL_SECONDS)
        return {"waiting": max(0, waiting)}

    async def _take_state(self, request: dict[str, Any], line: bytes) -> dict[str, Any]:
        async with self._changing:
            before, message = self._followed, parse_state(request)
            after = message.after(before)
            if self._access_required and not after.grants.required:
                raise ControlError("this gateway was started with access required: a client needs a grant")
            is_change = message.base is not None
            if message.grants is not None:
                bases = message.grants.by_base if is_change else None
                self.gateway.change(lambda core: self._admit(core, after.grants, bases))
                # Until it is stored, no change can begin from this state.
                self._followed = replace(before, author="")
            orders, reordered = after.orders or Orders(), message.orders is not None
            if reordered:
                change = message.orders if is_change else None
                self.gateway.change(lambda core: self._follow(orders, change))
            try:
                await asyncio.to_thread(self._stored.write, line, after, whole=message.is_whole)
            except BaseException:
                if reordered:
                    self.gateway.change(lambda core: self._follow(before.orders or Orders()))
                raise
            self._followed = after
            if self._queue_control is not None:
                self._queue_control.constrain(after.constraints or {})
            if reordered:
                self._push_news()
            if orders.peers != (before.orders or Orders()).peers:
                self._fit_peers(orders)
            return {"version": after.version}

    def _admit(self, core: GatewayCore, grants: Grants, bases: Collection[str] | None) -> None:
        """Put grants in force; `bases`: only those of these client ids differ."""
        self.rules.grants, self.rules.closed = grants, False
        policy_changed(core)
        if bases is None or any(subscriber_of(client_id)[0] in bases for client_id in core.sessions):
            core.identify_again()
            self._binder.identify_again()
            if self.front is not None:
                self.front.identify_again()

    async def _broker_since_ns(self) -> int | None:
        """Since when everything that the broker had to send has come at once; None if it does not answer now."""
        link, clock = self.gateway.core.link, self.gateway.clock
        lane = link.lanes[0]
        if not link.available:
            return None
        # Its answer comes after all that was published before: what is counted then is whole.
        if not lane.unanswered_pings:
            self.gateway.change(lambda core: lane.ping())
        deadline_ns = clock() + _BROKER_ANSWERS_NS
        while lane.unanswered_pings and lane.connected and clock() < deadline_ns:
            await asyncio.sleep(_POLL_SECONDS)
        if lane.unanswered_pings or link.up_since_ns is None:
            self._unheard_ns = clock()
            return None
        return max(link.up_since_ns, self._unheard_ns)

    def _measure(
        self, *, broker_since_ns: int | None, with_flows: bool, with_topics: bool, after: object
    ) -> Measured:
        """`after` is the mark of an earlier answer: the topics are those that have changed since, else all."""
        core = self.gateway.core
        topics: Mapping[str, tuple[int, int]] = {}
        begun: Sequence[str] = ()
        observed = ObservedChange()
        mark = ""
        if with_topics:
            epoch, _, step = after.partition(" ") if isinstance(after, str) else ("", "", "")
            counted, _, seen = (step if epoch == self._epoch else "").partition(" ")
            known = int(counted) if counted.isdecimal() else 0
            changed = core.publications.counts.changed_since(known, self.gateway.clock())
            topics, begun = changed.topics, changed.begun if known else ()
            observed, reached = self.observed.since(int(seen) if seen.isdecimal() else 0)
            mark = f"{self._epoch} {changed.step} {reached}"
        counters = self._plane.counters(with_flows=with_flows)
        flows = {
            self._called(client_id): counters.flows[key]
            for client_id, key in (self._binder.clients().items() if with_flows else ())
            if key in counters.flows
        }
        if self.front is not None and with_flows:
            flows |= {self._called(client_id): each for client_id, each in self.front.flows().items()}
        flows |= {
            str(copy.key): counters.flows[copy.key]
            for copy in (self.rules.orders.copies.values() if with_flows else ())
            if copy.key in counters.flows
        }
        own = {
            "unbound": self.unbound + (0 if self.front is None else self.front.unbound),
            "unobserved": self.observed.omitted,
            "bad_requests": self._control.bad_requests,
            "trace_rows_lost": 0 if self._trace is None else self._trace.writer.lost_rows,
        }
        return Measured(
            epoch=self._epoch,
            at_ns=self.gateway.clock(),
            topics=topics,
            counters=core.counters.as_json() | own | {"unmanaged": astuple(counters.unmanaged)},
            ports=counters.ports,
            flows=flows,
            generation=self.rules.orders.generation,
            carried=min(self._carried.values(), default=None),
            sessions=len(core.sessions) + (0 if self.front is None else len(self.front.clients)),
            broker_connected=self.gateway.broker_is_connected,
            broker_problem=self.gateway.broker_problem,
            storage_problem=self.gateway.storage_problem,
            author=self._followed.author,
            version=self._followed.version,
            broker_since_ns=broker_since_ns,
            begun=begun,
            mark=mark,
            round_trips=self.gateway.broker_round_trips if with_flows else {},
            client_round_trips={
                self._called(client_id): seconds
                for client_id, seconds in (self._client_round_trips().items() if with_flows else ())
            },
            planned_drops=dict(core.counters.planned_drops),
            managed=self._managed if self._queue_control is None else self._queue_control.managed,
            observed=observed,
        )

    def _client_round_trips(self) -> dict[str, float]:
        return ({} if self.front is None else self.front.round_trips) | self.gateway.client_round_trips

    # The trace.

    def _take_measured(self, from_ns: object, classes: object) -> dict[str, Any]:
        is_list = isinstance(classes, list) and all(type(one) is int for one in classes)
        if type(from_ns) is not int or not is_list:
            raise ControlError("what is measured needs a time, and a class for each subscription")
        if self._trace is not None:
            self._trace.set_trace_window(from_ns, classes)  # type: ignore[arg-type]
        return {"traced": self._trace is not None}

    async def _keep_sampling(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + _SAMPLE_EVERY_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())
            self._sample()

    def _sample(self) -> None:
        ports = self._plane.counters(with_flows=False).ports
        now_ns = self.gateway.clock()
        if self._trace is not None and ports:
            self._trace.writer.queue_samples(sample_columns(ports, self._port_numbers, now_ns))
        decisions = [] if self._queue_control is None else self._queue_control.feed(ports, now_ns)
        if self._queue_control is not None and decisions:
            self._store_queue_rates(self._queue_control.managed)
        if self._trace is not None and decisions:
            rows = [{"decided_ns": now_ns, **asdict(each)} for each in decisions]
            self._trace.writer.decisions(decision_columns(rows))

    def _store_queue_rates(self, ports: Mapping[str, PortDelays]) -> None:
        self.gateway.store_queue_rates({name: port.queue_rates_bps for name, port in ports.items()})
