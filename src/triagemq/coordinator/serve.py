"""The coordinator's process: `python -m triagemq.coordinator.serve CONFIG.json`.

Prints one JSON line when it is ready: {"ready": true, "address": "http://127.0.0.1:8080", "page": null}. Ends cleanly
on SIGTERM and Ctrl-C; killed at any moment, it goes on from its database. With a page for people it is
`triagemq.page.serve`, which says under `page` where that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import uvicorn
from fastapi import FastAPI

from triagemq.addresses import place
from triagemq.certificates import LOOK_EVERY_SECONDS, RenewalWatch
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import listening_at
from triagemq.child import LogLimit, run_child, say_ready
from triagemq.coordinator.api import create_app
from triagemq.coordinator.api.requests import (
    BACKLOG,
    GATEWAY_MESSAGE_BYTES,
    ConnectionListener,
    Connections,
    WebSocketProtocol,
    http_protocol,
    most_connections,
)
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.settings import Settings, check_listening
from triagemq.coordinator.store import Store
from triagemq.dtls import RECORD_BYTES
from triagemq.errors import ParameterError
from triagemq.files import PRIVATE_UMASK
from triagemq.plan.planner import algorithms
from triagemq.scenario import load_with_conditions
from triagemq.waiting import end

_log = logging.getLogger(__name__)


class Mounted(Protocol):
    """A part of the application besides REST: where in it, and its end."""

    path: str

    async def close(self) -> None: ...


Mount = Callable[[FastAPI, Settings], Mounted | None]


async def serve(settings: Settings, mount: Mount | None, ended: asyncio.Event) -> None:
    """Run until the event is set."""
    listening = _sockets(settings)
    for line in check_listening(settings):
        _log.warning(line)
    try:
        link = GatewayLink(settings.gateway_socket)
        # Load the planner now, not when the first subscriber comes.
        algorithms(settings.planner.flows, settings.planner.priorities, settings.planner.drops)
        coordinator = ControlPlane(settings, Store(settings.database), link, _network(settings))
        await coordinator.start()
        link.start(coordinator.gateway_connected)
        try:
            app = create_app(coordinator)
            mounted = None if mount is None else mount(app, settings)
            try:
                await _answer_requests(app, settings, listening, mounted, ended)
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
    app: FastAPI,
    settings: Settings,
    listening: list[socket.socket],
    mounted: Mounted | None,
    ended: asyncio.Event,
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
        backlog=BACKLOG,
        http=http_protocol(connections),
        ws=WebSocketProtocol,
        ws_max_size=GATEWAY_MESSAGE_BYTES,
    )
    config.load()
    server = _Server(config)
    sockets: list[socket.socket] = [ConnectionListener(each, connections) for each in listening]
    # Loaded modules are no garbage: collections that looked through them would delay answers.
    gc.collect()
    gc.freeze()
    loop = asyncio.get_running_loop()
    serving = loop.create_task(server.serve(sockets=sockets))
    others = [
        loop.create_task(each)
        for each in (_keep_renewing(config.ssl, settings), connections.keep_looking(), ended.wait())
    ]
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            host, port = sockets[0].getsockname()[:2]
            scheme = "http" if settings.tls_certificate is None else "https"
            address = f"{scheme}://{place(host, port)}"
            say_ready(address=address, page=None if mounted is None else f"{address}{mounted.path}")
        await asyncio.wait([serving, others[-1]], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        await end(*others)


async def _keep_renewing(context: ssl.SSLContext | None, settings: Settings) -> None:
    """A renewed certificate serves connections that begin later; those that are there go on."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if context is None or certificate is None or key is None:
        return

    def load() -> None:
        # Into another context first: a failure in between would leave this one with a key that does not fit.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        context.load_cert_chain(certificate, key)

    watch = RenewalWatch([certificate, key], load, _log.warning)
    while True:
        await asyncio.sleep(LOOK_EVERY_SECONDS)
        watch.look()


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _sockets(settings: Settings) -> list[socket.socket]:
    """Bound before anything else is opened: a port that is taken is found at once."""
    host, unix = settings.host.strip("[]"), settings.unix_socket
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = [socket.create_server((host, settings.port), family=family)]
    except OSError as error:
        what = f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        raise ParameterError("--rest", f"{what}; choose another --rest HOST:PORT") from None
    try:
        return listening if unix is None else [*listening, listening_at(Path(unix))]
    except OSError as error:
        raise ParameterError("unix_socket", f"{unix}: {error.strerror or error}") from None


def _network(settings: Settings) -> Network:
    # What every packet of the gateway takes on the wire besides its event.
    record_bytes = RECORD_BYTES if settings.gateway_address.startswith("mqttsns://") else 0
    if settings.network is not None:
        scenario, conditions = load_with_conditions(settings.network)
        sealed = replace(scenario, overhead_bytes=scenario.overhead_bytes + record_bytes)
        return Network(sealed, phases=conditions.profiles)
    plain = Network.plain(settings.bandwidth_bps, settings.buffer_packets).scenario
    return Network(replace(plain, overhead_bytes=settings.overhead_bytes + record_bytes))


def main(mount: Mount | None = None) -> int:
    """Run with the configuration file named on the command line."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    return run_child(
        "triagemq.coordinator.serve", Settings, lambda settings, ended: serve(settings, mount, ended)
    )


if __name__ == "__main__":
    os.umask(PRIVATE_UMASK)
    sys.exit(main())
