"""Plans in files: one readable JSON document; the directories of Parquet tables of earlier versions are read, too."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from triagemq.errors import OutputError, ParameterError, PlanError
from triagemq.files import write_durably
from triagemq.plan.model import (
    Decision,
    Flows,
    LatencyFactors,
    Limiters,
    Plan,
    PlannerChoice,
    PortLoads,
    PromisedHops,
    Promises,
)
from triagemq.scenario.model import TYPES, Table

FORMAT = "triagemq-plan"
VERSION = 1

TABLES: dict[str, type[Table]] = {"flows": Flows, "ports": PortLoads}
PROMISED: dict[str, type[Table]] = {"promises": Promises, "hops": PromisedHops, "limiters": Limiters}
"""Further tables, where there are guaranteed subscriptions."""


class _Columns(BaseModel):
    """A table of the document."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="after")
    def _equally_long(self) -> _Columns:
        if len({len(values) for _, values in self if values is not None}) > 1:
            raise ValueError("columns of unequal length")
        return self


def _column(dtype: type[np.generic]) -> Any:
    """A list of numbers that becomes an array."""
    number: Any = Annotated[float, Field(allow_inf_nan=False)]
    if issubclass(dtype, np.integer):
        bounds = np.iinfo(dtype)
        number = Annotated[int, Field(ge=int(bounds.min), le=int(bounds.max))]
    return Annotated[list[number], AfterValidator(partial(np.array, dtype=dtype))]


def _names(kind: type[Table]) -> list[str]:
    return [column.name for column in fields(kind)]  # type: ignore[arg-type]


def _table(kind: type[Table]) -> Any:
    columns = {each.name: (_column(TYPES[str(each.type)]), ...) for each in fields(kind)}  # type: ignore[arg-type]
    return create_model(kind.__name__, __base__=_Columns, **columns)  # type: ignore[call-overload]


_SUBSCRIPTIONS: dict[str, Any] = {
    "flow": (_column(np.int32), ...),
    "rank": (_column(np.float64), ...),
    "factor": (_column(np.float64) | None, None),
    "urgency": (_column(np.float64) | None, None),
}
_FIELDS: dict[str, Any] = {
    "format": (Literal["triagemq-plan"], ...),
    "version": (Literal[1], ...),
    "scenario_fingerprint": (str, ...),
    "made_by": (PlannerChoice, ...),
    "subscriptions": (create_model("Subscriptions", __base__=_Columns, **_SUBSCRIPTIONS), ...),
    "decisions": (tuple[Decision, ...], ...),
    **{title: (_table(kind), ...) for title, kind in TABLES.items()},
    **{title: (_table(kind) | None, None) for title, kind in PROMISED.items()},
}
_DOCUMENT = create_model("_DOCUMENT", **_FIELDS)


def dump_plan(plan: Plan) -> str:
    """The plan as JSON text: tables as columns, one column a line."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "scenario_fingerprint": plan.scenario_fingerprint,
        "made_by": asdict(plan.made_by),
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    wanted: dict[str, NDArray[Any]] = {"flow": plan.flow, "rank": plan.rank}
    tables = {"subscriptions": wanted | _arrays(plan.latency)}
    for title in (*TABLES, *(PROMISED if len(plan.promises) else ())):
        tables[title] = _arrays(getattr(plan, title))
    for title, columns in tables.items():
        lines = [f"  {json.dumps(name)}: {_json(values.tolist())}" for name, values in columns.items()]
        parts.append(f"{json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n }")
    decisions = ",\n".join(f"  {json.dumps(asdict(decision))}" for decision in plan.decisions)
    parts.append('"decisions": [' + (f"\n{decisions}\n " if decisions else "") + "]")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def _arrays(table: Table | None) -> dict[str, NDArray[Any]]:
    return {} if table is None else {name: getattr(table, name) for name in _names(type(table))}


def _json(values: list[Any]) -> str:
    try:
        return json.dumps(values, allow_nan=False)
    except ValueError as error:
        raise PlanError("the plan holds NaN or infinity and cannot be written") from error


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write JSON, to a path that ends in `.json`. An earlier plan goes.

    >>> import tempfile
    >>> from triagemq.plan.planner import make_plan
    >>> from triagemq.scenario.building import building
    >>> plan = make_plan(building())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_plan(plan, f"{folder}/plan.json")
    ...     bool((load_plan(f"{folder}/plan.json").flows.drop_rate == plan.flows.drop_rate).all())
    True
    """
    path = Path(path)
    if path.suffix != ".json":
        raise ParameterError("--out", f"{path}: a plan is a .json file")
    try:
        write_durably(path, dump_plan(plan))
    except OSError as error:
        raise OutputError(f"cannot write plan {path}: {error.strerror or error}") from error


def load_plan(path: str | Path) -> Plan:
    """Read what `save_plan` wrote; PlanError names the file and what is wrong with it."""
    path = Path(path)
    try:
        return parse_plan(_joined_tables(path) if path.is_dir() else path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise ParameterError(str(path), "no such plan") from error
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror or error}") from error


def _joined_tables(directory: Path) -> str:
    """The document of a plan that an earlier version wrote as `plan.json` and a Parquet file for each table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        document = {**json.loads((directory / "plan.json").read_text(encoding="utf-8"))}
        for place in directory.glob("*.parquet"):
            # ParquetFile reads this file; read_table would make columns of folder names such as a=b.
            with pq.ParquetFile(place) as file:
                rows = file.read()
            document[place.stem] = rows.to_pylist() if place.stem == "decisions" else rows.to_pydict()
        return json.dumps(document)
    except (FileNotFoundError, ValueError, TypeError, pa.ArrowException) as error:
        raise PlanError(f"{directory}: not a plan: {error}") from error


def parse_plan(text: str | bytes, source: str = "plan") -> Plan:
    """The plan in a JSON text; `source` names it in errors."""
    try:
        document: Any = _DOCUMENT.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "text"
        raise PlanError(f"{source}: not a plan: {place}: {first['msg']}") from error
    wanted = document.subscriptions
    if (wanted.factor is None) != (wanted.urgency is None):
        raise PlanError(f"{source}: subscriptions should hold factor and urgency, or neither")
    tables: dict[str, Any] = {
        title: kind(**dict(getattr(document, title)))
        for title, kind in (TABLES | PROMISED).items()
        if getattr(document, title) is not None
    }
    plan = Plan(
        scenario_fingerprint=document.scenario_fingerprint,
        made_by=document.made_by,
        flow=wanted.flow,
        rank=wanted.rank,
        decisions=document.decisions,
        latency=None if wanted.factor is None else LatencyFactors(wanted.factor, wanted.urgency),
        **tables,
    )
    for name, (values, low, high) in _bounds(plan).items():
        if len(values) and not (low <= values.min() and values.max() <= high):
            raise PlanError(f"{source}: {name} lies outside [{low:g}, {high:g}]")
    if len(plan.promises):
        _check_promises(plan, source)
    return plan


def _bounds(plan: Plan) -> dict[str, tuple[NDArray[Any], float, float]]:
    """What the numbers of columns may be: those that name rows of other tables, and those that are shares."""
    flows, promises, hops, any_number = plan.flows, plan.promises, plan.hops, np.inf
    last_port = len(plan.ports) - 1
    return {
        "made_by.rho_tolerance": (np.array([plan.made_by.rho_tolerance]), 0, 1),
        "subscriptions.flow": (plan.flow, -1 if len(promises) else 0, len(flows) - 1),
        "flows.port": (flows.port, 0, last_port),
        "flows.subscriber": (flows.subscriber, 0, any_number),
        "flows.priority_class": (flows.priority_class, 0, any_number),
        "flows.drop_rate": (flows.drop_rate, 0, 1),
        "flows.load_bytes_per_second": (flows.load_bytes_per_second, 0, any_number),
        "promises.admitted": (promises.admitted, 0, 1),
        "promises.publication": (promises.publication, 0, any_number),
        "promises.subscription": (promises.subscription, 0, len(plan.flow) - 1),
        "hops.port": (hops.port, -1, last_port),
        "hops.level": (hops.level, 0, any_number),
    }


def _check_promises(plan: Plan, source: str) -> None:
    """Promises of a file have hops that are there, and stand for the subscriptions without a flow."""
    promises = plan.promises
    last = promises.first_hop.astype(np.int64) + promises.hop_count
    lost = (promises.first_hop < 0) | (promises.hop_count < 1) | (last > len(plan.hops))
    if (lost & (promises.admitted > 0)).any():
        raise PlanError(f"{source}: promises.first_hop and hop_count name hops that are not there")
    without_flow = np.flatnonzero(plan.flow < 0)
    if not np.isin(without_flow, promises.subscription).all() or (plan.flow[plan.promised] >= 0).any():
        raise PlanError(
            f"{source}: subscriptions.flow is -1 where no promise is requested, or not where one is admitted"
        )
