"""Sweeps: many simulations of one situation, with settings varied, as Spark tasks; stopped sweeps continue."""

from triagemq.pipeline.sweep.run import run_sweep
from triagemq.pipeline.sweep.summary import sweep_summary
from triagemq.pipeline.sweep.variables import parse_vary

__all__ = ["parse_vary", "run_sweep", "sweep_summary"]
