"""`triage up`: a whole exchange on this machine, with a scenario's clients or for yours."""

from __future__ import annotations

import asyncio
import json as json_format
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.addresses import host_and_port
from triagemq.cli import options, terminal
from triagemq.cli.stopping import stop_on_signals
from triagemq.cli.terminal import percent, utility_line
from triagemq.errors import MissingDependencyError, ParameterError, TriageError
from triagemq.waiting import is_set_within

if TYPE_CHECKING:
    from triagemq.live.up.exchange import Exchange, ExchangeOptions
    from triagemq.live.up.run import LiveResult
    from triagemq.scenario import Scenario

PLAIN_PORT = "port"
"""The output port of an exchange without a scenario."""

_TICK_SECONDS = 1.0


_OF_ONE_RUN = (
    *("file", "seconds", "no_triage", "state", "other_broker", "insecure", "backup", "seed", "json"),
    # It is stored as a whole, and may be changed while the exchange runs.
    "policy",
)
"""Parameters that a state directory does not remember."""


def _as_before(context: typer.Context, state: Path | None) -> Path | None:
    """What was given when a state was made is the default when it is used again."""
    if state is not None:
        from triagemq.live.up.state import OWN_BROKER, started_with

        before = started_with(state)
        own = ("peer_broker",) if before.get("broker") != OWN_BROKER else ("peer_broker", "broker")
        context.default_map = {name: value for name, value in before.items() if name not in own}
    return state


def _given(context: typer.Context) -> dict[str, Any]:
    """The options that were given now or before, as they can be given again."""
    found = {name: value for name, value in context.params.items() if name not in _OF_ONE_RUN}
    sources = {name: context.get_parameter_source(name) for name in found}
    found = {name: found[name] for name, source in sources.items() if source and source.name != "DEFAULT"}
    return {name: str(each.absolute()) if isinstance(each, Path) else each for name, each in found.items()}


@options.with_groups
def up(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="Scenario whose network is used and whose clients run; none: bring your own."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", min=1, help="Stop after so many seconds (default: Ctrl-C).")
    ] = None,
    *,
    planning: options.ExchangePlanning,
    state: Annotated[
        Path | None,
        typer.Option(
            is_eager=True,
            callback=_as_before,
            help="Directory of everything it remembers, these options too (default: a new one under out/up).",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            envvar="TRIAGE_STORE",
            show_envvar=False,
            help="postgresql://... for what the coordinator remembers (default: TRIAGE_STORE, else in the state).",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Directory of the Trace (default: in the state).")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            help="Directory of `triage pipeline run --out`, for the page (default: tables in the state)."
        ),
    ] = None,
    gateway: Annotated[
        str,
        typer.Option(help="UDP address of the gateway, HOST:PORT."),
    ] = "127.0.0.1:10000",
    front: options.Front = None,
    front_tls: options.FrontTls = None,
    rest: Annotated[str, typer.Option(help="Address of the coordinator, HOST:PORT.")] = "127.0.0.1:8080",
    mqtt: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT where MQTT clients reach the built-in broker, TLS with --tls-certificate (default: "
            "as before with this --state, else any port of this machine)."
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            envvar="TRIAGE_BROKER",
            help="mqtt://[USER:PASSWORD@]HOST[:PORT] that runs, mqtts:// for TLS, or embedded (default: "
            "Mosquitto, else embedded).",
        ),
    ] = None,
    other_broker: Annotated[
        bool,
        typer.Option(
            "--other-broker",
            help="Go on with another --broker than this --state had, without what that one has stored.",
        ),
    ] = False,
    broker_ca: options.BrokerAuthority = None,
    peer_broker: Annotated[
        list[str] | None,
        typer.Option(
            "--peer-broker",
            "--beside",
            help="NAME=URL: where another broker of the FILE than the first runs (default: one of its own); may be "
            "repeated.",
        ),
    ] = None,
    balancing: Annotated[
        str, typer.Option(help="Who moves clients between several brokers: ours, peer or none.")
    ] = "ours",
    policy: Annotated[
        Path | None,
        typer.Option(
            help="Policy file: who may claim what (see the guide); it takes the place of the stored one (default: as "
            "before with this --state)."
        ),
    ] = None,
    most_worth: Annotated[
        float,
        typer.Option(
            min=1e-9,
            help="Without a --policy: what all subscriptions of a client may be worth together, whatever it claims.",
        ),
    ] = 1000.0,
    bandwidth: Annotated[
        float,
        typer.Option(min=1000, help="Without a FILE: bits a second of the port that subscribers share."),
    ] = 10e6,
    dataplane: Annotated[
        str, typer.Option(help="embedded: queues in the gateway; linux: kernel queues on --interface.")
    ] = "embedded",
    interface: Annotated[
        list[str] | None,
        typer.Option(help="PORT=NAME: the network interface of an output port (linux); may be repeated."),
    ] = None,
    access: Annotated[
        bool, typer.Option("--access/--no-access", help="Everyone needs a token (see `triage token`).")
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate of the coordinator (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    dtls: Annotated[
        bool,
        typer.Option(
            "--dtls/--no-dtls",
            help="Encrypt MQTT-SN, with that certificate, or without one of its own making.",
        ),
    ] = False,
    client_ca: options.ClientAuthority = None,
    advertise: Annotated[
        str | None,
        typer.Option(help="Host in the addresses that clients get (default: the one they reached REST by)."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without tokens or encryption.")
    ] = False,
    keep_trace: Annotated[
        float,
        typer.Option(
            parser=options.retention_seconds,
            metavar="TIME",
            help="Remove what was traced after this time, such as 12h, 7d or 5200w.",
        ),
    ] = "7d",  # type: ignore[assignment]
    backup: Annotated[
        Path | None,
        typer.Option(help="Copy the --state into this new directory, also while it is in use, and end."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Start broker, gateway and coordinator, and with a FILE its publishers and subscribers as real clients."""
    if backup is not None:
        _back_up(state, backup, json)
        return
    from triagemq.addresses import check_listeners
    from triagemq.broker.process import FurtherListener, previous_listener
    from triagemq.lab.clusters import BASELINES
    from triagemq.live.up.exchange import EMBEDDED_BROKER, ExchangeOptions
    from triagemq.live.up.state import OWN_BROKER, check_same_broker, fresh_directory, started_with
    from triagemq.plan.balancing.balancer import balancing_policy
    from triagemq.scenario import load

    settings = planning.settings()
    balancing_policy(BASELINES.get(balancing, balancing))
    scenario = None if file is None else load(file)
    ports = (PLAIN_PORT,) if scenario is None else scenario.ports.name
    brokers = () if scenario is None else scenario.brokers.name
    before = {} if state is None else started_with(state)
    remembered = before.get("peer_broker", before.get("beside", []))
    known = [word for word in remembered if word.partition("=")[0] in brokers[1:]]
    others = _peer_brokers(brokers, [*known, *(peer_broker or [])])
    if others and dataplane == "linux":
        raise ParameterError("--dataplane", "linux is for one gateway, and this scenario has several brokers")
    if state is not None and not other_broker:
        if broker is None and not before and (state / "lock").exists():
            raise ParameterError(
                "--broker",
                f"{state} was made by an earlier version with a broker that it does not name; give it",
            )
        check_same_broker(state, "--broker", before.get("broker"), broker)
        for name, url in _peer_brokers(brokers, known).items():
            check_same_broker(state, "--peer-broker", url, others[name])
    if policy is not None:
        _check_policy(policy, scenario)
    interfaces = _interfaces(dataplane, interface or [], ports)
    if client_ca is not None and not dtls:
        raise ParameterError("--client-ca", "goes with --dtls")
    rest_host, rest_port = host_and_port(rest, "--rest", lowest_port=0)
    host_and_port(gateway, "--gateway", lowest_port=0)
    front_files = options.front_files(front, front_tls)
    further = None
    if broker is not None and broker != EMBEDDED_BROKER:
        broker = options.broker_address(broker, broker_ca).with_password()
        if mqtt is not None:
            raise ParameterError("--mqtt", "is for the built-in broker; leave --broker away")
    elif broker_ca is not None:
        raise ParameterError("--broker-ca", "goes with --broker mqtts://HOST")
    else:
        listened = None if state is None else previous_listener(state / "broker")
        place = listened if mqtt is None else host_and_port(mqtt, "--mqtt")
        files = None if tls_certificate is None or tls_key is None else (tls_certificate, tls_key)
        if place is not None:
            further = FurtherListener(*place, *(str(each.absolute()) for each in files or ()))
    exchange = ExchangeOptions(
        state=state or Path(),
        scenario=file,
        trace=trace,
        tables=tables,
        gateway=gateway,
        front=front,
        front_files=front_files,
        rest_host=rest_host,
        rest_port=rest_port,
        broker=broker,
        store=store,
        policy=policy,
        keep_trace_seconds=keep_trace,
        **settings,
        coordinator={
            "access": access,
            "insecure": insecure,
            "balancing": BASELINES.get(balancing, balancing),
            "most_worth": most_worth,
            "tls_certificate": None if tls_certificate is None else str(tls_certificate.absolute()),
            "tls_key": None if tls_key is None else str(tls_key.absolute()),
            **({} if file is not None else {"bandwidth_bps": bandwidth}),
        },
        interfaces=interfaces,
        advertise=advertise,
        broker_listener=further,
        dtls=dtls,
        client_authority=client_ca,
        name=brokers[0] if others else "gateway",
        peer_brokers=others,
        started_with={
            "broker": OWN_BROKER,
            **_given(context),
            "peer_broker": [f"{name}={url}" for name, url in others.items() if url is not None],
        },
    )
    check_listeners(exchange.listeners(), insecure=insecure)
    if state is None:
        exchange = replace(exchange, state=fresh_directory(Path("out/up")))
    if file is None or interfaces:
        asyncio.run(_serve(exchange, seconds, json))
    else:
        result = asyncio.run(_run(exchange, seconds, json))
        _print_result(result, exchange, json)
        _require_all(result.gone)


def _check_policy(file: Path, scenario: Scenario | None) -> None:
    """It is valid, and its ports are those of the network."""
    from triagemq.coordinator.decide.network import Network
    from triagemq.coordinator.policy.files import load_policy
    from triagemq.coordinator.policy.in_force import check_ports

    network = Network.plain() if scenario is None else Network(scenario)
    check_ports(load_policy(file), network.port_names)


def _peer_brokers(brokers: Sequence[str], words: Sequence[str]) -> Mapping[str, str | None]:
    """The brokers of a scenario but the first, and where those run that are not to be started."""
    found: dict[str, str | None] = dict.fromkeys(brokers[1:])
    for word in words:
        name, _, url = word.partition("=")
        if name not in found:
            known = ", ".join(found) or "none"
            raise ParameterError(
                "--peer-broker", f"{name!r} is no other broker of the scenario; there are: {known}"
            )
        found[name] = options.broker_address(url, None).with_password()
    return found


def _back_up(state: Path | None, target: Path, as_json: bool) -> None:
    from triagemq.live.up.state import back_up

    if state is None:
        raise ParameterError("--backup", "needs --state, the directory to copy")
    asyncio.run(back_up(state, target))
    words = f"{state} is copied; go on from it with: triage up --state {target}"
    terminal.show({"state": str(state), "backup": str(target)}, words, as_json=as_json)


async def _run(exchange: ExchangeOptions, seconds: float | None, as_json: bool) -> LiveResult:
    from triagemq.live.up.run import run_live

    return await run_live(
        exchange,
        seconds=seconds,
        ended=stop_on_signals(),
        on_ready=lambda running: _say_ready(running, seconds, as_json),
        on_problem=terminal.say_problem,
    )


async def _serve(exchange: ExchangeOptions, seconds: float | None, as_json: bool) -> None:
    """Without a scenario: run until ended; the clients are others'."""
    from triagemq.live.up.exchange import Exchange

    ended = stop_on_signals()
    async with Exchange(exchange, ended, terminal.say_problem) as running:
        _say_ready(running, seconds, as_json)
        await is_set_within(ended, seconds)
    if running.kernel_ports is not None:
        _print_kernel_ports(running, as_json)
    if not as_json:
        typer.echo(f"trace: {running.trace}")
    _require_all(running.gone)


async def show_progress(running: Exchange, seconds: float | None, name: str = "running") -> None:
    """A bar on standard error: how long the exchange has been running, or its scenario's clients have."""
    with terminal.progress_bar(name, seconds) as show:
        while True:
            elapsed = running.elapsed_seconds
            restarts = [f"{name} {count}" for name, count in running.restarts.items() if count]
            again = f", started again: {', '.join(restarts)}" if restarts else ""
            show(elapsed, f"{elapsed:.0f} s{again}")
            await asyncio.sleep(_TICK_SECONDS)


def _require_all(gone: Sequence[str]) -> None:
    """What is left of an exchange goes on without one of its processes, but that is no success."""
    if gone:
        raise TriageError(gone[0])


def _print_kernel_ports(running: Exchange, as_json: bool) -> None:
    assert running.kernel_ports is not None
    figures = running.kernel_ports.figures()
    if as_json:
        terminal.print_json(figures | {"trace": str(running.trace)})
        return
    columns = {
        "port": "port",
        "priority_class": "class",
        "packets_out": "sent",
        "dropped_by_buffer": "dropped by buffer",
    }
    rows = [row | {"port": port["port"]} for port in figures["ports"] for row in port["classes"]]
    terminal.print_table("what the kernel's queues did", columns, rows)


def _interfaces(dataplane: str, words: Sequence[str], ports: Sequence[str]) -> dict[str, str]:
    """Of each output port, if the kernel has the queues."""
    if dataplane not in ("embedded", "linux"):
        raise ParameterError("dataplane", f"is {dataplane!r}; it is one of embedded, linux")
    if dataplane == "embedded":
        if words:
            raise ParameterError("interface", "is for kernel queues; add --dataplane linux")
        return {}
    from triagemq.live.up.kernel_ports import interfaces_of

    return interfaces_of(ports, words)


def _say_ready(running: Exchange, seconds: float | None, as_json: bool) -> None:
    for line in running.warnings:
        typer.echo(line, err=True)
    if as_json:
        facts = {
            "ready": True,
            "coordinator": running.rest,
            "page": running.page,
            "gateway": running.gateway,
            "gateway_certificate": None if running.certificate is None else str(running.certificate),
            "broker": running.broker_address,
            "front": running.front,
            **({"brokers": running.brokers} if len(running.brokers) > 1 else {}),
            "state": str(running.state),
            "trace": str(running.trace),
            "pids": running.pids,
        }
        # On standard error: standard output is for the one object at the end.
        figures_follow = running.options.scenario is not None or running.kernel_ports is not None
        typer.echo(json_format.dumps(facts), err=figures_follow)
        return
    gateway = running.gateway if running.options.dtls else f"udp {running.gateway}"
    front = "" if running.front is None else f"front {running.front}, "
    typer.echo(f"coordinator {running.rest}, gateway {gateway}, {front}broker {running.broker_address}")
    for name, address in list(running.brokers.items())[1:]:
        typer.echo(f"and gateway {name}, broker {address}")
    if running.certificate is not None and running.options.coordinator.get("tls_certificate") is None:
        typer.echo(f"gateway certificate, for trying out: {running.certificate} (clients: --ca)")
    no_page = f"no page: {MissingDependencyError('nicegui', 'page')}"
    typer.echo(f"page {running.page}" if running.page else no_page)
    typer.echo(f"state {running.state}; Ctrl-C ends it")
    if running.options.scenario is None:
        typer.echo("in another terminal:")
        for step in next_steps(running):
            typer.echo(f"  {step}")
    if terminal.screen(stderr=True).is_terminal:
        running.start_task(show_progress(running, seconds))


def _print_result(result: LiveResult, exchange: ExchangeOptions, as_json: bool) -> None:
    if as_json:
        report: dict[str, Any] = result.as_json()
        report |= {"trace": str(exchange.trace or exchange.state / "trace"), "triage": not exchange.no_triage}
        terminal.print_json(report)
        return
    how = (
        "without triage, by the class that triage would give"
        if exchange.no_triage
        else "measured beside forecast"
    )
    console = terminal.screen()
    print_comparison(result, f"{result.scenario.name}: {how}")
    promised = result.forecast.figures["utility"]["rate"]
    console.print(f"{utility_line(result.measured.utility)}, forecast {percent(promised)}", highlight=False)
    terminal.print_deadlines(result.measured.deadlines)
    for each in result.moved or ():
        typer.echo(f"{each['subject']} moved from {each['before']} to {each['after']}: {each['reason']}")
    restarted = [f"{name} {count} times" for name, count in result.restarts.items() if count]
    if restarted:
        console.print(f"started again: {', '.join(restarted)}", style="yellow")
    typer.echo(f"trace: {exchange.trace or exchange.state / 'trace'}")


def next_steps(running: Exchange) -> list[str]:
    """What to type in another terminal, where an exchange has no clients of its own."""
    whom = [] if running.rest == "http://127.0.0.1:8080" else ["--coordinator", running.rest]
    authority = running.options.coordinator.get("tls_certificate") or running.certificate
    whom += [] if authority is None else ["--ca", str(authority)]
    where = " ".join(whom)
    steps = [
        f"triage sub -t 'building/#' --utility log:10 {where}".rstrip(),
        f"triage pub -t building/3/smoke --rate 20 {where}".rstrip(),
    ]
    if running.options.coordinator.get("access"):
        steps.insert(
            0,
            "export TRIAGE_TOKEN=$(triage token create --role publisher --role subscriber --publish '#' "
            f"--subscribe '#' --state {running.state})",
        )
    return steps


def print_comparison(result: LiveResult, title: str) -> None:
    """Success and latency per class, measured and forecast, and what was dropped on purpose."""
    columns = {
        "priority_class": "class",
        "count": "copies",
        "success_rate": "success",
        "forecast_success_rate": "forecast",
        "dropped_by_policy": "dropped on purpose",
        "mean_latency_seconds": "mean latency",
        "forecast_mean_latency_seconds": "forecast",
        "p99_seconds": "p99",
    }
    terminal.print_table(
        title, columns, terminal.join_classes(result.measured.classes, forecast=result.forecast.by_level)
    )
