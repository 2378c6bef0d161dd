"""The coordinator's process: `python -m triagemq.coordinator.serve CONFIG.json`.

Prints one JSON line when it is ready: {"ready": true, "address": "http://127.0.0.1:8080", "page": null}. Ends cleanly
on SIGTERM and Ctrl-C; killed at any moment, it goes on from its database. With a page for people it is
`triagemq.page.serve`, which says under `page` where that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import uvicorn
from fastapi import FastAPI

from triagemq.addresses import place
from triagemq.certificates import LOOK_EVERY_SECONDS, RenewalWatch
from triagemq.child import LogLimit
from triagemq.coordinator.api import create_app
from triagemq.coordinator.api.requests import (
    GATEWAY_MESSAGE_BYTES,
    ConnectionListener,
    Connections,
    WebSocketProtocol,
    http_protocol,
    most_connections,
)
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import listening_at
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.decide import NO_SWITCHES, PlannerSettings
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.settings import Settings, check_listening, load_settings
from triagemq.coordinator.store.store import Store
from triagemq.dtls import RECORD_BYTES
from triagemq.errors import ParameterError, TriageError
from triagemq.exchange.private_files import PRIVATE_UMASK
from triagemq.plan.planner import algorithms
from triagemq.scenario import load
from triagemq.waiting import end

_log = logging.getLogger(__name__)


class Mounted(Protocol):
    """Something that was put into the application beside REST: where in it, and its end."""

    path: str

    async def close(self) -> None: ...


Mount = Callable[[FastAPI, Settings], Mounted | None]


async def serve(settings: Settings, mount: Mount | None = None) -> None:
    """Run until a signal ends it."""
    listening = _sockets(settings)
    for line in check_listening(settings):
        _log.warning(line)
    try:
        link = GatewayLink(settings.gateway_socket)
        coordinator = ControlPlane(
            settings, Store(settings.database), link, _network(settings), _planner(settings)
        )
        await coordinator.start()
        link.start(coordinator.gateway_connected)
        try:
            app = create_app(coordinator)
            mounted = None if mount is None else mount(app, settings)
            try:
                await _answer_requests(app, settings, listening, mounted)
            finally:
                if mounted is not None:
                    await mounted.close()
        finally:
            await coordinator.stop()
            await link.close()
    finally:
        for each in listening:
            each.close()


async def _answer_requests(
    app: FastAPI, settings: Settings, listening: list[socket.socket], mounted: Mounted | None
) -> None:
    connections = Connections(most_connections())
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=2,
        http=http_protocol(connections),
        ws=WebSocketProtocol,
        ws_max_size=GATEWAY_MESSAGE_BYTES,
    )
    config.load()
    server = _Server(config)
    loop = asyncio.get_running_loop()
    beside = [
        loop.create_task(_keep_renewing(config.ssl, settings)),
        loop.create_task(connections.keep_looking()),
    ]
    sockets: list[socket.socket] = [ConnectionListener(each, connections) for each in listening]
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.end)
    # What was loaded until now stays: looking through it for garbage again and again would delay answers.
    gc.collect()
    gc.freeze()
    serving = loop.create_task(server.serve(sockets=sockets))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        host, port = sockets[0].getsockname()[:2]
        scheme = "http" if settings.tls_certificate is None else "https"
        address = f"{scheme}://{place(host, port)}"
        page = None if mounted is None else f"{address}{mounted.path}"
        print(json.dumps({"ready": True, "address": address, "page": page}), flush=True)
    try:
        await serving
    finally:
        await end(*beside)


async def _keep_renewing(context: ssl.SSLContext | None, settings: Settings) -> None:
    """A renewed certificate serves connections that begin later; those that are there go on."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if context is None or certificate is None or key is None:
        return

    def load() -> None:
        # Into another one first: what fails half-way would leave this one with a key that does not fit.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        context.load_cert_chain(certificate, key)

    watch = RenewalWatch([certificate, key], load, _log.warning)
    while True:
        await asyncio.sleep(LOOK_EVERY_SECONDS)
        watch.look()


class _Server(uvicorn.Server):
    """Signals are handled outside, so that one handler sees to everything."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        self.should_exit = True


def _sockets(settings: Settings) -> list[socket.socket]:
    """Bound before anything else is opened: a port that is taken is found out at once."""
    return [
        _socket(settings),
        *([] if settings.unix_socket is None else [_unix_socket(settings.unix_socket)]),
    ]


def _unix_socket(path: str) -> socket.socket:
    try:
        return listening_at(Path(path))
    except OSError as error:
        raise ParameterError("unix_socket", f"{path}: {error.strerror or error}") from None


def _socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host.strip("[]"), settings.port))
    except OSError as error:
        listening.close()
        raise ParameterError(
            "--rest",
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; "
            "choose another --rest HOST:PORT",
        ) from None
    return listening


def _network(settings: Settings) -> Network:
    # What every packet of the gateway takes on the wire beside its event.
    record_bytes = RECORD_BYTES if settings.gateway_address.startswith("mqttsns://") else 0
    if settings.network is not None:
        scenario = load(settings.network)
        return Network(replace(scenario, overhead_bytes=scenario.overhead_bytes + record_bytes))
    plain = Network.plain(settings.bandwidth_bps, settings.buffer_packets).scenario
    return Network(replace(plain, overhead_bytes=settings.overhead_bytes + record_bytes))


def _planner(settings: Settings) -> PlannerSettings:
    named = settings.planner
    # Now, not when the first subscriber comes.
    algorithms(**asdict(named))
    if settings.no_triage:
        return PlannerSettings.no_triage()
    return PlannerSettings(
        **asdict(named),
        priority_classes=settings.priority_classes,
        no_promises="" if settings.promises else NO_SWITCHES,
    )


def main(mount: Mount | None = None) -> None:
    """Run with the configuration file named on the command line."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    if len(sys.argv) != 2:
        sys.exit("usage: python -m triagemq.coordinator.serve CONFIG.json")
    try:
        asyncio.run(serve(load_settings(sys.argv[1]), mount))
    except TriageError as error:
        print(f"coordinator: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    os.umask(PRIVATE_UMASK)
    main()
