"""The forecast of small scenarios against what a textbook gives for each queue on the path."""

from __future__ import annotations

import numpy as np
import pytest

from triagemq.forecast import REASONS, Forecast, Reason, forecast
from triagemq.forecast.upstream import topic_arrivals
from triagemq.plan import demand, make_plan
from triagemq.scenario import Floats, Scenario, loads
from triagemq.simulate import simulate


def predicted(text: str, **options: object) -> tuple[Scenario, Forecast]:
    scenario = loads(text)
    chosen = {"priorities": "none", "drops": "none", **options}
    return scenario, forecast(scenario, make_plan(scenario, **chosen), formulas=True)  # type: ignore[arg-type]


ONE_OF_EACH = """
name: one of each
brokers: {b: {inbound_rate_per_second: 100, outbound_rate_per_second: 50}}
switches: {x: {inbound_rate_per_second: 200}}
ports: {p: {switch: x, bandwidth_bps: 8000}}
publishers:
  a:
    error_rate: 0.2
    propagation_seconds: 0.25
    publishes: {t: {rate_per_second: 10, size_bytes: 50}}
subscribers:
  s: {port: p, error_rate: 0.5, propagation_seconds: 0.125, subscribes: {t: log:1}}
"""


def test_a_single_path_adds_up_mm1_queues_and_propagation() -> None:
    _, result = predicted(ONE_OF_EACH)
    rate = 8.0
    queues = 1 / (100 - rate) + 1 / (50 - rate) + 1 / (200 - rate) + 1 / (20 - rate)
    assert result.latency_seconds == pytest.approx([0.25 + queues + 0.125])
    assert result.success == pytest.approx([0.8 * 0.5])
    assert result.utility == pytest.approx([np.log(1.4)])
    assert result.approximations == ()


def test_an_unmanaged_switch_is_first_in_first_out_not_processor_sharing() -> None:
    text = """
name: unmanaged
brokers: {b: {}}
unmanaged_switches: {u: {bandwidth_bps: 8000}}
switches: {x: {}}
ports: {p: {switch: x, bandwidth_bps: 1e9}}
publishers:
  a: {switch: u, publishes: {small: {rate_per_second: 2, size_bytes: 10, sizes: constant}}}
  c: {switch: u, publishes: {large: {rate_per_second: 3, size_bytes: 200, sizes: constant}}}
subscribers:
  s: {port: p, subscribes: {small: log:1, large: log:1}}
"""
    scenario, result = predicted(text)
    load = 2 * 0.01 + 3 * 0.2
    wait = 0.5 * (2 * 0.01**2 + 3 * 0.2**2) / (1 - load)
    large, small = (scenario.topics.name.index(name) for name in ("large", "small"))
    assert result.latency_seconds[small] == pytest.approx(wait + 0.01, abs=1e-5)
    assert result.latency_seconds[large] == pytest.approx(wait + 0.2, abs=1e-5)


def test_events_cross_brokers_once_per_link_and_lose_what_the_links_lose() -> None:
    text = """
name: three brokers in a row
brokers: {a: {}, b: {inbound_rate_per_second: 100}, c: {inbound_rate_per_second: 100}}
broker_links:
  - {between: [a, b], bandwidth_bps: 8000, error_rate: 0.5, propagation_seconds: 1}
  - {between: [b, c], propagation_seconds: 2}
switches: {x: {}}
ports: {p: {switch: x, bandwidth_bps: 1e9}, q: {switch: x, bandwidth_bps: 1e9}}
publishers: {publisher: {broker: a, publishes: {t: {rate_per_second: 8, size_bytes: 50}}}}
subscribers:
  near: {broker: a, port: p, subscribes: {t: log:1}}
  far: {broker: c, port: p, subscribes: {t: log:1}}
  far-too: {broker: c, port: q, subscribes: {t: log:1}}
"""
    scenario, result = predicted(text)
    far, far_too, near = (scenario.subscribers.name.index(name) for name in ("far", "far-too", "near"))
    assert result.success[[near, far, far_too]] == pytest.approx([1.0, 0.5, 0.5])
    # Two subscribers behind the link still cost one copy on it: M/M/1 at 8 of 20 events a second.
    seconds = 1 + 1 / (20 - 8) + 1 / (100 - 4) + 2 + 1 / (100 - 4)
    assert result.latency_seconds[far] == pytest.approx(seconds, abs=1e-4)
    assert result.latency_seconds[near] < 1e-4


def test_publishers_of_one_topic_are_mixed_by_the_rates_that_arrive() -> None:
    text = """
name: mixed publishers
brokers: {b: {}}
switches: {x: {}}
ports: {p: {switch: x, bandwidth_bps: 1e9}}
publishers:
  near: {propagation_seconds: 0, publishes: {t: {rate_per_second: 3, size_bytes: 50}}}
  far: {propagation_seconds: 1, error_rate: 0.5, publishes: {t: {rate_per_second: 2, size_bytes: 50}}}
subscribers: {s: {port: p, subscribes: {t: log:1}}}
"""
    _, result = predicted(text)
    assert result.success == pytest.approx([4 / 5])
    assert result.latency_seconds == pytest.approx([1 / 4], abs=1e-4)


SHARED = """
name: shared port
brokers: {b: {inbound_rate_per_second: 1e9, outbound_rate_per_second: 1e9}}
switches: {x: {inbound_rate_per_second: 1e9}}
ports: {p: {switch: x, bandwidth_bps: 8000}}
publishers: {a: {publishes: {t: {rate_per_second: 2, size_bytes: 50, sizes: constant}}}}
subscribers:
  s1: {port: p, subscribes: {t: log:1}}
  s2: {port: p, subscribes: {t: log:1}}
"""


TWO_CLASSES = """
planning: {priority_classes: 2}
brokers: {b: {}}
switches: {x: {}}
ports: {p: {switch: x, bandwidth_bps: 80000}}
publishers: {a: {publishes: {t: {rate_per_second: 10, size_bytes: 100, sizes: constant}}}}
subscribers:
  s1: {port: p, subscribes: {t: log:10}}
  s2: {port: p, subscribes: {t: log:1}}
"""

MANY_COPIES = """
planning: {priority_classes: 4}
brokers: {b: {}}
switches: {x: {}}
ports: {p: {switch: x, bandwidth_bps: 800000}, q: {switch: x, bandwidth_bps: 200000}}
publishers:
  a:
    publishes:
      t: {rate_per_second: 10, size_bytes: 100, sizes: constant}
      u: {rate_per_second: 5, size_bytes: 300}
      v: {rate_per_second: 20, size_bytes: 50}
subscribers:
  s1: {port: p, subscribes: {t: log:10, u: log:1, v: log:1}}
  s2: {port: p, subscribes: {t: log:1, u: log:5, v: log:2}}
  s3: {port: p, subscribes: {t: log:2, u: log:2, v: log:9}}
  s4: {port: q, subscribes: {t: log:1, u: log:9, v: log:1}}
  s5: {port: q, subscribes: {t: log:9, u: log:1, v: log:3}}
"""


def test_copies_of_one_event_meet_at_a_shared_port() -> None:
    _, result = predicted(SHARED)
    # M^[2]/D/1: a batch of two is one customer of 0.1 s, and a copy waits half a copy for its twin.
    batch_wait = 2 * 0.1**2 / 2 / (1 - 0.2)
    assert result.latency_seconds == pytest.approx([batch_wait + 0.025 + 0.05] * 2, abs=1e-6)


@pytest.mark.parametrize(
    ("order", "milliseconds"),
    [
        # Half the squares of a batch are 1/2 * 10/s * (10 ms)^2 and, for both, 1/2 * 10/s * (20 ms)^2.
        ("by_class", [1 / 0.9 + 10, (2 / 0.8 + 10) / 0.9 + 10]),
        # Half the time at an idle port class 1 comes first: 0.8 * 1/2 transmissions, and F B of that in the squares.
        ("random", [(1 + 0.4) / 0.9 + 0.4 * 10 + 10, (2 / 0.8 + 10 - 0.4 * 10) / 0.9 + 10]),
    ],
)
def test_the_first_copy_at_an_idle_port_is_that_of_the_sending_order(
    order: str, milliseconds: list[float]
) -> None:
    scenario, result = predicted(f"sending_order: {order}\n{TWO_CLASSES}", priorities="greedy")
    if order == "random":
        assert result.approximations == (REASONS[Reason.SENDING_ORDER],)
        result = forecast(scenario, make_plan(scenario, drops="none"))
        assert result.sampled.all()
    allowed = 0.01 if order == "by_class" else 0.02 * max(milliseconds)
    assert result.latency_seconds * 1000 == pytest.approx(milliseconds, abs=allowed)
    found = simulate(scenario, make_plan(scenario, drops="none"), publications=40_000, seed=5).subscriptions
    assert result.latency_seconds == pytest.approx(found.mean_latency_seconds, rel=0.02)


@pytest.mark.parametrize("order", ["by_class", "random"])
def test_forecast_is_that_of_the_simulation_in_both_sending_orders(order: str) -> None:
    """A light load, where the order matters most: four classes, and topics of several sizes."""
    text = f"sending_order: {order}\n{MANY_COPIES}"
    scenario = loads(text)
    plan = make_plan(scenario, priorities="greedy", drops="none")
    result = forecast(scenario, plan)
    found = simulate(scenario, plan, publications=60_000, replications=2, seed=5, threads=1).subscriptions
    off = np.abs(result.latency_seconds / found.mean_latency_seconds - 1)
    assert (off <= 0.02 + found.ci95_seconds / found.mean_latency_seconds).mean() >= 0.95


@pytest.mark.parametrize("delay", [1e-6, 1.0])
def test_copies_through_different_brokers_may_meet_which_the_forecast_says(delay: float) -> None:
    """The shared port, with the copy of s2 coming through a second broker so many seconds later."""
    link = f"broker_links: [{{between: [b, c], propagation_seconds: {delay}}}]"
    text = SHARED.replace("brokers: {b:", "brokers: {c: {}, b:")
    text = text.replace("publishers: {a: {", f"{link}\npublishers: {{a: {{broker: b, ")
    text = text.replace("s1: {", "s1: {broker: b, ").replace("s2: {", "s2: {broker: c, ")
    scenario, result = predicted(text)
    sampled = forecast(scenario, make_plan(scenario))
    assert sampled.sampled.all()
    off = np.abs(result.latency_seconds - sampled.latency_seconds)
    assert (off <= (result.latency_error + 0.02) * result.latency_seconds).all()
    assert result.approximations == (REASONS[Reason.BROKERS],)


@pytest.mark.parametrize("lookup", [0.001, 0.01, 0.02, 0.04])
def test_a_lookup_and_a_port_in_a_row_charge_a_batch_once(lookup: float) -> None:
    text = SHARED.replace("rate_per_second: 2,", "rate_per_second: 0.01,")
    text = text.replace(
        "switches: {x: {inbound_rate_per_second: 1e9}}",
        f"switches: {{x: {{inbound_rate_per_second: {1 / lookup}}}}}",
    )
    _, result = predicted(text)
    # One copy leaves the lookup an exponential time after the other, and waits for what is left of it at the port.
    transmission = 0.05
    second = transmission - lookup * (1 - np.exp(-transmission / lookup))
    assert result.latency_seconds == pytest.approx([1.5 * lookup + second / 2 + transmission] * 2, rel=0.02)


@pytest.mark.parametrize(
    ("order", "seconds"),
    # An outbound time of half a second: of each alone, so that copies do not meet at the port; or of both together.
    [("random", 0.5 + 0.05), ("by_class", 0.5 + 0.025 + 0.05)],
)
def test_copies_that_come_through_slow_outbound_queues_meet_at_the_port_if_they_are_sent_together(
    order: str, seconds: float
) -> None:
    text = SHARED.replace("rate_per_second: 2,", "rate_per_second: 0.01,")
    text = text.replace("outbound_rate_per_second: 1e9", "outbound_rate_per_second: 2")
    _, result = predicted(f"sending_order: {order}\n{text}")
    assert result.latency_seconds == pytest.approx([seconds] * 2, rel=0.02)


def test_a_switch_looks_up_packets_not_events() -> None:
    text = ONE_OF_EACH.replace("name: one of each", "mtu_bytes: 10\nfragmentation: true")
    text = text.replace("size_bytes: 50", "size_bytes: 50, sizes: constant").replace(
        "error_rate: 0.2", "error_rate: 0"
    )
    _, result = predicted(text)
    # Ten events of five packets a second: an Erlang service of 25 ms at a load of a quarter.
    lookup = 0.025 + 0.25 * (1 + 1 / 5) / 2 * 0.025 / 0.75
    port = 0.05 + 0.5 * 0.05 / 2 / 0.5
    queues = 1 / (100 - 10) + 1 / (50 - 10) + lookup + port
    assert result.latency_seconds == pytest.approx([0.25 + queues + 0.125], rel=0.001)
    _, slow = predicted(text.replace("inbound_rate_per_second: 200", "inbound_rate_per_second: 25"))
    assert slow.success == pytest.approx(result.success / 2)
    assert np.isinf(slow.latency_seconds).all()
    assert slow.approximations == (REASONS[Reason.OVERLOAD],)


def test_an_overloaded_port_has_no_finite_latency_and_delivers_what_it_can() -> None:
    _, result = predicted(ONE_OF_EACH.replace("bandwidth_bps: 8000", "bandwidth_bps: 1600"))
    assert np.isinf(result.latency_seconds).all()
    assert result.success == pytest.approx([4 / 10 * 0.5])


def test_a_finite_buffer_is_mm1k_and_says_that_it_is_approximate() -> None:
    text = ONE_OF_EACH.replace("bandwidth_bps: 8000", "bandwidth_bps: 3200, buffer_packets: 4")
    _, result = predicted(text)
    rho = 1.0
    assert rho == pytest.approx(8 * 50 * 8 / 3200)
    # At rho = 1 all five states of M/M/1/4 are equally likely: loss 1/5, mean 2 in the system.
    assert result.success == pytest.approx([0.8 * 0.8 * 0.5], rel=1e-6)
    at_port = 2 / (8 * 0.8)
    rest = 0.25 + 1 / 92 + 1 / 42 + 1 / 192 + 0.125
    assert result.latency_seconds == pytest.approx([at_port + rest], rel=1e-6)
    assert "finite buffers" in result.approximations


def test_starved_classes_behind_a_full_buffer_are_unknown_not_invented() -> None:
    text = """
name: starved
planning: {flows_per_subscriber: 3, priority_classes: 3}
brokers: {b: {}}
switches: {x: {}}
ports: {p: {switch: x, bandwidth_bps: 8000, buffer_packets: 10}}
publishers:
  a:
    publishes:
      high: {rate_per_second: 10, size_bytes: 50}
      middle: {rate_per_second: 20, size_bytes: 50}
      low: {rate_per_second: 20, size_bytes: 50}
subscribers: {s: {port: p, subscribes: {high: log:100, middle: log:10, low: log:1}}}
"""
    scenario, result = predicted(text, priorities="greedy")
    high, low, middle = (scenario.topics.name.index(name) for name in ("high", "low", "middle"))
    assert result.success[high] > 0.99
    assert 0.4 < result.success[middle] < 0.6
    assert result.success[low] < 0.01
    assert result.latency_seconds[high] < 0.3
    assert result.latency_seconds[middle] == pytest.approx(10 / (20 * result.success[middle]), rel=0.01)
    assert np.isnan(result.latency_seconds[low])


def test_periodic_arrivals_wait_less_and_bursts_wait_longer_than_poisson() -> None:
    def latency(arrivals: str) -> float:
        text = ONE_OF_EACH.replace("size_bytes: 50}", f"size_bytes: 50, arrivals: {arrivals}}}")
        _, result = predicted(text)
        return float(result.latency_seconds[0])

    poisson = latency("poisson")
    assert latency("periodic") < poisson
    assert latency("{process: on_off, on_seconds: 1, off_seconds: 4}") > poisson
    bursts = "arrivals: {process: on_off, on_seconds: 1, off_seconds: 4}}"
    _, result = predicted(ONE_OF_EACH.replace("size_bytes: 50}", f"size_bytes: 50, {bursts}"))
    assert result.approximations == (REASONS[Reason.ARRIVALS],)
    assert result.latency_error[0] > 0.02


def test_arrivals_as_variable_as_poisson_ones_are_not_taken_for_these() -> None:
    # Pareto gaps of this shape have a ca2 of 1, but none of them is short.
    pareto = "arrivals: {process: pareto, shape: 2.414213562373095}}"
    scenario, result = predicted(ONE_OF_EACH.replace("size_bytes: 50}", f"size_bytes: 50, {pareto}"))
    assert topic_arrivals(scenario).ca2 == pytest.approx(1.0)
    assert result.approximations == (REASONS[Reason.ARRIVALS],)
    assert result.latency_error[0] > 0.02


def test_endless_variance_gives_no_finite_mean() -> None:
    text = ONE_OF_EACH.replace("size_bytes: 50}", "size_bytes: 50, arrivals: {process: pareto, shape: 1.5}}")
    _, result = predicted(text)
    assert np.isinf(result.latency_seconds).all()


def test_drops_come_before_the_first_port_and_thin_every_port_on_the_way() -> None:
    text = """
name: two switches
brokers: {b: {}}
switches: {x: {}, y: {fed_by: trunk}}
ports:
  trunk: {switch: x, bandwidth_bps: 8e6, error_rate: 0.1, propagation_seconds: 0.5}
  last: {switch: y, bandwidth_bps: 4000}
publishers: {a: {publishes: {t: {rate_per_second: 20, size_bytes: 50}}}}
subscribers: {s: {port: last, subscribes: {t: log:1}}}
"""
    scenario = loads(text)
    plan = make_plan(scenario, drops="flat")
    result = forecast(scenario, plan, formulas=True)
    # What the trunk loses takes no room behind it.
    keep = 0.9 * 500 / (1000 * 0.9)
    trunk, last = (scenario.ports.name.index(name) for name in ("trunk", "last"))
    assert plan.ports.rho_planned[last] == pytest.approx(0.9)
    assert plan.ports.rho_planned[trunk] == pytest.approx(keep * 1000 / 1e6)
    assert result.success == pytest.approx([keep * 0.9])
    assert result.latency_seconds[0] > 0.5
    # A trunk so much faster than what hangs below it makes nothing approximate.
    assert result.approximations == ()


MANY_PORTS = """
name: ports of every kind
sending_order: {order}
brokers: {b: {outbound_rate_per_second: 400}}
switches: {x: {inbound_rate_per_second: 900}, y: {fed_by: trunk}}
ports:
  trunk: {switch: x, bandwidth_bps: 60000, error_rate: 0.1, propagation_seconds: 0.5}
  far: {switch: y, bandwidth_bps: 30000}
  further: {switch: y, bandwidth_bps: 50000}
  full: {switch: x, bandwidth_bps: 20000, buffer_packets: 9}
  near: {switch: x, bandwidth_bps: 40000}
publishers:
  a: {publishes: {t: {rate_per_second: 9, size_bytes: 70}, u: {rate_per_second: 4, size_bytes: 90, sizes: constant}}}
subscribers:
  s0: {port: near, subscribes: {t: log:4, u: log:1}}
  s1: {port: far, subscribes: {t: log:4, u: log:1}}
  s2: {port: full, subscribes: {t: log:1, u: log:9}}
  s3: {port: near, subscribes: {t: log:1}}
  s4: {port: further, subscribes: {t: log:2, u: log:4}}
  s5: {port: far, subscribes: {u: log:9}}
  s6: {port: full, subscribes: {t: log:9, u: log:2}}
"""


@pytest.mark.parametrize("order", ["by_class", "random"])
def test_ports_have_the_same_forecast_one_by_one_and_all_at_once(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MANY_PORTS.replace("{order}", order)
    _, at_once = predicted(text, priorities="cluster", drops="optimal")
    monkeypatch.setattr("triagemq.forecast.downstream.MOST_TOGETHER", 1)
    _, one_by_one = predicted(text, priorities="cluster", drops="optimal")
    for column in ("success", "latency_seconds", "reason", "latency_error", "success_error"):
        assert getattr(one_by_one, column) == pytest.approx(getattr(at_once, column), rel=1e-12), column
    assert one_by_one.percentile_seconds(0.95) == pytest.approx(at_once.percentile_seconds(0.95), rel=1e-12)
    assert np.isfinite(at_once.latency_seconds).all()


def test_a_trunk_above_leaves_at_different_depths_is_one_queue() -> None:
    text = """
name: leaves at two depths
brokers: {b: {}}
switches: {core: {}, floor: {fed_by: trunk}, room: {fed_by: riser}}
ports:
  trunk: {switch: core, bandwidth_bps: 8000}
  riser: {switch: floor, bandwidth_bps: 1e9}
  near: {switch: floor, bandwidth_bps: 1e9}
  far: {switch: room, bandwidth_bps: 1e9}
publishers:
  a: {publishes: {t: {rate_per_second: 3, size_bytes: 50}, u: {rate_per_second: 7, size_bytes: 50}}}
subscribers:
  hall: {port: near, subscribes: {t: log:1}}
  cellar: {port: far, subscribes: {u: log:1}}
"""
    _, result = predicted(text)
    # Both go through one M/M/1 of 20 events a second.
    assert result.latency_seconds == pytest.approx([1 / (20 - 10)] * 2, abs=1e-4)


def test_freshness_costs_utility_and_nothing_delivered_is_worth_nothing() -> None:
    text = ONE_OF_EACH.replace("t: log:1", "t: {utility: {shape: log, weight: 1, freshness_seconds: 2}}")
    _, result = predicted(text)
    assert result.utility == pytest.approx(np.log(1.4) * np.exp(-result.latency_seconds / 2))
    assert result.maximum_utility == pytest.approx([np.log(2)])
    _, overloaded = predicted(text.replace("bandwidth_bps: 8000", "bandwidth_bps: 1600"))
    assert overloaded.utility == pytest.approx([0.0])


LOSSY = """
name: cut events over lossy links
mtu_bytes: 100
fragmentation: true
brokers: {b: {}}
switches: {x: {}}
ports: {p: {switch: x, bandwidth_bps: 1e6}}
publishers:
  a:
    error_rate: 0.1
    publishes:
      constant: {rate_per_second: 10, size_bytes: 250, sizes: constant}
      mixed: {rate_per_second: 10, size_bytes: 50, sizes: constant}
  c:
    publishes: {mixed: {rate_per_second: 10, size_bytes: 350, sizes: constant}}
subscribers:
  s: {port: p, error_rate: 0.2, subscribes: {constant: log:1, mixed: log:1}}
"""


def test_an_event_is_lost_with_any_of_its_packets() -> None:
    scenario, result = predicted(LOSSY)
    constant, mixed = (scenario.topics.name.index(name) for name in ("constant", "mixed"))
    assert result.success[constant] == pytest.approx((0.9 * 0.8) ** 3)
    assert result.success[mixed] == pytest.approx((0.9 * 0.8 + 0.8**4) / 2)
    # The planner expects the same, so that utility is planned with what arrives.
    assert demand(scenario).ideal_success == pytest.approx(result.success)


def test_what_lossy_links_spare_is_smaller_and_so_quicker() -> None:
    scenario, result = predicted(LOSSY)
    sizes = demand(scenario)
    mixed = scenario.topics.name.index("mixed")
    small, large = 10 * 0.9, 10.0
    assert sizes.sizes.event_bytes[mixed] == pytest.approx((small * 50 + large * 350) / (small + large))
    small, large = small * 0.8, large * 0.8**4
    assert sizes.delivered.event_bytes[mixed] == pytest.approx((small * 50 + large * 350) / (small + large))
    assert result.latency_seconds[mixed] < forecast_without_loss(LOSSY)[mixed]


def forecast_without_loss(text: str) -> Floats:
    _, result = predicted(text.replace("error_rate: 0.2, ", ""))
    return result.latency_seconds


def test_copies_that_come_together_fill_a_buffer_sooner_than_single_ones() -> None:
    def lost(topics: list[str]) -> float:
        publishes = ", ".join(f"{name}: {{rate_per_second: 10, size_bytes: 50}}" for name in set(topics))
        subscribers = "\n".join(
            f"  s{n}: {{port: p, subscribes: {{{name}: log:1}}}}" for n, name in enumerate(topics)
        )
        _, result = predicted(
            "name: buffer\nbrokers: {b: {}}\nswitches: {x: {}}\n"
            "ports: {p: {switch: x, bandwidth_bps: 20000, buffer_packets: 20}}\n"
            f"publishers: {{a: {{publishes: {{{publishes}}}}}}}\nsubscribers:\n{subscribers}\n"
        )
        return float(1 - result.success.mean())

    one_by_one, together = lost(["t1", "t2", "t3", "t4"]), lost(["t"] * 4)
    # M/M/1/20 at 0.8; a batch of four of one size holds 4 times as much work at once, so 5 of its packets fit.
    assert one_by_one == pytest.approx(0.2 * 0.8**20 / (1 - 0.8**21), rel=1e-6)
    assert together == pytest.approx(0.2 * 0.8**5 / (1 - 0.8**6), rel=1e-6)
