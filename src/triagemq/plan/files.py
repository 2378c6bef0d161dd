"""Plans in files: one readable JSON document, or a directory of Parquet tables. Floats survive exactly."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from triagemq.atomic_files import write_durably
from triagemq.errors import OutputError, ParameterError, PlanError
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
MANIFEST = "plan.json"


def _types(kind: type[Table]) -> dict[str, type[np.generic]]:
    return {column.name: TYPES[str(column.type)] for column in fields(kind)}  # type: ignore[arg-type]


COLUMNS: dict[str, dict[str, type[np.generic]]] = {
    "subscriptions": {"flow": np.int32, "rank": np.float64},
    "flows": _types(Flows),
    "ports": _types(PortLoads),
}
LATENCY = _types(LatencyFactors)
"""Further columns of subscriptions, where the plan was made from a forecast."""

PROMISED: dict[str, type[Table]] = {"promises": Promises, "hops": PromisedHops, "limiters": Limiters}
"""Further tables, where there are guaranteed subscriptions."""

DECISION_FIELDS = tuple(field.name for field in fields(Decision))

NUMBERS = TypeAdapter(list[Annotated[float, Field(strict=True, allow_inf_nan=False)]])


def _whole(kind: type[np.integer[Any]]) -> TypeAdapter[Any]:
    bounds = np.iinfo(kind)
    return TypeAdapter(list[Annotated[int, Field(strict=True, ge=int(bounds.min), le=int(bounds.max))]])


LISTS: dict[Any, TypeAdapter[Any]] = {
    np.float64: NUMBERS,
    np.int8: _whole(np.int8),
    np.int32: _whole(np.int32),
}
CHOICE = TypeAdapter(PlannerChoice)
DECISIONS = TypeAdapter(tuple[Decision, ...])


def dump_plan(plan: Plan) -> str:
    """The plan as JSON text: tables as columns, one column a line."""
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in _head(plan).items()]
    for table, columns in _tables(plan).items():
        lines = [f"  {json.dumps(name)}: {_json(values.tolist())}" for name, values in columns.items()]
        parts.append(f"{json.dumps(table)}: {{\n" + ",\n".join(lines) + "\n }")
    decisions = ",\n".join(f"  {json.dumps(asdict(decision))}" for decision in plan.decisions)
    parts.append('"decisions": [' + (f"\n{decisions}\n " if decisions else "") + "]")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def parse_plan(text: str, source: str = "plan") -> Plan:
    """The plan in a JSON text; `source` names it in errors."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PlanError(f"{source}: not a plan: {error}") from error
    except RecursionError as error:
        raise PlanError(f"{source}: not a plan: nested too deeply") from error
    _check_head(document, source)
    tables = _checked_tables(document, source)
    return _assembled(document, tables, document.get("decisions"), source)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write JSON if the path ends in `.json`, a directory of Parquet tables if it ends in `.parquet` or in nothing.

    An earlier plan goes.

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
    if path.suffix not in (".json", ".parquet", ""):
        raise ParameterError("--out", f"{path}: a plan is a .json file, or a .parquet directory of tables")
    try:
        if path.suffix == ".json":
            write_durably(path, dump_plan(plan))
        else:
            _save_tables(plan, path)
    except OSError as error:
        raise OutputError(f"cannot write plan {path}: {error.strerror or error}") from error


def load_plan(path: str | Path) -> Plan:
    """Read what `save_plan` wrote; PlanError names the file and what is wrong with it."""
    path = Path(path)
    try:
        if path.is_dir():
            return _load_tables(path)
        return parse_plan(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as error:
        raise ParameterError(str(path), "no such plan") from error
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: not a plan: it is not text") from error


def _head(plan: Plan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "scenario_fingerprint": plan.scenario_fingerprint,
        "made_by": asdict(plan.made_by),
    }


def _tables(plan: Plan) -> dict[str, dict[str, NDArray[Any]]]:
    latency = {} if plan.latency is None else {name: getattr(plan.latency, name) for name in LATENCY}
    return {
        "subscriptions": {"flow": plan.flow, "rank": plan.rank, **latency},
        "flows": {name: getattr(plan.flows, name) for name in COLUMNS["flows"]},
        "ports": {name: getattr(plan.ports, name) for name in COLUMNS["ports"]},
        **({table: _columns(getattr(plan, table)) for table in PROMISED} if len(plan.promises) else {}),
    }


def _columns(table: Table) -> dict[str, NDArray[Any]]:
    return {name: getattr(table, name) for name in _types(type(table))}


def _json(values: list[Any]) -> str:
    try:
        return json.dumps(values, allow_nan=False)
    except ValueError as error:
        raise PlanError("the plan holds NaN or infinity and cannot be written") from error


def _save_tables(plan: Plan, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    manifest = path / MANIFEST
    if path.exists() and not path.is_dir():
        raise OutputError(f"cannot write plan {path}: a file is in the way; a plan in tables is a directory")
    if path.is_dir() and any(path.iterdir()) and not manifest.exists():
        raise OutputError(f"cannot write plan {path}: the directory holds something else")
    path.mkdir(parents=True, exist_ok=True)
    # Without its manifest a directory is no plan: it goes first and comes back last.
    manifest.unlink(missing_ok=True)
    for table in PROMISED:
        (path / f"{table}.parquet").unlink(missing_ok=True)
    for table, columns in _tables(plan).items():
        pq.write_table(pa.table(columns), path / f"{table}.parquet", compression="zstd")
    decisions = {name: [getattr(each, name) for each in plan.decisions] for name in DECISION_FIELDS}
    schema = pa.schema([(name, pa.string()) for name in DECISION_FIELDS])
    pq.write_table(pa.table(decisions, schema=schema), path / "decisions.parquet", compression="zstd")
    write_durably(manifest, json.dumps(_head(plan), indent=1) + "\n")


def _load_tables(path: Path) -> Plan:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        head = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlanError(
            f"{path}: not a plan, or one whose writing was interrupted: {MANIFEST} is missing"
        ) from error
    except ValueError as error:
        raise PlanError(f"{path / MANIFEST}: not a plan: {error}") from error
    _check_head(head, str(path / MANIFEST))
    read: dict[str, dict[str, Any]] = {}
    promised = [table for table in PROMISED if (path / f"{table}.parquet").exists()]
    for table in (*COLUMNS, *promised, "decisions"):
        place = path / f"{table}.parquet"
        try:
            # ParquetFile reads this file; read_table would make columns of folder names such as a=b.
            with pq.ParquetFile(place) as file:
                whole = file.read()
                columns = zip(whole.column_names, whole.columns, strict=True)
                read[table] = {name: column.to_numpy() for name, column in columns}
        except (pa.ArrowException, ValueError, UnicodeDecodeError) as error:
            raise PlanError(f"{place}: not a readable Parquet table: {error}") from error
    decided = {name: values.tolist() for name, values in read.pop("decisions").items()}
    rows = [dict(zip(decided, values, strict=True)) for values in zip(*decided.values(), strict=True)]
    tables = _checked_tables(read, str(path))
    return _assembled(head, tables, rows, str(path))


def _check_head(document: Any, source: str) -> None:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PlanError(f'{source}: not a plan: "format" should be {FORMAT!r}')
    if document.get("version") != VERSION:
        raise PlanError(
            f"{source}: plan format version {document.get('version')!r}; this TriageMQ reads {VERSION}"
        )


def _checked_tables(document: dict[str, Any], source: str) -> dict[str, dict[str, NDArray[Any]]]:
    expected = COLUMNS
    if document.keys() & PROMISED.keys():
        expected = COLUMNS | {table: _types(kind) for table, kind in PROMISED.items()}
    return {table: _column_lists(document, table, names, source) for table, names in expected.items()}


def _column_lists(
    document: Any, table: str, expected: dict[str, type[np.generic]], source: str
) -> dict[str, NDArray[Any]]:
    columns = document.get(table)
    if table == "subscriptions" and isinstance(columns, dict) and columns.keys() & LATENCY.keys():
        expected = expected | LATENCY
    if not isinstance(columns, dict) or set(columns) != set(expected):
        raise PlanError(f"{source}: {table} should hold the columns {', '.join(expected)}")
    arrays = {}
    for name, dtype in expected.items():
        values = columns[name]
        if not isinstance(values, np.ndarray):
            values = np.array(_validated(LISTS[dtype], values, f"{source}: {table}.{name}"), dtype=dtype)
        if values.dtype != dtype or not np.isfinite(values).all():
            raise PlanError(f"{source}: {table}.{name} should hold finite numbers of type {dtype.__name__}")
        arrays[name] = values
    return arrays


def _validated(kind: TypeAdapter[Any], values: Any, where: str) -> Any:
    try:
        return kind.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f".{part}" for part in first["loc"])
        raise PlanError(f"{where}{place}: {first['msg']}") from error


def _assembled(
    head: dict[str, Any], tables: dict[str, dict[str, NDArray[Any]]], decided: Any, source: str
) -> Plan:
    fingerprint = head.get("scenario_fingerprint")
    if not isinstance(fingerprint, str):
        raise PlanError(f"{source}: scenario_fingerprint should be text")
    decisions = _validated(DECISIONS, decided, f"{source}: decisions")
    made_by = _validated(CHOICE, head.get("made_by"), f"{source}: made_by")
    try:
        flows, ports = Flows(**tables["flows"]), PortLoads(**tables["ports"])
        promised: dict[str, Any] = {
            table: kind(**tables[table]) for table, kind in PROMISED.items() if table in tables
        }
    except ParameterError as error:
        raise PlanError(f"{source}: {error}") from error
    wanted = tables["subscriptions"]
    flow, rank = wanted["flow"], wanted["rank"]
    if len(set(map(len, wanted.values()))) > 1:
        raise PlanError(f"{source}: the columns of subscriptions differ in length")
    latency = LatencyFactors(*(wanted[name] for name in LATENCY)) if LATENCY.keys() <= wanted.keys() else None
    plan = Plan(fingerprint, made_by, flow, rank, flows, ports, decisions, latency, **promised)
    for name, (values, low, high) in _bounds(plan).items():
        if len(values) and not (low <= values.min() and values.max() <= high):
            raise PlanError(f"{source}: {name} lies outside [{low:g}, {high:g}]")
    if promised:
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
