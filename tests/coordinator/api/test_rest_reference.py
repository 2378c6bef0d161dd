"""docs/reference/rest.md and the server say the same: paths, methods, parameters, fields, statuses, metrics."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.coordinator.coordinating import Running, publisher, running, served, subscriber

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "rest.md").read_text()
OPERATION = re.compile(r"`(GET|PUT|POST|DELETE) (/[^`?\s]*)(?:\?([^`]*))?`")
EVERY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@pytest.fixture(scope="module")
def description(seen: dict[str, Any]) -> dict[str, Any]:
    """What the server says of itself."""
    found: dict[str, Any] = seen["description"]
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one coordinator answers to every method on every path, and to what the page shows."""

    async def run() -> dict[str, Any]:
        directory = tmp_path_factory.mktemp("reference")
        async with (
            running(directory) as here,
            served(here.app) as address,
            httpx.AsyncClient(base_url=f"http://{address}") as client,
        ):
            await here.client.post("/v1/publishers", json=publisher("p", "a"))
            await here.client.post("/v1/subscribers", json=subscriber("s", "a"))
            await here.settled()
            description = here.app.openapi()
            return {
                "description": description,
                "metrics": (await here.client.get("/metrics")).text,
                "methods": {
                    path: await _methods(client, path) for path in (*description["paths"], "/openapi.json")
                },
                "example": await _example(here),
                "elsewhere": await here.client.options("/v1/nothing"),
            }

    return asyncio.run(run())


async def _methods(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """Every method there is, on a path about something that is not there: asking changes nothing."""
    place = path.replace("{name}", "nobody").replace("{token_id}", "none")
    return {method: await client.request(method, place) for method in EVERY_METHOD}


async def _example(here: Running) -> list[Any]:
    """The subscriber that the page shows, announced and read again."""
    shown = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1])  # type: ignore[index]
    shown["port"] = "port"
    said = await here.client.post("/v1/subscribers", json=shown)
    return [shown, said, await here.client.get(f"/v1/subscribers/{shown['name']}")]


def _described(description: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    }


def _on_page() -> dict[tuple[str, str], tuple[set[str], str]]:
    """Each operation as OpenAPI would write it: its query parameters, and the line on which it stands."""
    found = {}
    for line in PAGE.splitlines():
        for method, path, query in OPERATION.findall(line):
            place = "/v1/tokens/{token_id}" if path == "/v1/tokens/ID" else path.replace("NAME", "{name}")
            found[method, place] = {part.partition("=")[0] for part in query.split("&") if part}, line
    return found


def test_the_page_has_every_operation_and_no_other(description: dict[str, Any]) -> None:
    assert set(_on_page()) - {("GET", "/openapi.json")} == set(_described(description))


def test_the_page_has_every_parameter_and_every_status(description: dict[str, Any]) -> None:
    page = _on_page()
    for key, operation in _described(description).items():
        parameters, line = page[key]
        assert parameters == {
            each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"
        }, key
        good = {status for status in operation["responses"] if status.startswith("2")} - {"200"}
        assert all(re.search(rf"\b{status}\b", line) for status in good), (key, good)
    refusals = {
        status
        for operation in _described(description).values()
        for status in operation["responses"]
        if status.startswith(("4", "5"))
    }
    refused = PAGE[PAGE.index("A request that is refused") : PAGE.index("A refused request")]
    assert set(re.findall(r"\b[45]\d\d\b", refused)) == refusals


def test_the_page_has_every_field_that_can_be_sent(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    bodies = [operation.get("requestBody") for operation in _described(description).values()]
    sent: set[str] = set()
    named = set(_named(bodies))
    while named:
        sent |= named
        named = {each for name in named for each in _named(schemas[name])} - sent
    assert len(sent) >= 16
    said = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`|```json.*?```", PAGE, re.DOTALL))))
    for name in sent:
        assert set(schemas[name].get("properties") or schemas[name]["enum"]) <= said, name


def _named(described: object) -> set[str]:
    """The schemas that a part of the description refers to."""
    return set(re.findall(r"#/components/schemas/(\w+)", json.dumps(described)))


def test_the_page_has_every_metric_and_no_other(seen: dict[str, Any]) -> None:
    section = PAGE[PAGE.index("## Metrics") : PAGE.index("## When the database")]
    listed = {name for line in section.splitlines() for name in re.findall(r"`(triage_\w+)`", line)}
    assert listed == set(re.findall(r"^# TYPE (\w+)", seen["metrics"], re.MULTILINE))


def test_what_the_page_shows_is_taken_and_read_again(seen: dict[str, Any]) -> None:
    shown, said, read = seen["example"]
    assert said.status_code == 201, said.text
    assert read.json()["flows"] == shown["flows"]
    assert [each["topic"] for each in read.json()["subscriptions"]] == [
        each["topic"] for each in shown["subscriptions"]
    ]


def test_allow_is_right_on_every_path(seen: dict[str, Any], description: dict[str, Any]) -> None:
    for path, answers in seen["methods"].items():
        own = {method.upper() for method in description["paths"].get(path, ("get",))}
        wanted = own | {"OPTIONS"} | ({"HEAD"} if "GET" in own else set())
        for method, answer in answers.items():
            if method in wanted - {"OPTIONS"}:
                assert answer.status_code != 405, (method, path)
                continue
            assert set(answer.headers["allow"].split(", ")) == wanted, (method, path)
            if method == "OPTIONS":
                assert (answer.status_code, answer.content) == (204, b""), path
            else:
                assert answer.status_code == 405, (method, path)
                assert method == "HEAD" or f"{method} is nothing that /" in answer.json()["detail"]
    assert seen["elsewhere"].status_code == 404


def test_head_is_get_without_content(seen: dict[str, Any]) -> None:
    tried = 0
    for path, answers in seen["methods"].items():
        head, get = answers["HEAD"], answers["GET"]
        if get.status_code == 405:
            continue
        tried += 1
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers["content-type"] == get.headers["content-type"], path
        if path not in ("/v1/health", "/metrics"):  # Their figures change as time goes on.
            assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))
    assert tried >= 15
