"""Models of switches: how a switch of some make is built, one YAML file each.

Some come with TriageMQ, in `scenario/models`. Others stand beside the scenario: `model: my-switch` is `my-switch.yaml`
in the scenario's folder, which comes first. What a switch states itself counts in the place of what its model says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

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
from triagemq.scenario.files.explain import Problems, entry_error, explain, listed, nearest, number_text
from triagemq.scenario.files.reading import Document, LinedFile, LinedMapping
from triagemq.scenario.kinds import LimiterKind
from triagemq.scenario.model import DEFAULTS

FILE_NAME = re.compile(r"\w[\w.\-]*")


class PortGroup(FileEntry):
    """Ports of a kind."""

    count: Count
    bandwidth_bps: Bandwidth


class SwitchModel(BuiltEntry):
    """What a switch of this make can do; what is left out has no limit. `assumed` are keys without a source."""

    description: Name | None = None
    ports: list[PortGroup] | None = Field(None, min_length=1)
    queues: Count | None = None
    sources: list[Name] = Field([])
    assumed: list[Name] = Field([])

    @model_validator(mode="after")
    def _assumes_what_it_says(self) -> SwitchModel:
        for row, key in enumerate(self.assumed):
            if key not in ("ports", "queues", *FIGURES) or getattr(self, key) is None:
                fix = "name one of the figures above it"
                raise entry_error(("assumed", row), f"names {key}, which is not stated", fix)
        return self

    @property
    def bandwidths(self) -> list[float]:
        """The rates of its ports, the fastest first."""
        rates = [group.bandwidth_bps for group in self.ports or () for _ in range(group.count)]
        return sorted(rates, reverse=True)


@cache
def known_models() -> Mapping[str, SwitchModel]:
    """The models that come with TriageMQ, by name."""
    found = {}
    for file in resources.files("triagemq.scenario").joinpath("models").iterdir():
        name, ending, _ = file.name.rpartition(".yaml")
        if ending:
            problems, model = _read(file.read_text(encoding="utf-8"), file.name)
            if model is None:
                raise ScenarioError(problems.problems)
            found[name] = model
    return dict(sorted(found.items()))


def read_models(document: Document, folder: Path | None, found: list[Problems]) -> dict[str, SwitchModel]:
    """The models that switches name. Problems of own files are added to `found`, others to those of the document."""
    models: dict[str, SwitchModel] = {}
    invalid: set[str] = set()
    for name, switch in document.valid.switches.items():
        model = switch.model
        if model is None or model in models or model in invalid:
            continue
        own = folder / f"{model}.yaml" if folder is not None and FILE_NAME.fullmatch(model) else None
        if own is not None and own.is_file():
            try:
                problems, read = _read(own.read_bytes().decode("utf-8-sig"), str(own))
            except ScenarioError as error:
                problems, read = Problems(str(own)), None
                problems.problems.extend(error.problems)
            except (OSError, UnicodeDecodeError):
                problems, read = Problems(str(own)), None
                problems.report(None, "file", "cannot be read as text in UTF-8", "give a YAML file")
            found.append(problems)
        else:
            read = known_models().get(model)
            if read is None:
                document.file.report_at(("switches", name, "model"), *_unknown(model))
        if read is None:
            invalid.add(model)
        else:
            models[model] = read
    for name, switch in document.valid.switches.items():
        if switch.model in models:
            _check_ports(document, name, switch, models[switch.model])
    return models


def _unknown(model: str) -> tuple[str, str]:
    known = known_models()
    close = nearest(model, known)
    choice = f"did you mean {close}? Known are {listed(known)}" if close else f"write one of {listed(known)}"
    return f"there is no switch model {model!r}", f"{choice}, or put {model}.yaml beside the scenario"


def _read(text: str, file: str) -> tuple[Problems, SwitchModel | None]:
    lines = LinedFile(text, file)
    if not isinstance(lines.root, LinedMapping):
        lines.report(1, "text", "holds no switch model", "begin with ports:, queues:, ...")
        return lines, None
    try:
        model = SwitchModel.model_validate(dict(lines.root))
    except ValidationError as error:
        for each in explain(error.errors(include_url=False), SwitchModel):
            lines.report_at(each.path, each.what, each.fix)
        return lines, None
    return lines, None if lines.problems else model


def _check_ports(document: Document, name: str, switch: SwitchEntry, model: SwitchModel) -> None:
    """Ports of a switch are among those of its model: as many, as fast, with as many queues."""
    file, valid = document.file, document.valid
    ports = {port: entry for port, entry in valid.ports.items() if entry.switch == name}
    classes = valid.planning.priority_classes
    if (
        model.queues is not None
        and ports
        and model.queues < classes
        and "planning" not in document.invalid_keys
    ):
        what = f"is {switch.model}, with {model.queues} queues for {classes} priority classes"
        fix = f"write planning: {{priority_classes: {model.queues}}}, or another model"
        file.report_at(("switches", name, "model"), what, fix)
    for port, entry in ports.items():
        if model.queues is not None and entry.queues is not None and entry.queues > model.queues:
            what = f"is {entry.queues}, and a port of a {switch.model} has {model.queues}"
            file.report_at(("ports", port, "queues"), what, f"write at most {model.queues}, or another model")
    if model.ports is None:
        return
    rates = model.bandwidths
    if len(ports) > len(rates):
        what = f"is {switch.model}, with {len(rates)} ports, and {name} has {len(ports)}"
        file.report_at(
            ("switches", name, "model"), what, f"give it at most {len(rates)} ports, or another model"
        )
        return
    used: Counter[float] = Counter()
    for port, entry in sorted(ports.items(), key=lambda item: -item[1].bandwidth_bps):
        # The fastest ports take the fastest there are.
        rate = rates[used.total()]
        used[rate] += 1
        if entry.bandwidth_bps > rate:
            what = (
                f"is {number_text(entry.bandwidth_bps)}, faster than the ports that a {switch.model} has left"
            )
            fix = f"write at most {number_text(rate)}, or another model"
            file.report_at(("ports", port, "bandwidth_bps"), what, fix)
    for publisher, plugged in valid.publishers.items():
        if plugged.access == name and plugged.access_bps is not None and plugged.access_bps > rates[0]:
            what = f"is {number_text(plugged.access_bps)}, faster than any port of a {switch.model}"
            fix = f"write at most {number_text(rates[0])}, or another model"
            file.report_at(("publishers", publisher, "access_bps"), what, fix)


def figures(model: SwitchModel, switch: SwitchEntry | None = None) -> dict[str, float]:
    """How a switch is built: what it says itself, else what its model says, else the scenario's none."""
    found: dict[str, float] = {}
    for key in FIGURES:
        stated, modelled = getattr(switch, key, None), getattr(model, key)
        value = stated if stated is not None else modelled if modelled is not None else DEFAULTS[key]
        found[key] = LimiterKind[value.upper()] if isinstance(value, str) else value
    return found
