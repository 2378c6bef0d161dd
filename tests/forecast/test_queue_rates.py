"""Forecasts for ports whose queues have rates, against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from triagemq.forecast import REASONS, forecast
from triagemq.plan import make_plan
from triagemq.scenario import Scenario, loads
from triagemq.simulate import simulate

HALL = """\
name: Hall
planning: {{priority_classes: 3, flows_per_subscriber: 3}}
mtu_bytes: 400
fragmentation: true
brokers: {{hall: }}
switches: {{core: }}
ports:
  radio: {{switch: core, bandwidth_bps: 1e6, discipline: queue_rates,
    queue_rates_bps: [3e5, 4e5, 3e5], borrowing: {borrowing}}}
  plain: {{switch: core, bandwidth_bps: 1e6}}
publishers:
  sensor:
    publishes:
      smoke: {{rate_per_second: 40, size_bytes: 300}}
      heat: {{rate_per_second: 50, size_bytes: 250, sizes: constant}}
      video: {{rate_per_second: 6, size_bytes: 900}}
subscribers:
  commander: {{port: radio, subscribes: {{smoke: log:10, heat: log:4, video: log:2}}}}
  deputy: {{port: radio, subscribes: {{smoke: log:10, heat: log:4, video: log:2}}}}
  guard: {{port: plain, subscribes: {{smoke: log:10, heat: log:4, video: log:2}}}}
"""


def hall(*, borrowing: bool) -> Scenario:
    return loads(HALL.format(borrowing=str(borrowing).lower()))


def test_a_partitioned_queue_is_forecast_as_a_queue_alone_at_its_width() -> None:
    """Copies for two subscribers come together, cut into packets."""
    scenario = hall(borrowing=False)
    plan = make_plan(scenario)
    assert set(plan.subscription_class.tolist()) == {0, 1, 2}
    predicted = forecast(scenario, plan, formulas=True)
    found = simulate(scenario, plan, publications=60_000, replications=4, seed=2).subscriptions
    tolerance = 0.02 * predicted.latency_seconds + 2 * found.ci95_seconds
    assert (np.abs(predicted.latency_seconds - found.mean_latency_seconds) < tolerance).all()
    assert (found.ci95_seconds < 0.1 * predicted.latency_seconds).all()
    assert not predicted.reason.any()


def test_an_overloaded_queue_loses_what_does_not_fit_its_width_and_no_other_does() -> None:
    scenario = hall(borrowing=False)
    crowd = scenario.with_tables(publications=scenario.publications.times(np.array([3.0, 1.0, 1.0])))
    plan = make_plan(crowd, drops="none")
    predicted = forecast(crowd, plan, formulas=True)
    radio = crowd.subscribers.port[crowd.subscriptions.subscriber] == crowd.ports.name.index("radio")
    full = radio & np.isinf(predicted.latency_seconds)
    assert len(set(plan.subscription_class[full].tolist())) == 1
    assert (predicted.success[radio & ~full] == 1).all()
    assert (predicted.success[full] < 0.9).all()


def test_queues_that_borrow_are_flagged_and_within_the_error_that_is_stated() -> None:
    scenario = hall(borrowing=True)
    plan = make_plan(scenario)
    predicted = forecast(scenario, plan, formulas=True)
    found = simulate(scenario, plan, publications=60_000, replications=4, seed=2).subscriptions
    radio = scenario.subscribers.port[scenario.subscriptions.subscriber] == scenario.ports.name.index("radio")
    off = np.abs(predicted.latency_seconds / found.mean_latency_seconds - 1)
    assert (off[radio] <= predicted.latency_error[radio]).all()
    assert {REASONS[code] for code in predicted.reason[radio]} == {"queues that borrow bandwidth"}
    assert not predicted.reason[~radio].any()


def test_the_forecast_samples_queues_that_borrow() -> None:
    scenario = hall(borrowing=True)
    plan = make_plan(scenario)
    predicted = forecast(scenario, plan)
    found = simulate(scenario, plan, publications=60_000, replications=4, seed=2).subscriptions
    radio = scenario.subscribers.port[scenario.subscriptions.subscriber] == scenario.ports.name.index("radio")
    assert predicted.sampled[radio].all()
    assert predicted.latency_seconds == pytest.approx(found.mean_latency_seconds, rel=0.05)
