"""All processes of one exchange: broker, gateway with its data plane, coordinator, and a scenario's clients.

Each may end at any moment, by a fault or a kill; it is started again with the state it had and at the address it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from triagemq.addresses import Exposed, at_host, check_listeners, front_listener, host_of, place
from triagemq.broker import BrokerAddress, BrokerProcess, FurtherListener
from triagemq.certificates import own_certificate
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import ControlError
from triagemq.files import private_directory, write_private
from triagemq.live.rig import (
    EMBEDDED_CLASSES,
    GATEWAY_MODULE,
    HURRY_STORING_SECONDS,
    KERNEL_CLASSES,
    PAGE_MODULE,
    Child,
    EndedError,
    Rig,
    RigOptions,
)
from triagemq.live.up.state import TOKEN_FILE, lock_state, own_token, remember_start
from triagemq.waiting import end

if TYPE_CHECKING:
    from triagemq.coordinator.access.rights import BrokerRights
    from triagemq.live.up.kernel_ports import KernelPorts

EMBEDDED_BROKER = "embedded"
"""Instead of a broker's address: the one in Python, even where there is Mosquitto."""

_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_HUNG_SECONDS = 15.0
"""A gateway that is ready, and has not answered for so long, hangs."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOptions(RigOptions):
    """Where everything is, and how it plans. `state` survives; of a `scenario` the network is used, and its clients."""

    trace: Path | None = None
    tables: Path | None = None
    """Finished tables of earlier runs, for the page."""
    plan_text: str | None = None
    """The plan that a scenario's clients should lead to, stored with the trace: its forecast is the comparison."""
    gateway: str = "127.0.0.1:0"
    front: str | None = None
    """Where MQTT clients connect to the first gateway."""
    front_files: tuple[str, str] | None = None
    """With TLS there: paths of its certificate and key."""
    rest_host: str = "127.0.0.1"
    rest_port: int = 0
    broker: str | None = None
    advertise: str | None = None
    """The host by which clients of other machines reach this one, where it is another than they reached REST by."""
    broker_listener: FurtherListener | None = None
    """Where clients of MQTT reach the built-in broker; without it there is a port on loopback."""
    store: str | None = None
    """The address of the coordinator's database; without it there is one in `state`."""
    policy: Path | None = None
    """The policy file that replaces what is stored of an earlier one."""
    qos: int = 0
    coordinator: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the coordinator (see settings.py), such as access and TLS."""
    interfaces: Mapping[str, str] = field(default_factory=dict)
    """The network interface of each output port, where the kernel's queues are to follow the plan."""
    dtls: bool = False
    """The gateway speaks DTLS, with the coordinator's certificate, or one of its own making that the state holds."""
    keep_trace_seconds: float | None = None
    """After this time what was traced is removed."""
    client_authority: Path | None = None
    """With DTLS: whose certificates clients need."""
    name: str = "gateway"
    """What the gateway is called where there are several: as its broker in the scenario."""
    started_with: Mapping[str, Any] | None = None
    """The options that the next start with this `state` shall have, unless others are given."""
    peer_brokers: Mapping[str, str | None] = field(default_factory=dict)
    """The other brokers of the scenario by name, each with a gateway of its own: as URLs, None for one of our own."""

    @property
    def classes(self) -> int:
        """What the data plane has."""
        return KERNEL_CLASSES if self.interfaces else EMBEDDED_CLASSES

    def listeners(self) -> list[Exposed]:
        """Everything that could be reached from other machines, and what protects it."""
        access, certificate = self.coordinator.get("access"), self.coordinator.get("tls_certificate")
        tokens = None if access else "--access"
        tls = None if certificate is not None else "--tls-certificate with --tls-key"
        found = [
            Exposed("REST", "--rest", self.rest_host, tokens, tls),
            Exposed("MQTT-SN", "--gateway", host_of(self.gateway), tokens, None if self.dtls else "--dtls"),
        ]
        if self.front is not None:
            broker = None if self.broker == EMBEDDED_BROKER else self.broker
            encrypts = self.front_files is not None
            found.append(
                front_listener(self.front, encrypts=encrypts, broker=broker, has_access=bool(access))
            )
        if self.broker_listener is not None:
            further = self.broker_listener
            encryption = None if further.certificate is not None else tls
            found.append(Exposed("the broker", "--mqtt", further.host, tokens, encryption))
        return found


@dataclass(slots=True, eq=False)
class _Site:
    """A gateway and its broker. Only the first, which has the exchange's own state, does not `join`."""

    name: str
    suffix: str
    """What the names of its processes end with."""
    state: Path
    trace: Path
    link: GatewayLink
    control: Path
    broker_url: str | None
    """EMBEDDED_BROKER, or None, for a broker of our own."""
    broker: BrokerProcess | None = None
    broker_address: str = ""
    """As people and clients may see it: without a password."""
    gateway: str = ""
    """As clients get it: HOST:PORT, or mqttsns://HOST:PORT."""

    front: str | None = None
    """Where MQTT clients connect to it, as a URL."""

    @property
    def is_first(self) -> bool:
        return not self.suffix

    @property
    def process(self) -> str:
        """The name of the gateway's process."""
        return f"gateway{self.suffix}"


class Exchange(Rig):
    """`start_clients` is for a scenario's own clients.

    It is not started further when `ended` is set (EndedError), and then ends as quickly as it can. `on_problem` gets a
    line for whatever does not work from some moment on.
    """

    options: ExchangeOptions

    def __init__(
        self,
        options: ExchangeOptions,
        ended: asyncio.Event | None = None,
        on_problem: Callable[[str], None] = lambda words: None,
    ) -> None:
        super().__init__(options, options.state.absolute() / "gateway" / "control.sock")
        self.gone: list[str] = []
        """At the end: why a process did not run any more."""
        self.trace = (options.trace or self.state / "trace").absolute()
        self.certificate: Path | None = None
        """What clients of the gateway have to trust, where it speaks DTLS."""
        self.warnings: list[str] = []
        """What people should know about who can reach it."""
        self.kernel_ports: KernelPorts | None = None
        self._broker_rights: list[BrokerRights] = []
        first = _Site(options.name, "", self.state, self.trace, self.link, self._control, options.broker)
        self._sites = [first, *(self._further_site(name, url) for name, url in options.peer_brokers.items())]
        self._on_problem = on_problem
        self._ended = asyncio.Event() if ended is None else ended
        self._begun_ns: int | None = None
        """When everything runs, and from then on when the scenario's clients begin, in Unix ns."""

    def _further_site(self, name: str, broker_url: str | None) -> _Site:
        state = self.state / "sites" / name
        control = state / "control.sock"
        return _Site(name, f"-{name}", state, self.trace / name, GatewayLink(control), control, broker_url)

    @property
    def broker_address(self) -> str:
        return self._sites[0].broker_address

    @property
    def gateway(self) -> str:
        """The first gateway as clients get it: HOST:PORT, or mqttsns://HOST:PORT."""
        return self._sites[0].gateway

    @property
    def front(self) -> str | None:
        """Where MQTT clients connect to the first gateway, as a URL that they can use."""
        front = self._sites[0].front
        return None if front is None else self._as_advertised(front)

    @property
    def links(self) -> dict[str, GatewayLink]:
        """To all gateways, by name, the first one first."""
        return {site.name: site.link for site in self._sites}

    @property
    def traces(self) -> list[Path]:
        """The directories of the traces of all gateways."""
        return [site.trace for site in self._sites]

    @property
    def brokers(self) -> dict[str, str]:
        """The addresses of all brokers, by the name of their gateway."""
        return {site.name: site.broker_address for site in self._sites}

    @property
    def _database(self) -> str:
        return self.options.store or f"sqlite:///{self.state / 'coordinator.sqlite'}"

    @property
    def _has_access(self) -> bool:
        """Is access controlled by tokens?"""
        return bool(self.options.coordinator.get("access"))

    @property
    def _in_a_hurry(self) -> bool:
        return self._ended.is_set()

    @property
    def _own_brokers(self) -> dict[str, BrokerProcess]:
        """Brokers of our own, by the names of their processes."""
        return {f"broker{site.suffix}": site.broker for site in self._sites if site.broker is not None}

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, by name."""
        return {name: each.pid for name, each in self._supervised.items() if each.pid is not None}

    @property
    def restarts(self) -> dict[str, int]:
        """How often each had to be started again."""
        return {name: each.restarts for name, each in self._supervised.items()}

    @property
    def _supervised(self) -> dict[str, Child | BrokerProcess]:
        return {**self.children, **self._own_brokers}

    def _cannot_start(self) -> dict[str, str]:
        """By name, why a process could not be started again."""
        return {name: each.problem for name, each in self._supervised.items() if each.problem}

    async def _report_problems(self) -> None:
        reported: dict[str, str] = {}
        answered: dict[str, float] = {}
        while True:
            for child in self.children.values():
                child.bound_log()
            problems = self._cannot_start()
            if self.kernel_ports is not None:
                problems["queues of the kernel"] = self.kernel_ports.problem
            for site in self._sites:
                name, child = site.name, self.children[site.process]
                # One that has ended is started again by itself.
                if not child.is_ready:
                    answered[name] = time.monotonic()
                with contextlib.suppress(ControlError, TimeoutError, OSError):
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        found = (await site.link.measure(flows=False, topics=False)).broker_problem
                    problems[f"link {name}"] = found
                    answered[name] = time.monotonic()
                if time.monotonic() - answered.setdefault(name, time.monotonic()) >= _HUNG_SECONDS:
                    self._on_problem(f"gateway {name} hangs; it is started again")
                    child.send(signal.SIGKILL)
                    answered[name] = time.monotonic()
            for name, words in problems.items():
                if words and reported.get(name) != words:
                    self._on_problem(f"{words}; still trying")
            reported |= problems
            await asyncio.sleep(_LOOK_SECONDS)

    def _replace_policy(self, file: Path) -> str:
        from triagemq.coordinator.policy.in_force import replace_stored
        from triagemq.coordinator.store import Store

        store = Store(self._database)
        try:
            return replace_stored(store, file.read_text(encoding="utf-8-sig"), f"triage up --policy {file}")
        finally:
            store.close_now()

    async def _start(self) -> None:
        await self._unless_ended(self._start_all())

    async def _start_all(self) -> None:
        self.warnings = check_listeners(
            self.options.listeners(), insecure=bool(self.options.coordinator.get("insecure"))
        )
        self._clean.callback(os.close, lock_state(self.state))
        if self.options.policy is not None and (words := self._replace_policy(self.options.policy)):
            self.warnings.append(words)
        # What ends is in this order from below: clients, coordinator and gateway, the broker last.
        self._clean.push_async_callback(self._end_brokers)
        self._clean.push_async_callback(self._end)
        for link in self.links.values():
            self._clean.push_async_callback(link.close)
        if self.options.interfaces:
            # Late: most exchanges do without.
            from triagemq.live.up.kernel_ports import KernelPorts

            self.kernel_ports = KernelPorts(
                self.link,
                self.options.interfaces,
                estimators=self._estimators(self._on_problem),
            )
            self._clean.push_async_callback(self.kernel_ports.close)
        elif (estimators := self._estimators(self._on_problem)) is not None:
            # The gateway logs what becomes of the model; here it is read.
            estimators.look()
        first, *others = self._sites
        plan = self.options.plan_text
        await self._start_site(
            first,
            listen=self.options.gateway,
            plan=None if plan is None else str(write_private(self.state / "plan.json", plan)),
            **self._front_config(),
        )
        await self._start_coordinator(
            PAGE_MODULE,
            host=self.options.rest_host,
            port=self.options.rest_port,
            database=self._database,
            gateway_address=self._as_advertised(self.gateway),
            broker=self.broker_address,
            page_broker=first.broker_url if first.broker is None else first.broker.address.with_password(),
            tables=str((self.options.tables or self.state / "tables").absolute()),
            gateway_name=self.options.name,
            host_names=[] if self.options.advertise is None else [self.options.advertise],
            **self.options.coordinator,
        )
        for site in others:
            await self._start_site(
                site,
                listen=place(host_of(self.options.gateway), 0),
                join=self.rest,
                join_authority=self.options.coordinator.get("tls_certificate"),
                token=await asyncio.to_thread(self._gateway_token, site) if self._has_access else None,
            )
        for site in self._sites:
            site.link.start()
        self.start_task(self._report_problems())
        if self.kernel_ports is not None:
            from triagemq.live.up.kernel_ports import listeners_of

            tcp = [self.rest] if first.front is None else [self.rest, first.front]
            self.kernel_ports.open(listeners_of(self.gateway, *tcp))
        self._clean.callback(lambda: self.gone.extend(self._cannot_start().values()))
        if self.options.started_with is not None:
            remember_start(self.state, self.options.started_with)
        self._begun_ns = time.time_ns()

    async def _start_broker(self, site: _Site, *, embedded: bool) -> BrokerProcess:
        further = self.options.broker_listener if site.is_first else None
        broker = site.broker = BrokerProcess(
            site.state / "broker", embedded=embedded, guarded=self._has_access, further=further
        )
        await self._let_in(broker)
        await broker.start()
        site.broker_address = (
            str(broker.address) if further is None else self._as_advertised(str(further.address))
        )
        self.start_task(self._keep_saving(site.link))
        return broker

    async def _let_in(self, broker: BrokerProcess) -> None:
        """Who holds a token may speak MQTT to a broker of ours."""
        if self._has_access:
            # Late: the database takes a second to load.
            from triagemq.coordinator.access.rights import BrokerRights
            from triagemq.coordinator.store import Store

            rights = BrokerRights(broker, Store(self._database))
            self._broker_rights.append(rights)
            await rights.start()

    async def _start_site(self, site: _Site, **own: Any) -> None:
        """A broker, if it is to be one of our own, and its gateway."""
        private_directory(site.control.parent)
        url = site.broker_url
        if url is None or url == EMBEDDED_BROKER:
            broker = await self._start_broker(site, embedded=url == EMBEDDED_BROKER)
            own |= {
                "broker": broker.address.with_password(),
                "broker_client_id": broker.gateway_client_id,
                "broker_boot": str(broker.boot_file),
            }
        else:
            site.broker_address = str(BrokerAddress.parse(url))
            client_id = None if site.is_first else f"triage-gateway-{site.name}"
            own |= {"broker": url, "broker_client_id": client_id}
        config = self._gateway_config(
            state=str(site.state / "gateway"),
            control=str(site.control),
            trace=str(site.trace),
            keep_trace_seconds=self.options.keep_trace_seconds,
            name=site.name,
            dataplane="reported" if self.options.interfaces else "embedded",
            **self._protection(),
            **own,
        )

        def ready(facts: dict[str, Any]) -> None:
            # The next start takes the same port.
            front = facts.get("front")
            own = {} if front is None else {"front": front}
            self._write(site.process, config | {"listen": facts["listen"]} | own)
            if front is not None:
                scheme = "mqtt" if self.options.front_files is None else "mqtts"
                site.front = f"{scheme}://{front}"
            site.gateway = f"mqttsns://{facts['listen']}" if self.options.dtls else facts["listen"]

        await self._start_child(site.process, GATEWAY_MODULE, config, started=ready)

    def _front_config(self) -> dict[str, Any]:
        certificate, key = self.options.front_files or (None, None)
        return {"front": self.options.front, "front_certificate": certificate, "front_key": key}

    def _protection(self) -> dict[str, Any]:
        """How every gateway is protected."""
        found: dict[str, Any] = {"access": "required" if self._has_access else "open"}
        if self.options.dtls:
            authority = self.options.client_authority
            self.certificate, private_key = self._certificate()
            found |= {
                "certificate": str(self.certificate),
                "private_key": str(private_key),
                "client_authority": None if authority is None else str(authority.absolute()),
            }
        return found

    def _gateway_token(self, site: _Site) -> str:
        from triagemq.coordinator.access.tokens import Role, TokenRequest

        request = TokenRequest(label=f"gateway {site.name}", roles=(Role.GATEWAY,), names=(site.name,))
        return own_token(site.state / "gateway.token", self._database, request)

    def _as_advertised(self, address: str) -> str:
        """The address for clients, unless a wildcard is left to the coordinator: it knows how each has come."""
        return address if self.options.advertise is None else at_host(address, self.options.advertise)

    def _certificate(self) -> tuple[Path, Path]:
        given = self.options.coordinator
        if given.get("tls_certificate") is not None and given.get("tls_key") is not None:
            return Path(given["tls_certificate"]), Path(given["tls_key"])
        hosts = [host_of(self.options.gateway), *([self.options.advertise] if self.options.advertise else [])]
        return own_certificate(self.state / "certificate", hosts)

    async def start_clients(self) -> int:
        """The scenario's subscribers and then its publishers; when the first event will be published, in Unix ns."""
        return await self._unless_ended(self._start_both())

    async def _start_both(self) -> int:
        token = None
        if self._has_access:
            token = await asyncio.to_thread(own_token, self.state / TOKEN_FILE, self._database)
        config: dict[str, Any] = {
            "coordinator": self.rest,
            "token": token,
            "certificate": self.options.coordinator.get("tls_certificate"),
            "gateway_certificate": None if self.certificate is None else str(self.certificate),
            "qos": self.options.qos,
        }
        await self._start_clients("subscribers", **config)
        # Of the conditions, brokers are balanced by the rates.
        facts = await self._start_clients("publishers", **config, follows_rates=len(self._sites) > 1)
        self._begun_ns = int(facts["publishing_from_ns"])
        return self._begun_ns

    @property
    def elapsed_seconds(self) -> float:
        """Since the scenario's clients began, or since the start where there are none; 0 before."""
        return 0.0 if self._begun_ns is None else max(0.0, (time.time_ns() - self._begun_ns) * 1e-9)

    async def is_draining(self) -> bool:
        """Do packets wait in queues? They may, as long as the gateway is away."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                figures = [await link.measure(flows=False, topics=False) for link in self.links.values()]
        except (ControlError, TimeoutError, OSError):
            return True
        ports = (port for each in figures for port in each.ports.values())
        return any(queue.backlog_packets for port in ports for queue in port.queues)

    async def _end_brokers(self) -> None:
        for rights in self._broker_rights:
            await rights.close()
        seconds = [HURRY_STORING_SECONDS] if self._in_a_hurry else []
        await asyncio.gather(*(broker.stop(*seconds) for broker in self._own_brokers.values()))

    async def _unless_ended(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        loop = asyncio.get_running_loop()
        working, ending = loop.create_task(work), loop.create_task(self._ended.wait())
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise EndedError
            return working.result()
        finally:
            await end(working, ending)

    async def _keep_saving(self, link: GatewayLink) -> None:
        """Brokers must know subscriptions after a kill, too: they store their messages until the gateway is back.

        A gateway subscribes at all brokers, not only at its own.
        """
        seen, saved = None, ("", 0)
        while True:
            seen = await link.news(seen)
            if seen is None or saved == (seen.epoch, seen.subscriptions):
                continue
            saved = seen.epoch, seen.subscriptions
            for broker in self._own_brokers.values():
                with contextlib.suppress(OSError, RuntimeError):
                    broker.save_soon()
