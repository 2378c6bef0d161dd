"""Re-plan after one subscriber changes its mind, among ten thousand and among a million subscriptions."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from measuring import finish, machine, options, peak_memory_bytes
from triagemq.coordinator.decide.decide import Decided, Question, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.rates import Rates
from triagemq.intents import (
    PublicationIntent,
    PublisherIntent,
    SubscriberIntent,
    SubscriptionIntent,
    Utility,
)
from triagemq.lab.generators import table2
from triagemq.scenario import Scenario
from triagemq.scenario.model import take

STAGES = ("book", "scenario", "decide")
LIMIT_SECONDS = {10_000: 0.1, 1_000_000: 2.0}


def situation_of(subscriptions: int) -> tuple[Scenario, list[SubscriberIntent]]:
    """Table 2's publishers, and a hundred subscriptions for each subscriber, ten subscribers to a port."""
    subscribers = subscriptions // 100
    base = table2(seed=1, subscribers=subscribers, subscriptions=(62, 38))
    shared = (np.arange(subscribers) // 10).astype(np.int32)
    used = take(base.ports, np.arange(shared[-1] + 1))
    network = replace(
        base,
        ports=replace(used, bandwidth_bps=used.bandwidth_bps * 10),
        subscribers=replace(base.subscribers, port=shared),
    )
    wanted = base.subscriptions
    topics = [base.topics.name[topic] for topic in wanted.topic.tolist()]
    weights = wanted.utility_weight.tolist()
    intents = [
        SubscriberIntent(
            name=name,
            subscriptions=tuple(
                SubscriptionIntent(topics[row], Utility("log", weights[row]))
                for row in range(100 * number, 100 * number + 100)
            ),
        )
        for number, name in enumerate(base.subscribers.name)
    ]
    return network, intents


def filled_book(network: Scenario, intents: list[SubscriberIntent]) -> IntentBook:
    book = IntentBook()
    published = network.publications
    by_publisher: dict[str, list[PublicationIntent]] = {}
    for row in range(len(published)):
        by_publisher.setdefault(network.publishers.name[published.publisher[row]], []).append(
            PublicationIntent(
                network.topics.name[published.topic[row]],
                float(published.rate_per_second[row]),
                float(published.size_bytes[row]),
            )
        )
    for name, publications in by_publisher.items():
        book.announce(PublisherIntent(tuple(publications), name=name))
    for intent in intents:
        book.announce(intent)
    return book


def changed(intent: SubscriberIntent, turn: int) -> SubscriberIntent:
    """The same subscriber, to whom other topics matter now."""
    worth = [2.0 if (place + turn) % 7 == 0 else 0.5 for place in range(len(intent.subscriptions))]
    return replace(
        intent,
        subscriptions=tuple(
            replace(each, utility=Utility("log", weight))
            for each, weight in zip(intent.subscriptions, worth, strict=True)
        ),
    )


def replanned(
    book: IntentBook, network: Network, intent: SubscriberIntent, previous: Decided
) -> tuple[Decided, list[float]]:
    times = [time.perf_counter()]
    book.announce(intent)
    times.append(time.perf_counter())
    scenario = book.scenario(network, Rates())
    times.append(time.perf_counter())
    decided = decide(Question(scenario, (f"{intent.name} changes its intent",)), previous)
    times.append(time.perf_counter())
    return decided, [after - before for before, after in pairwise(times)]


def measure(subscriptions: int, turns: int) -> dict[str, Any]:
    base, intents = situation_of(subscriptions)
    network = Network(base)
    started = time.perf_counter()
    book = filled_book(base, intents)
    announced = time.perf_counter()
    decided = decide(Question(book.scenario(network, Rates())))
    first = time.perf_counter()
    # As a service does after start-up: what is there to stay is not looked at again.
    gc.freeze()
    stages, instructions = [], []
    for turn in range(turns):
        before = decided.orders
        decided, times = replanned(book, network, changed(intents[turn * 7 % len(intents)], turn), decided)
        stages.append(times)
        instructions.append(
            sum(before.topics.get(name) != topics for name, topics in decided.orders.topics.items())
        )
    gc.unfreeze()
    medians = [statistics.median(turn[stage] for turn in stages) for stage in range(len(STAGES))]
    return {
        "subscriptions": len(decided.scenario.subscriptions),
        "subscribers": len(intents),
        "flows": len(decided.plan.flows),
        "turns": turns,
        "announce_all_seconds": announced - started,
        "first_plan_seconds": first - announced,
        "median_seconds": statistics.median(sum(turn) for turn in stages),
        "slowest_seconds": max(sum(turn) for turn in stages),
        "stage_median_seconds": dict(zip(STAGES, medians, strict=True)),
        "subscribers_changed_median": statistics.median(instructions),
        "limit_seconds": LIMIT_SECONDS.get(subscriptions),
    }


def main() -> None:
    arguments = options(__doc__).parse_args()
    measure(1_000, 2)  # compiles
    sizes = [10_000, 100_000] if arguments.quick else [10_000, 1_000_000]
    runs = [measure(size, 11 if size < 1_000_000 else 7) for size in sizes]
    lines = []
    for run in runs:
        stages = ", ".join(f"{name} {1000 * run['stage_median_seconds'][name]:.1f}" for name in STAGES)
        limit = "" if run["limit_seconds"] is None else f", limit {1000 * run['limit_seconds']:.0f}"
        lines.append(
            f"{run['subscriptions']:,} subscriptions of {run['subscribers']:,} subscribers, {run['flows']:,} flows: "
            f"median {1000 * run['median_seconds']:.1f} ms{limit} (slowest {1000 * run['slowest_seconds']:.1f}); "
            f"{stages}; {run['subscribers_changed_median']:.0f} subscribers changed"
        )
    peak = peak_memory_bytes()
    lines.append(f"peak memory {peak / 2**30:.2f} GiB")
    result = {
        "runs": runs,
        "peak_memory_bytes": peak,
        "machine": machine("triagemq", "numpy", "numba", "scipy"),
    }
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
