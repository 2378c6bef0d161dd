"""`triage pipeline scenario`: a Scenario estimated from tables, of one run in them."""

from __future__ import annotations

from triagemq.errors import ParameterError, PipelineError
from triagemq.pipeline.reading import Tables
from triagemq.scenario.estimated import Estimate, measured


def estimate_scenario(
    tables: Tables, *, run_id: str | None = None, bandwidth_bps: float | None = None
) -> Estimate:
    """The scenario that a run's measured publications look like.

    `run_id` is needed if the tables hold several runs; `bandwidth_bps`, the bandwidth of the one port, if the run came
    without a scenario (a foreign log).
    """
    chosen = _choose(tables, run_id)
    if tables.manifest.kind == "stream":
        from triagemq.pipeline.streaming.reading import stream_profile

        profile = stream_profile(tables, chosen)
    else:
        profile = tables.records("publication_profile", run_id=chosen)
    if not profile:
        raise PipelineError(
            f"run {chosen}: nothing was published after warm-up; there is nothing to estimate from"
        )
    scenario = tables.scenario(chosen)
    base = bandwidth_bps if scenario is None else scenario
    if base is None:
        raise PipelineError(
            f"run {chosen}: came without a scenario, so the bandwidth to the subscriber is not known; "
            "say it with --bandwidth-bps"
        )
    name = chosen if scenario is None else scenario.name
    summary = tables.records("run_summary", run_id=chosen) if "run_summary" in tables.rows else []
    begins_ns = summary[0].get("measured_from_ns") if summary else None
    return measured(profile, base, name=name, measured_from_ns=begins_ns)


def _choose(tables: Tables, run_id: str | None) -> str:
    runs = list(tables.manifest.runs)
    matching = [each for each in runs if run_id is None or each.startswith(run_id)]
    if len(matching) == 1:
        return matching[0]
    problem = "several runs" if matching else f"no run {run_id!r}"
    raise ParameterError("--run", f"there are {problem} in these tables; choose one of: {', '.join(runs)}")
