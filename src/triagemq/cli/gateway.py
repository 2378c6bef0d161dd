"""`triage gateway`: the MQTT-SN gateway alone, for any broker, or one of several of a coordinator."""

from __future__ import annotations

import asyncio
import json as json_format
import signal
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.addresses import host_and_port, place
from triagemq.cli import options, terminal
from triagemq.cli.stopping import stop_on_signals
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.broker import BrokerAddress, BrokerProcess
    from triagemq.dtls import ServerSecurity
    from triagemq.gateway import Gateway
    from triagemq.gateway.config import GatewayConfig
    from triagemq.gateway.managed import ManagedGateway


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Every field is an option."""

    broker: Annotated[
        str | None,
        typer.Option(
            envvar="TRIAGE_BROKER",
            help="mqtt://[USER:PASSWORD@]HOST[:PORT], or mqtts:// for TLS (default: one of its own).",
        ),
    ] = None
    broker_ca: options.BrokerAuthority = None
    listen: Annotated[str, typer.Option(help="UDP address to listen on, HOST:PORT.")] = "127.0.0.1:10000"
    front: options.Front = None
    front_tls: options.FrontTls = None
    gateway_id: Annotated[int, typer.Option("--id", min=0, max=255, help="Number of this gateway.")] = 1
    state: Annotated[
        Path | None, typer.Option(help="Directory in which sessions survive a restart (default: none do).")
    ] = None
    predefined: Annotated[
        Path | None, typer.Option(help="YAML file of predefined topics, topic id: topic name.")
    ] = None
    priorities: Annotated[
        Path | None, typer.Option(help="YAML file of priority classes, topic filter: class (0 is first).")
    ] = None
    buffer: Annotated[
        int, typer.Option(min=1, help="Messages stored for a client that sleeps or is away.")
    ] = 10_000
    clients_per_address: Annotated[
        int, typer.Option(min=1, help="Clients that may be at one IP address (loopback: 20,000 or more).")
    ] = 10_000
    advertise: Annotated[
        str | None, typer.Option(help="HOST:PORT to send ADVERTISE to, a broadcast or multicast address.")
    ] = None
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Take publication times from messages that carry them.")
    ] = False
    trace: Annotated[
        Path | None,
        typer.Option(help="Write what happens as a Trace below this directory, a run for each start."),
    ] = None
    dtls: Annotated[
        bool,
        typer.Option("--dtls", help="Encrypt MQTT-SN; without --tls-certificate with one of its own making."),
    ] = False
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate of the gateway (PEM); turns --dtls on.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None
    client_ca: options.ClientAuthority = None
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="Let in only who has a token of this file (`triage token create --file` makes it)."
        ),
    ] = None
    join: Annotated[
        str | None,
        typer.Option(help="http(s)://HOST:PORT of the coordinator of this gateway and others."),
    ] = None
    name: Annotated[str | None, typer.Option(help="With --join: what it is called there.")] = None
    token: Annotated[
        str | None,
        typer.Option(envvar="TRIAGE_TOKEN", help="With --join: a token of role gateway, where access is on."),
    ] = None
    ca: Annotated[
        Path | None, typer.Option(help="With --join https://: certificate of the authority to trust.")
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without tokens or encryption.")
    ] = False
    json: options.Json = False

    def check(self) -> list[str]:
        """Warnings about who can reach it; ParameterError for what does not go together."""
        from triagemq.addresses import Exposed, check_listeners, front_listener

        needs = (
            ("--name", self.name, self.join, "--join URL"),
            ("--ca", self.ca, self.join, "--join URL"),
            ("--broker-ca", self.broker_ca, self.broker, "--broker mqtts://HOST"),
            ("--client-ca", self.client_ca, self.encrypts, "--dtls or --tls-certificate"),
        )
        for option, given, other, words in needs:
            if given is not None and not other:
                raise ParameterError(option, f"goes with {words}")
        for option in ("predefined", "priorities", "tokens") if self.join else ():
            if getattr(self, option) is not None:
                raise ParameterError(f"--{option}", "goes without --join: the coordinator says who gets what")
        if self.join and self.name is None:
            raise ParameterError("--join", "needs --name NAME: what the coordinator calls this gateway")
        if self.join and self.state is None:
            raise ParameterError("--join", "needs --state DIRECTORY: its desired state survives a restart")
        tokens = "--token" if self.join else "--tokens FILE"
        has_tokens = self.tokens or (self.join and self.token)
        exposed = Exposed(
            "MQTT-SN",
            "--listen",
            self.address[0],
            tokens=None if has_tokens else tokens,
            encryption=None if self.encrypts else "--dtls",
        )
        options.front_files(self.front, self.front_tls)
        listeners = [exposed]
        if self.front is not None:
            encrypts, has_access = self.front_tls is not None, self.tokens is not None
            listeners.append(
                front_listener(self.front, encrypts=encrypts, broker=self.broker, has_access=has_access)
            )
        return check_listeners(listeners, insecure=self.insecure)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return host_and_port(self.listen, "--listen", lowest_port=0)

    @property
    def encrypts(self) -> bool:
        return self.dtls or self.tls_certificate is not None or self.tls_key is not None

    def security(self) -> ServerSecurity | None:
        """Its certificate, created if none is given; None without DTLS."""
        if not self.encrypts:
            return None
        from triagemq.certificates import own_certificate
        from triagemq.dtls import ServerSecurity

        certificate, key = self.tls_certificate, self.tls_key
        if certificate is None and key is None:
            directory = (self.state or Path("out/gateway")) / "certificate"
            certificate, key = own_certificate(directory, [self.address[0]])
        if certificate is None or key is None:
            raise ParameterError("--tls-certificate", "and --tls-key belong together: give both or none")
        return ServerSecurity(certificate, key, client_authority=self.client_ca)

    def config(self, state: Path, security: ServerSecurity | None) -> GatewayConfig:
        """Of the gateway, alone or led by a coordinator, but for its broker."""
        from triagemq.gateway.config import GatewayConfig

        files = [] if security is None else [str(each) for each in security.files]
        certificate, private_key, client_authority = [*files, None, None, None][:3]
        front_certificate, front_key = options.front_files(self.front, self.front_tls) or (None, None)
        return GatewayConfig(
            listen=self.listen,
            broker="",
            front=self.front,
            front_certificate=front_certificate,
            front_key=front_key,
            state=str(state / "gateway" if self.join else state),
            control=str(state / "control.sock"),
            stores=self.state is not None,
            trace=None if self.trace is None else str(self.trace),
            timestamps=self.timestamps,
            dataplane="embedded" if self.join else "plain",
            gateway_id=self.gateway_id,
            predefined={} if self.predefined is None else _mapping(self.predefined, dict[int, str]),
            priorities={} if self.priorities is None else _mapping(self.priorities, dict[str, int]),
            buffer_messages=self.buffer,
            clients_per_address=self.clients_per_address,
            advertise=self.advertise,
            access="open" if self.token is None else "required",
            name=self.name or "gateway",
            join=self.join,
            token=self.token,
            join_authority=None if self.ca is None else str(self.ca),
            certificate=certificate,
            private_key=private_key,
            client_authority=client_authority,
        )


@options.with_groups
def gateway(given: GatewayOptions) -> None:
    """Run an MQTT-SN gateway until Ctrl-C. Signal USR1 prints its counters."""
    from triagemq.files import private_directory

    warnings = given.check()
    if given.state is not None:
        # Before certificate and broker have their own in it: directories that they make above are open to others.
        private_directory(given.state, "--state")
    counters = asyncio.run(_run(given, warnings))
    found = {"gateway_id": given.gateway_id, "counters": counters}
    terminal.show(found, terminal.in_words("counters", counters), as_json=given.json)


async def _run(given: GatewayOptions, warnings: list[str]) -> dict[str, Any]:
    """Start a broker if none is given, and the gateway; what this has counted at its end."""
    from triagemq.gateway.process import serve

    security = given.security()
    async with AsyncExitStack() as stack:
        state = given.state
        if state is None:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triage-gateway-")))
        config = given.config(state, security)
        grants: TokenGrants | None = None
        if given.tokens is not None:
            from triagemq.coordinator.access.tokens import TokenGrants

            grants = TokenGrants(given.tokens)
        on_subscriptions: Callable[[], None] | None = None
        if given.broker is None:
            own = await _start_broker(given, state, stack)
            broker, on_subscriptions = own.address, own.save_soon
            config = replace(config, broker_client_id=own.gateway_client_id, broker_boot=str(own.boot_file))
        else:
            broker = options.broker_address(given.broker, given.broker_ca)
        for line in warnings:
            typer.echo(line, err=True)
        loop = asyncio.get_running_loop()

        def ready(running: ManagedGateway, broker_reached: bool) -> None:
            # Not through the loop, whose signal handling is that of `stopping` already.
            show = partial(_print_counters, running.gateway, given.json)
            signal.signal(signal.SIGUSR1, lambda *_: loop.call_soon_threadsafe(show))
            front = None if running.front is None else place(*running.front.address)
            _say_ready(given, place(*running.gateway.address), front, broker, broker_reached, security)

        return await serve(
            replace(config, broker=broker.with_password()), stop_on_signals(), ready, grants, on_subscriptions
        )


async def _start_broker(given: GatewayOptions, state: Path, stack: AsyncExitStack) -> BrokerProcess:
    """One of its own, which lets in those whom the gateway lets in."""
    from triagemq.broker import BrokerProcess

    own = BrokerProcess(state / "broker", guarded=given.tokens is not None)
    if given.tokens is not None:
        from triagemq.coordinator.access.rights import BrokerRights
        from triagemq.coordinator.access.tokens import TokenFile

        rights = BrokerRights(own, TokenFile(given.tokens))
        stack.push_async_callback(rights.close)
        await rights.start()
    stack.push_async_callback(own.stop)
    await own.start()
    return own


def _say_ready(
    given: GatewayOptions,
    listen: str,
    front: str | None,
    broker: BrokerAddress,
    broker_reached: bool,
    security: ServerSecurity | None,
) -> None:
    certificate = None if security is None else str(security.files[0])
    if given.json:
        facts = {
            "ready": True,
            "listen": listen if certificate is None else f"mqttsns://{listen}",
            "certificate": certificate,
            "front": _front_url(given, front),
            "broker": str(broker),
            "broker_reached": broker_reached,
        }
        typer.echo(json_format.dumps(facts))
        return
    where = f"udp {listen}" if certificate is None else f"mqttsns://{listen} (certificate {certificate})"
    name, led = ("", "") if given.join is None else (f" {given.name}", f", joins {given.join}")
    also = "" if front is None else f", front {_front_url(given, front)}"
    typer.echo(f"gateway{name} ready on {where}{also}, broker {broker}{led}")


def _front_url(given: GatewayOptions, front: str | None) -> str | None:
    return None if front is None else f"{'mqtt' if given.front_tls is None else 'mqtts'}://{front}"


def _print_counters(running: Gateway, as_json: bool) -> None:
    counters = running.core.counters.as_json() | {"sessions": len(running.core.sessions)}
    typer.echo(json_format.dumps(counters) if as_json else terminal.in_words("counters", counters))


def _mapping(file: Path, kind: Any) -> dict[Any, Any]:
    """ParameterError without lines and values of the file: it may be another, with a password."""
    import yaml
    from pydantic import TypeAdapter, ValidationError

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        return TypeAdapter[dict[Any, Any]](kind).validate_python(found, strict=True)
    except (OSError, UnicodeDecodeError) as error:
        problem = str(error).replace("\n", " ")
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        problem = f"is not YAML: {error.problem}{line}"
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        problem = ": ".join([*(repr(part) for part in first["loc"][:1]), first["msg"]])
    raise ParameterError(str(file), problem)
