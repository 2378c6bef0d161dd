"""Models of switches: how a switch of some make is built, one YAML file each.

Some come with TriageMQ, in `scenario/models`. Others are in the scenario's folder: `model: my-switch` is
`my-switch.yaml` there, which comes first. What a switch states itself counts in the place of what its model says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import Field

from triagemq.errors import ScenarioError
from triagemq.scenario.files.document import (
    FIGURES,
    Bandwidth,
    BuiltEntry,
    Count,
    FileEntry,
    Name,
    SwitchEntry,
)
from triagemq.scenario.files.explain import Problems, listed
from triagemq.scenario.files.reading import Document, LinedFile
from triagemq.scenario.kinds import LimiterKind
from triagemq.scenario.model import DEFAULTS

FILE_NAME = re.compile(r"\w[\w.\-]*")


class PortGroup(FileEntry):
    """Ports of a kind."""

    count: Count
    bandwidth_bps: Bandwidth


class SwitchModel(BuiltEntry):
    """What a switch of this make can do; an omitted figure has no limit. Its `description`, `ports`, `sources`, and the
    keys that are `assumed` are for the reader."""

    description: Name | None = None
    ports: list[PortGroup] | None = Field(None, min_length=1)
    queues: Count | None = None
    sources: list[Name] = Field([])
    assumed: list[Name] = Field([])


@cache
def known_models() -> Mapping[str, SwitchModel]:
    """The models that come with TriageMQ, by name."""
    files = resources.files("triagemq.scenario").joinpath("models").iterdir()
    texts = {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8")
        for file in files
        if file.name.endswith(".yaml")
    }
    return {name: LinedFile(text, name).checked(SwitchModel) for name, text in sorted(texts.items())}


def read_models(document: Document, folder: Path | None) -> tuple[dict[str, SwitchModel], list[Problems]]:
    """The models that switches name, and the problems of own files; others are added to those of the document."""
    models: dict[str, SwitchModel] = {}
    files: list[Problems] = []
    for name, switch in document.valid.switches.items():
        model = switch.model
        if model is None or model in models:
            continue
        own = folder / f"{model}.yaml" if folder is not None and FILE_NAME.fullmatch(model) else None
        if own is not None and own.is_file():
            files.append(Problems(str(own)))
            try:
                models[model] = LinedFile(own.read_bytes().decode("utf-8-sig"), str(own)).checked(SwitchModel)
            except ScenarioError as error:
                files[-1].problems.extend(error.problems)
            except (OSError, UnicodeDecodeError):
                files[-1].report(None, "file", "cannot be read as text in UTF-8", "give a YAML file")
        elif model in known_models():
            models[model] = known_models()[model]
        else:
            fix = f"write one of {listed(known_models())}, or put {model}.yaml in the folder of the scenario"
            document.file.report_at(("switches", name, "model"), f"there is no switch model {model!r}", fix)
    return models, files


def figures(model: SwitchModel, switch: SwitchEntry | None = None) -> dict[str, float]:
    """How a switch is built: what it says itself, else what its model says, else the scenario's none."""
    found: dict[str, float] = {}
    for key in FIGURES:
        stated, modelled = getattr(switch, key, None), getattr(model, key)
        value = stated if stated is not None else modelled if modelled is not None else DEFAULTS[key]
        found[key] = LimiterKind[value.upper()] if isinstance(value, str) else value
    return found
