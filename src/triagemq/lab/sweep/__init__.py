"""Sweeps: many simulations of one situation, with settings varied, as Spark tasks; stopped sweeps continue."""

from triagemq.lab.sweep.run import parse_vary, run_sweep, sweep_summary

__all__ = ["parse_vary", "run_sweep", "sweep_summary"]
