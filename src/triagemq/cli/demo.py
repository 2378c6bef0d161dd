"""`triage demo`: the whole loop on the building fire."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from triagemq.cli.options import Seed, duration, percent

__all__ = ["CONFIGURATIONS", "demo"]

CONFIGURATIONS = (
    ("one queue for all", "none", "none"),
    ("priorities", "greedy", "none"),
    ("priorities and drops", "greedy", "exponential"),
)
"""The three configurations that PrioDeX section 6.2 compares: title, priorities, drops."""

BUFFER_PACKETS = 2000
"""The switch buffer of PrioDeX section 6.2."""


def demo(seed: Seed = 0) -> None:
    """Generate a building fire, plan it, and see what each way of sharing the network delivers."""
    from triagemq.forecast import forecast, summary
    from triagemq.plan import explain, make_plan
    from triagemq.scenario.generators import building

    console = Console()
    scenario = building(seed=seed, buffer_packets=BUFFER_PACKETS)
    console.print(
        f"[bold]{scenario.name}[/bold]: {len(scenario.publishers)} publishers, "
        f"{scenario.publications.rate_per_second.sum():.0f} events/s on {len(scenario.topics)} topics, "
        f"{len(scenario.subscribers)} subscribers with {len(scenario.subscriptions)} subscriptions."
    )
    results = []
    for _, priorities, drops in CONFIGURATIONS:
        made = make_plan(scenario, priorities=priorities, drops=drops, seed=seed)
        results.append(summary(scenario, made, forecast(scenario, made)))
    for port in results[-1]["ports"]:
        console.print(
            f"Port {port['port']}: offered {percent(port['rho_offered'])} of what it can carry, "
            f"planned {percent(port['rho_planned'])}."
        )
    made = make_plan(scenario, priorities="greedy", drops="exponential", seed=seed)
    console.print(_comparison(results))
    for (title, _, _), result in zip(CONFIGURATIONS, results, strict=True):
        console.print(f"{title}: {percent(result['utility']['rate'])} of the maximum utility")
    subscriber = next(name for name in scenario.subscribers.name if name.startswith("ff-"))
    row = int((scenario.subscriptions.subscriber == scenario.subscribers.name.index(subscriber)).argmax())
    topic = scenario.topics.name[scenario.subscriptions.topic[row]]
    console.print(f"\n[bold]Why {topic} got what it got for {subscriber}[/bold]")
    console.print(explain(scenario, made, subscriber, topic), soft_wrap=True, highlight=False)


def _comparison(results: list[dict[str, list[dict[str, float]]]]) -> Table:
    """Success and latency per class, the three configurations side by side."""
    table = Table(title="forecast per priority class", title_justify="left")
    table.add_column("class", justify="right")
    for title, _, _ in CONFIGURATIONS:
        table.add_column(f"{title}\nsuccess", justify="right")
        table.add_column("\nlatency", justify="right")
    by_class = [{row["priority_class"]: row for row in result["classes"]} for result in results]
    for level in sorted(by_class[-1]):
        cells = [str(level)]
        for rows in by_class:
            # With one queue every class fares as class 0 does.
            row = rows.get(level, rows[0])
            cells += [percent(row["success_rate"]), duration(row["mean_latency_seconds"])]
        table.add_row(*cells)
    return table
