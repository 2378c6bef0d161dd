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
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
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


OPERATIONS = [found.ok() for found in schema.get_all_operations()]


def try_many(operation: Any, address: str, mode: GenerationMode, examples: int) -> None:
    """Requests to one address: such as fit the description, or such as do not."""

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(operation.as_strategy(generation_mode=mode))
    def attempt(case: Any) -> None:
        if case.query:
            case.query.pop("wait_seconds", None)
        case.call_and_validate(base_url=address, checks=CHECKS, timeout=60)

    try:
        attempt()
    except Unsatisfiable:
        # What has no parameters and no body cannot be asked for wrongly.
        assert mode == GenerationMode.NEGATIVE


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_every_request_has_an_answer(operation: Any, mode: GenerationMode, address: str) -> None:
    try_many(operation, address, mode, 6)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_very_many_requests_have_answers(operation: Any, mode: GenerationMode, address: str) -> None:
    try_many(operation, address, mode, 300)


def test_the_whole_interface_is_tried() -> None:
    assert len(OPERATIONS) == len({operation.label for operation in OPERATIONS}) >= 29
