"""The Trace: what really happened in a run, as Parquet tables with the scenario and plan that produced them.

    DIR/manifest.json               written last and atomically; a run without it is not valid
    DIR/INCOMPLETE                  there until the manifest is; has the writer, its start, and the reason of its end
    DIR/scenario.yaml, plan.json    as given, not interpreted here; forecast.json, if the producer has one
    DIR/<table>/part-00000.parquet  visible only when whole: a live directory can be read at any moment

A simulation, an emulation and a live exchange all write it with `TraceWriter`; `Trace` reads it, and
`blocks` follows a table that still grows.
"""

from triagemq.trace.manifest import Manifest
from triagemq.trace.parts import PartFile
from triagemq.trace.reader import Runs, Trace, runs
from triagemq.trace.schema import NOT_WANTED, SCHEMA_VERSION, TABLES, Columns, Outcome
from triagemq.trace.writer import TraceWriter, add_forecast

__all__ = [
    "NOT_WANTED",
    "SCHEMA_VERSION",
    "TABLES",
    "Columns",
    "Manifest",
    "Outcome",
    "PartFile",
    "Runs",
    "Trace",
    "TraceWriter",
    "add_forecast",
    "runs",
]
