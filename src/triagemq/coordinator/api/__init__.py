"""REST under /v1: the coordinator as an ASGI application."""

from __future__ import annotations

from fastapi import FastAPI

from triagemq import __version__
from triagemq.coordinator.api import gateways, intents, policy, views
from triagemq.coordinator.api.requests import REFUSALS, BodyLimit, OriginCheck, refuse_in_words
from triagemq.coordinator.control_plane import ControlPlane

__all__ = ["create_app"]


def create_app(coordinator: ControlPlane) -> FastAPI:
    """The application for a coordinator that its caller starts and stops."""
    app = FastAPI(
        title="TriageMQ coordinator",
        version=__version__,
        summary="Who wants which events how much, and what the network does about it.",
        # The pages that FastAPI offers load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        responses=REFUSALS,
    )
    app.state.coordinator = coordinator
    refuse_in_words(app)
    app.state.routes = list(app.routes)
    for router in (intents.router, views.router, views.operators, policy.router, gateways.router):
        app.include_router(router)
        app.state.routes += router.routes
    app.add_middleware(BodyLimit, most_bytes=coordinator.settings.most_body_bytes)
    app.add_middleware(
        OriginCheck, names=coordinator.settings.host_names, check_host=not coordinator.service.access
    )
    return app
