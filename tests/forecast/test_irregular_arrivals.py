"""Arrivals that are not Poisson, at every kind of queue: no forecast is wrong and silent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from triagemq.forecast import REASONS, Reason, forecast
from triagemq.plan import make_plan
from triagemq.scenario import Scenario, loads
from triagemq.simulate import simulate

QUEUES = ("inbound", "link", "second inbound", "outbound", "lookup", "unmanaged", "port")
ON_OFF = {"process": "on_off", "on_seconds": 1.0, "off_seconds": 4.0}
TOPICS, RATE, SIZE, LOAD = 4, 5.0, 500, 0.6


def one_slow_queue(queue: str, arrivals: Any) -> Scenario:
    """Everything is fast but for one queue, which has a load of 0.6."""
    per_second = TOPICS * RATE / LOAD
    slow_bps = 8 * SIZE * per_second
    brokers: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    switches: dict[str, dict[str, Any]] = {"switch": {}}
    link: dict[str, Any] = {"between": ["a", "b"]}
    port: dict[str, Any] = {"switch": "switch", "bandwidth_bps": 1e8}
    topics = [f"t{number}" for number in range(TOPICS)]
    publishers: dict[str, dict[str, Any]] = {
        f"of {topic}": {
            "broker": "a",
            "publishes": {
                topic: {
                    "rate_per_second": RATE,
                    "size_bytes": SIZE,
                    "sizes": "constant",
                    "arrivals": arrivals,
                }
            },
        }
        for topic in topics
    }
    document: dict[str, Any] = {
        "overhead_bytes": 0,
        "brokers": brokers,
        "broker_links": [link],
        "switches": switches,
        "ports": {"port": port},
        "publishers": publishers,
        "subscribers": {"s": {"port": "port", "broker": "b", "subscribes": dict.fromkeys(topics, "log:1")}},
    }
    if queue == "inbound":
        brokers["a"]["inbound_rate_per_second"] = per_second
    elif queue == "second inbound":
        brokers["b"]["inbound_rate_per_second"] = per_second
    elif queue == "outbound":
        brokers["b"]["outbound_rate_per_second"] = per_second
    elif queue == "link":
        link["bandwidth_bps"] = slow_bps
    elif queue == "lookup":
        switches["switch"]["inbound_rate_per_second"] = per_second
    elif queue == "port":
        port["bandwidth_bps"] = slow_bps
    else:
        document["unmanaged_switches"] = {"before": {"bandwidth_bps": slow_bps}}
        for publisher in publishers.values():
            publisher["switch"] = "before"
    return loads(yaml.safe_dump(document))


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("arrivals", [ON_OFF, "periodic"])
def test_formulas_say_that_they_may_be_wrong(queue: str, arrivals: Any) -> None:
    scenario = one_slow_queue(queue, arrivals)
    predicted = forecast(scenario, make_plan(scenario), formulas=True)
    assert {REASONS[code] for code in predicted.reason} == {REASONS[Reason.ARRIVALS]}
    assert (predicted.latency_error > 0.02).all()


@pytest.mark.parametrize("queue", QUEUES)
def test_formulas_are_right_for_poisson_arrivals(queue: str) -> None:
    scenario = one_slow_queue(queue, "poisson")
    plan = make_plan(scenario)
    predicted = forecast(scenario, plan)
    found = simulate(scenario, plan, duration_seconds=5_000, replications=8, seed=3).subscriptions
    assert not predicted.reason.any()
    assert not predicted.sampled.any()
    off = np.abs(predicted.latency_seconds - found.mean_latency_seconds)
    assert (off <= 0.02 * found.mean_latency_seconds + found.ci95_seconds).all()


@pytest.mark.parametrize("queue", QUEUES)
def test_a_sample_is_right_for_bursts(queue: str) -> None:
    scenario = one_slow_queue(queue, ON_OFF)
    plan = make_plan(scenario)
    predicted = forecast(scenario, plan)
    found = simulate(scenario, plan, duration_seconds=10_000, replications=8, seed=3).subscriptions
    assert predicted.sampled.all()
    off = np.abs(predicted.latency_seconds - found.mean_latency_seconds)
    stated = np.fmax(predicted.latency_error, 0.02)
    assert (off <= 2 * stated * found.mean_latency_seconds + found.ci95_seconds).all()


def _many_shares(seed: int) -> Scenario:
    """On-off sources of very unlike rates at unmanaged switches and slow brokers, some overloaded."""
    random = np.random.default_rng(seed)
    publishers = {
        f"p{number}": {
            "broker": "a",
            "switch": f"u{number % 2}",
            "error_rate": float(random.choice([0.0, 0.1])),
            "publishes": {
                f"t{number}": {
                    "rate_per_second": float(10 ** random.uniform(-6, 2)),
                    "size_bytes": int(random.integers(1, 2_000)),
                    "arrivals": {
                        "process": "on_off",
                        "on_seconds": float(10 ** random.uniform(-3, 1)),
                        "off_seconds": float(10 ** random.uniform(-3, 1)),
                    },
                }
            },
        }
        for number in range(int(random.integers(1, 9)))
    }
    document = {
        "brokers": {
            "a": {"inbound_rate_per_second": float(10 ** random.uniform(0, 3))},
            "b": {"outbound_rate_per_second": float(10 ** random.uniform(0, 3))},
        },
        "broker_links": [{"between": ["a", "b"], "bandwidth_bps": float(10 ** random.uniform(3, 6))}],
        "unmanaged_switches": {
            name: {"bandwidth_bps": float(10 ** random.uniform(3, 6))} for name in ("u0", "u1")
        },
        "switches": {"switch": {"inbound_rate_per_second": float(10 ** random.uniform(0, 3))}},
        "ports": {"port": {"switch": "switch", "bandwidth_bps": 1e5}},
        "publishers": publishers,
        "subscribers": {
            f"s{broker}": {
                "port": "port",
                "broker": broker,
                "subscribes": {f"t{number}": "log:1" for number in range(len(publishers))},
            }
            for broker in ("a", "b")
        },
    }
    return loads(yaml.safe_dump(document))


@pytest.mark.parametrize("formulas", [True, False], ids=["formulas", "sample"])
@pytest.mark.parametrize("seed", range(60))
def test_shares_that_add_up_are_shares(seed: int, formulas: bool) -> None:
    scenario = _many_shares(seed)
    predicted = forecast(scenario, make_plan(scenario), formulas=formulas, most_copies=20_000)
    assert ((predicted.success >= 0) & (predicted.success <= 1)).all()
    assert not (predicted.latency_seconds < 0).any()
    assert not ((predicted.share_within < 0) | (predicted.share_within > 1)).any()
    assert (predicted.utility <= predicted.maximum_utility * (1 + 1e-9)).all()
    assert np.isfinite(predicted.latency_error).all()
    assert np.isfinite(predicted.success_error).all()
    assert not np.isneginf(predicted.percentile_seconds(0.99)).any()
