"""The sources of a stream: the runs of a live trace, or of several, as they appear; or the messages of a broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from triagemq.errors import ParameterError, PipelineError
from triagemq.hiding import without_password
from triagemq.mqttsn.topics import valid_topic_filter
from triagemq.pipeline.inputs import read_scenario
from triagemq.pipeline.store import Location
from triagemq.trace.manifest import INCOMPLETE_NAME, MANIFEST_NAME, SCENARIO_NAME


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run, and the options of its source; `topics` are names by number, if the run has them."""

    run_id: str
    source: str
    format: str
    options: Mapping[str, str]
    topics: tuple[str, ...] | None = None


class TraceRuns:
    """The run in a directory, or the runs directly in it.

    `source` is the one of the table's settings, `inputs` are places that the output must not be in.
    """

    def __init__(self, place: Location) -> None:
        if not place.is_directory():
            raise ParameterError(place.given, "is a file; a live trace is a directory")
        self._place = place
        self._known: dict[str, str] = {}
        self.source = place.url if place.local is None else str(place.local)
        self.inputs: Sequence[str | Path] = (place.given,)

    def found(self) -> list[FoundRun]:
        """New ones, by name; an error if two hold the same run."""
        if (self._place / "publications").exists():
            names = {"": self._place}
        else:
            names = {name: self._place / name for name in self._place.directories()}
        new = []
        for name, place in names.items():
            if name not in self._known and (not name or (place / "publications").exists()):
                run = _run(place)
                for other, run_id in self._known.items():
                    if run_id == run.run_id:
                        raise PipelineError(
                            f"{self.source}: {other} and {name} hold the same run {run_id}; remove one of them"
                        )
                self._known[name] = run.run_id
                new.append(run)
        return new


class BrokerRuns:
    """All messages of a broker as one run without an end: `mqtt://[user:password@]host[:port][/filter]`.

    TLS files go behind a question mark, as for a gateway; `authority` is one of them. All topics, without a filter.
    """

    def __init__(self, url: str, authority: Path | None = None) -> None:
        from triagemq.broker.address import BrokerAddress

        # Not urlsplit: the # of a filter would begin a fragment.
        scheme, _, rest = url.partition("://")
        rest, question, options = rest.partition("?")
        place, _, topic_filter = rest.partition("/")
        self._filter = unquote(topic_filter) or "#"
        address = BrokerAddress.parse(f"{scheme}://{place}{question}{options}")
        if authority is not None:
            address = replace(address, ca=str(authority.absolute()))
        address.ssl_context()
        if not valid_topic_filter(self._filter):
            raise ParameterError(without_password(url), f"{self._filter!r} is no topic filter")
        self._address = address
        self._is_new = True
        self.source = f"{address}/{self._filter}"
        self.inputs: Sequence[str | Path] = ()

    def found(self) -> list[FoundRun]:
        """The one."""
        if not self._is_new:
            return []
        self._is_new = False
        # Spark hides what is called a secret.
        options = {"secret": self._address.with_password(), "filter": self._filter}
        return [FoundRun(self.source, self.source, "mqtt", options)]


def _run(place: Location) -> FoundRun:
    # Read twice: a run that finishes meanwhile has lost its INCOMPLETE after the first question.
    found: dict[str, Any] = {}
    for each in (MANIFEST_NAME, INCOMPLETE_NAME, MANIFEST_NAME):
        if not found and (place / each).exists():
            found = json.loads((place / each).read())
    scenario = read_scenario(place)[1] if (place / SCENARIO_NAME).exists() else None
    topics = None if scenario is None else tuple(scenario.topics.name)
    url = place.url if place.local is None else place.local.as_uri()
    return FoundRun(str(found.get("run_id") or place.name), place.given, "publications", {"url": url}, topics)
