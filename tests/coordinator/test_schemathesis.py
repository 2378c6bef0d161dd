"""Requests made up from the OpenAPI description: whatever is sent, the coordinator has an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.coordinator.coordinating import (
    FakeLink,
    database_in,
    make_coordinator,
    publisher,
    running,
    served,
    subscriber,
)

from triagemq.coordinator.api import create_app

CHECKS = (
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    content_type_conformance,
)
QUIET = [
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
]


def _description() -> dict[str, Any]:
    with TemporaryDirectory() as directory:
        coordinator = make_coordinator(database_in(Path(directory)), FakeLink())
        found: dict[str, Any] = create_app(coordinator).openapi()
        coordinator.service.store.close_now()
        return found


schema = schemathesis.openapi.from_dict(_description())


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A coordinator on a real socket with something in it, in a thread of its own."""
    ready: list[str] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with running(tmp_path_factory.mktemp("schema")) as here, served(here.app) as place:
            await here.client.post("/v1/publishers", json=publisher("p", "a/1", "a/2", lease_seconds=3600))
            await here.client.post("/v1/subscribers", json=subscriber("s", "a/+", lease_seconds=3600))
            await here.settled()
            ready.append(f"http://{place}")
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(60)
    yield ready[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join(60)
    loop.close()


def _try(case: Any, address: str) -> None:
    case.query.pop("wait_seconds", None) if isinstance(case.query, dict) else None
    case.call_and_validate(base_url=address, checks=CHECKS, timeout=60)


@schema.parametrize()
@settings(
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=QUIET,
    phases=[Phase.explicit, Phase.generate],
)
def test_every_request_has_an_answer(case: Any, address: str) -> None:
    _try(case, address)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@schema.parametrize()
@settings(max_examples=500, derandomize=True, database=None, deadline=None, suppress_health_check=QUIET)
def test_very_many_requests_have_answers(case: Any, address: str) -> None:
    _try(case, address)
