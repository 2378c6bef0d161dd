"""Sweeps: many simulations of one situation, with settings varied, as Spark tasks; stopped sweeps continue."""

from triagemq.lab.sweep.run import run_sweep, sweep_summary
from triagemq.lab.sweep.variables import parse_vary

__all__ = ["parse_vary", "run_sweep", "sweep_summary"]
