"""Sweeps: many simulations of one situation, with settings varied, as Spark tasks; stopped sweeps continue."""

from triagemq.pipeline.sweep.cases import Case, simulate_cases
from triagemq.pipeline.sweep.run import SCHEMA, run_sweep
from triagemq.pipeline.sweep.summary import sweep_summary
from triagemq.pipeline.sweep.variables import VARIABLES, Value, parse_vary

__all__ = [
    "SCHEMA",
    "VARIABLES",
    "Case",
    "Value",
    "parse_vary",
    "run_sweep",
    "simulate_cases",
    "sweep_summary",
]
