"""`triage gateway`: the MQTT-SN gateway alone, for any broker."""

from __future__ import annotations

import asyncio
import gc
import json as json_format
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.addresses import host_and_port, place
from triagemq.cli import options
from triagemq.cli.options import print_json
from triagemq.cli.stopping import stop_on_signals
from triagemq.errors import ParameterError
from triagemq.hiding import without_key
from triagemq.waiting import end

if TYPE_CHECKING:
    from triagemq.coordinator.access.tokens import TokenRules
    from triagemq.dtls import ServerSecurity
    from triagemq.exchange import BrokerAddress, BrokerProcess, Gateway, GatewaySettings, LiveTrace, Numbers

_LOOK_SECONDS = 0.5


def gateway(
    broker: Annotated[
        str | None,
        typer.Option(
            envvar="TRIAGE_BROKER",
            help="mqtt://[USER:PASSWORD@]HOST[:PORT], or mqtts:// for TLS (default: one of its own).",
        ),
    ] = None,
    broker_ca: options.BrokerAuthority = None,
    listen: Annotated[str, typer.Option(help="UDP address to listen on, HOST:PORT.")] = "127.0.0.1:10000",
    gateway_id: Annotated[int, typer.Option("--id", min=0, max=255, help="Number of this gateway.")] = 1,
    state: Annotated[
        Path | None, typer.Option(help="Directory in which sessions survive a restart (default: none do).")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="aggregating: one broker connection; transparent: one for each client.")
    ] = "aggregating",
    predefined: Annotated[
        Path | None, typer.Option(help="YAML file of predefined topics, topic id: topic name.")
    ] = None,
    priorities: Annotated[
        Path | None, typer.Option(help="YAML file of priority classes, topic filter: class (0 is first).")
    ] = None,
    credentials: Annotated[
        Path | None,
        typer.Option(help="YAML file for transparent mode, client id: {user: ..., password: ...}."),
    ] = None,
    buffer: Annotated[
        int, typer.Option(min=1, help="Messages stored for a client that sleeps or is away.")
    ] = 10_000,
    clients_per_address: Annotated[
        int, typer.Option(min=1, help="Clients that may be at one IP address (loopback: 20,000 or more).")
    ] = 10_000,
    clients_per_forwarder: Annotated[
        int, typer.Option(min=1, help="Wireless nodes that one forwarder may bring.")
    ] = 1_000,
    broker_loss: Annotated[
        str, typer.Option(help="What clients get when the broker stays away: disconnect, or keep.")
    ] = "disconnect",
    advertise: Annotated[
        str | None, typer.Option(help="HOST:PORT to send ADVERTISE to, a broadcast or multicast address.")
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Take publication times from messages that carry them.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write what happens as a Trace into this directory.")
    ] = None,
    dtls: Annotated[
        bool,
        typer.Option("--dtls", help="Encrypt MQTT-SN; without --tls-certificate with one of its own making."),
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate of the gateway (PEM); turns --dtls on.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    client_ca: options.ClientAuthority = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="Let in only who has a token of this file (`triage token create --file` makes it)."
        ),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(help="http(s)://HOST:PORT of a coordinator that leads this gateway beside others."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="With --join: what it is called there.")] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="TRIAGE_TOKEN", help="With --join: a token of role gateway, where access is on."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="With --join https://: certificate of the authority to trust.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without tokens or encryption.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Run an MQTT-SN gateway until Ctrl-C. Signal USR1 prints its counters."""
    from triagemq.exchange import (
        BrokerLoss,
        Credentials,
        GatewaySettings,
        LiveTrace,
        Mode,
        Numbers,
        Policy,
    )
    from triagemq.exchange.exposure import Exposed, check_listeners
    from triagemq.exchange.private_files import private_directory

    if join is None and (name is not None or ca is not None):
        raise ParameterError("--name" if name is not None else "--ca", "goes with --join URL")
    others = {
        "--predefined": predefined,
        "--priorities": priorities,
        "--credentials": credentials,
        "--tokens": tokens,
    }
    for option, given in (others | {"--mode": mode != "aggregating"}).items():
        if join is not None and given:
            raise ParameterError(option, "goes without --join: the coordinator says who gets what")
    here = host_and_port(listen, "--listen", lowest_port=0)
    warnings = check_listeners(
        [
            Exposed(
                "MQTT-SN",
                "--listen",
                here[0],
                tokens=None if tokens or (join and token) else "--token" if join else "--tokens FILE",
                encryption=None if dtls or tls_certificate is not None else "--dtls",
            )
        ],
        insecure=insecure,
    )
    if broker is None and broker_ca is not None:
        raise ParameterError("--broker-ca", "goes with --broker mqtts://HOST")
    address = None if broker is None else options.broker_address(broker, broker_ca)
    if join is not None:
        if name is None:
            raise ParameterError("--join", "needs --name NAME: what the coordinator calls this gateway")
        if state is None:
            raise ParameterError("--join", "needs --state DIRECTORY: its desired state survives a restart")
        private_directory(state, "--state")
        for line in warnings:
            typer.echo(line, err=True)
        security = _security(dtls, tls_certificate, tls_key, client_ca, state, here[0])
        files = () if security is None else tuple(str(each) for each in security.files)
        config = {
            "listen": listen,
            "state": str(state / "gateway"),
            "control": str(state / "control.sock"),
            "trace": None if trace is None else str(trace),
            "timestamps": timestamps,
            "gateway_id": gateway_id,
            "access": "open" if token is None else "required",
            "name": name,
            "join": join,
            "token": token,
            "join_authority": None if ca is None else str(ca),
            **dict(zip(("certificate", "private_key", "client_authority"), files, strict=False)),
        }
        _print_end(gateway_id, asyncio.run(_serve_joined(config, address, state / "broker", json)), json)
        return
    ranked = [] if priorities is None else list(_mapping(priorities, str, int).items())
    ranks_and_limits: dict[str, Any] = {
        "priorities": ranked,
        "lowest_class": 1 + max((number for _, number in ranked), default=-1),
        "maximum_clients_per_address": clients_per_address,
        "maximum_clients_per_forwarder": clients_per_forwarder,
    }
    policy, rules = Policy(**ranks_and_limits), None
    if tokens is not None:
        from triagemq.coordinator.access.tokens import TokenPolicy, TokenRules

        if mode != Mode.AGGREGATING:
            raise ParameterError(
                "--tokens", "is for aggregating mode: in the other one the broker sees client ids"
            )
        rules = TokenRules(tokens)
        policy = TokenPolicy(rules=rules, **ranks_and_limits)
    settings = GatewaySettings(
        gateway_id=gateway_id,
        mode=_choice("--mode", mode, Mode),
        broker_client_id=f"triage-gateway-{gateway_id}",
        predefined_topics={} if predefined is None else _mapping(predefined, int, str),
        policy=policy,
        credentials={
            client_id: Credentials(str(login.get("user", client_id)), login.get("password"))
            for client_id, login in ({} if credentials is None else _mapping(credentials, str, dict)).items()
        },
        buffer_messages=buffer,
        broker_loss=_choice("--broker-loss", broker_loss, BrokerLoss),
        read_timestamps=timestamps,
    )
    numbers = Numbers() if rules is None else Numbers(without_key)
    live = None if trace is None else LiveTrace(trace, numbers)
    if state is not None:
        # Before certificate and broker have their own in it: directories that they make above are open to others.
        private_directory(state, "--state")
    security = _security(dtls, tls_certificate, tls_key, client_ca, state, here[0])
    everyone = None if advertise is None else host_and_port(advertise, "--advertise")
    try:
        counters = asyncio.run(
            _serve(settings, address, here, everyone, state, numbers, live, security, rules, warnings, json)
        )
    except BaseException as error:
        if live is not None:
            live.abort(f"{type(error).__name__}: {error}")
        raise
    _print_end(gateway_id, counters, json)


def _print_end(gateway_id: int, counters: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"gateway_id": gateway_id, "counters": counters})
    else:
        typer.echo(_summary(counters))


async def _serve(
    settings: GatewaySettings,
    address: BrokerAddress | None,
    listen: tuple[str, int],
    broadcast: tuple[str, int] | None,
    state: Path | None,
    numbers: Numbers,
    trace: LiveTrace | None,
    security: ServerSecurity | None,
    rules: TokenRules | None,
    warnings: Sequence[str],
    as_json: bool,
) -> dict[str, Any]:
    from triagemq.exchange import BrokerProcess, Gateway

    async with AsyncExitStack() as stack:
        own = None
        if address is None:
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="triage-broker-"))
            own = BrokerProcess(
                Path(temporary) if state is None else state / "broker", guarded=rules is not None
            )
            _let_in(own, rules)
            stack.push_async_callback(own.stop)
            await own.start()
            if own.warning:
                typer.echo(own.warning, err=True)
            address = own.address
            settings = replace(settings, broker_client_id=own.gateway_client_id)
        running = Gateway(
            settings,
            address,
            listen,
            state=state,
            numbers=numbers,
            trace=trace,
            broadcast=broadcast,
            broker_boot=None if own is None else own.boot_file,
            security=security,
        )
        if own is not None:
            running.core.on_subscriptions = own.save_soon
        stack.push_async_callback(running.close, tell_clients=state is None)
        await running.start()
        if rules is not None:
            following = asyncio.get_running_loop().create_task(_follow(rules, running, own))
            stack.callback(following.cancel)
        for line in warnings:
            typer.echo(line, err=True)
        # What was loaded until now stays: looking through it for garbage again and again would delay messages.
        gc.collect()
        gc.freeze()
        await _until_ended(running, str(address), as_json)
    return running.core.counters.as_json()


async def _serve_joined(
    config: dict[str, Any], address: BrokerAddress | None, own_state: Path, as_json: bool
) -> dict[str, Any]:
    """A gateway that a coordinator leads, beside a broker that is there or one of its own."""
    from triagemq.coordinator.gateway.config import GatewayConfig
    from triagemq.coordinator.gateway.process import serve
    from triagemq.exchange import BrokerProcess

    async with AsyncExitStack() as stack:
        if address is None:
            own = BrokerProcess(own_state)
            stack.push_async_callback(own.stop)
            await own.start()
            address = own.address
            config |= {"broker_client_id": own.gateway_client_id, "broker_boot": str(own.boot_file)}
        shown = str(address)

        def ready(*, listen: str, broker_reached: bool, **_: Any) -> None:
            if as_json:
                facts = {"ready": True, "listen": listen, "broker": shown, "broker_reached": broker_reached}
                typer.echo(json_format.dumps(facts))
            else:
                typer.echo(
                    f"gateway {config['name']} ready on udp {listen}, broker {shown}, led by {config['join']}"
                )

        return await serve(GatewayConfig(broker=address.with_password(), **config), stop_on_signals(), ready)


async def _follow(rules: TokenRules, running: Gateway, own: BrokerProcess | None) -> None:
    """A client whose token is revoked or expires is out; one with a new token is let in."""
    from triagemq.exchange.gateway.lifecycle import policy_changed

    behind = False
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if changed := rules.look():
            running.change(policy_changed)
        if own is not None and (changed or behind):
            try:
                _let_in(own, rules)
                behind = False
            except OSError as error:
                if not behind:
                    typer.echo(
                        f"the broker does not know the latest tokens yet: {error}; trying again", err=True
                    )
                behind = True


def _let_in(own: BrokerProcess, rules: TokenRules | None) -> None:
    if rules is not None:
        from triagemq.coordinator.access.rights import broker_users

        own.let_in(broker_users(rules.tokens, time.time_ns()))


async def _until_ended(running: Gateway, broker: str, as_json: bool) -> None:
    loop = asyncio.get_running_loop()
    ended = stop_on_signals()
    # Not through the loop, whose signal handling is that of `stopping` already.
    signal.signal(signal.SIGUSR1, lambda *_: loop.call_soon_threadsafe(_print_counters, running, as_json))
    ending = loop.create_task(ended.wait())
    reaching = loop.create_task(running.wait_for_broker(3.0))
    await asyncio.wait({ending, reaching}, return_when=asyncio.FIRST_COMPLETED)
    reaching.cancel()
    reached = running.broker_is_connected
    here = place(*running.address)
    certificate = None if running.security is None else str(running.security.files[0])
    if as_json:
        ready = {
            "ready": True,
            "listen": here if certificate is None else f"mqttsns://{here}",
            "certificate": certificate,
            "broker": broker,
            "broker_reached": reached,
        }
        typer.echo(json_format.dumps(ready))
    else:
        where = f"udp {here}" if certificate is None else f"mqttsns://{here} (certificate {certificate})"
        typer.echo(f"gateway ready on {where}, broker {broker}")
    telling = loop.create_task(
        running.tell_broker_problems(lambda words: typer.echo(f"triage: {words}", err=True))
    )
    waiting: set[asyncio.Task[Any]] = {ending, loop.create_task(running.wait())}
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await end(*pending, telling)
    for task in done:
        task.result()


def _security(
    dtls: bool,
    certificate: Path | None,
    key: Path | None,
    client_authority: Path | None,
    state: Path | None,
    host: str,
) -> ServerSecurity | None:
    if not dtls and certificate is None and key is None:
        if client_authority is not None:
            raise ParameterError("--client-ca", "goes with --dtls or --tls-certificate")
        return None
    from triagemq.certificates import own_certificate
    from triagemq.dtls import ServerSecurity

    if certificate is None and key is None:
        certificate, key = own_certificate(
            (Path("out/gateway") if state is None else state) / "certificate", [host]
        )
    if certificate is None or key is None:
        raise ParameterError("--tls-certificate", "and --tls-key belong together: give both or none")
    return ServerSecurity(certificate, key, client_authority=client_authority)


def _print_counters(running: Gateway, as_json: bool) -> None:
    counters = running.core.counters.as_json() | {"sessions": len(running.core.sessions)}
    typer.echo(json_format.dumps(counters) if as_json else _summary(counters))


def _summary(counters: dict[str, Any]) -> str:
    parts = []
    for name, value in counters.items():
        if isinstance(value, dict):
            parts += [f"{name} ({reason}) {count:,}" for reason, count in sorted(value.items())]
        elif value:
            parts.append(f"{name.replace('_', ' ')} {value:,}")
    return "; ".join(parts) or "nothing happened"


def _choice(option: str, text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        known = " or ".join(kind)
        raise ParameterError(option, f"must be {known}, is {text!r}") from None


def _mapping(file: Path, key_kind: type, value_kind: type) -> dict[Any, Any]:
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(str(file), str(error).replace("\n", " ")) from None
    except yaml.YAMLError as error:
        raise ParameterError(str(file), _mistake(error)) from None
    if not isinstance(found, dict):
        raise ParameterError(str(file), "must be a mapping, one `name: value` a line")
    for key, value in found.items():
        if not isinstance(key, key_kind) or not isinstance(value, value_kind):
            wanted = f"{key_kind.__name__}: {value_kind.__name__}"
            # Not the value: it may be a password.
            raise ParameterError(str(file), f"{key!r}: {type(value).__name__} is not {wanted}")
    return found


def _mistake(error: Any) -> str:
    """What is wrong and where, without the line itself, which may hold a password."""
    mark = getattr(error, "problem_mark", None)
    words = " ".join(str(part) for part in (error.context, error.problem) if part)
    return words if mark is None else f"{words} in line {mark.line + 1}"
