"""What `triage up` shows: figures while it runs and at its end, and what to try next."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.live.up.exchanging import LONG_SECONDS, TRIAGE

from triagemq.coordinator.decide.decide import PlannerSettings
from triagemq.forecast import forecast, summary
from triagemq.lab.generators import table2
from triagemq.live.figures import measure
from triagemq.live.up.run import expected_figures
from triagemq.plan import dump_plan, make_plan
from triagemq.scenario import SendingOrder, dumps
from triagemq.simulate import simulate
from triagemq.simulate.changes import Change
from triagemq.trace import TraceWriter


def test_deadlines_and_phases_of_a_trace_are_those_of_the_simulation_that_wrote_it(tmp_path: Path) -> None:
    drawn = table2(seed=1, subscribers=2)
    rows = np.arange(len(drawn.subscriptions))
    wanted = replace(
        drawn.subscriptions,
        max_latency_seconds=np.where(rows % 2, 0.05, np.inf),
        max_latency_share=np.where(rows % 2, np.where(rows % 3, 0.5, 0.999), 0.0),
    )
    scenario = replace(drawn, subscriptions=wanted)
    plan = make_plan(scenario)
    later = np.where(rows % 5, 1.0, 4.0) * wanted.utility_weight
    with TraceWriter(
        tmp_path / "run-0",
        scenario_text=dumps(scenario),
        plan_text=dump_plan(plan),
        producer="simulate",
        scenario_fingerprint=scenario.fingerprint,
    ) as writer:
        simulated = simulate(
            scenario,
            plan,
            duration_seconds=20.0,
            warmup=0.25,
            changes=[Change(12.0, utility_weight=later)],
            sink=writer,
        )
        writer.finish(measured_from_ns=simulated.measured_from_ns)
    measured = measure(
        tmp_path,
        scenario,
        from_ns=simulated.measured_from_ns,
        until_ns=20 * 10**9,
        planned=plan.subscription_class,
        weights=[(0, wanted.utility_weight), (12 * 10**9, later)],
    ).as_json()
    expected = simulated.as_json()
    assert measured["deadlines"] == expected["deadlines"]
    assert 0 < measured["deadlines"]["met"] < measured["deadlines"]["judged"]
    assert len(measured["phases"]) == 2
    for found, wanted_row in zip(measured["phases"], expected["phases"], strict=True):
        assert found == pytest.approx(wanted_row)
    assert measured["utility"] == pytest.approx(expected["utility"])


def test_an_exchange_promises_what_its_gateway_does_whatever_order_a_scenario_states() -> None:
    settings = PlannerSettings()
    random = table2(seed=1, subscribers=2)
    assert random.sending_order is SendingOrder.RANDOM
    by_class = replace(random, sending_order=SendingOrder.BY_CLASS)
    first, second = (expected_figures(scenario, settings, settings) for scenario in (random, by_class))
    assert first.by_level == second.by_level
    first.plan.require(random)
    stated = summary(random, first.plan, forecast(random, first.plan, formulas=True))
    assert stated["classes"] != first.figures["classes"]


def test_without_a_file_it_says_what_to_try_and_shows_what_goes_on(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        # The end of a terminal is an error.
        while True:
            try:
                shown.extend(os.read(ours, 4096))
            except OSError:
                return

    reading = threading.Thread(target=read)
    reading.start()
    command = [*TRIAGE, "up", "--gateway", "127.0.0.1:0", "--rest", "127.0.0.1:0", "--for", "3"]
    environment = os.environ | {"COLUMNS": "120", "TERM": "xterm"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True,
        timeout=LONG_SECONDS,
    )  # fmt: skip
    os.close(theirs)
    reading.join()
    os.close(ours)
    assert done.returncode == 0, shown
    lines = done.stdout.splitlines()
    rest = lines[0].split(",")[0].removeprefix("coordinator ")
    assert f"  triage sub -t 'building/#' --utility log:10 --coordinator {rest}" in lines
    assert f"  triage pub -t building/3/smoke --rate 20 --coordinator {rest}" in lines
    words = shown.decode()
    assert "running" in words
    assert "2 s" in words
