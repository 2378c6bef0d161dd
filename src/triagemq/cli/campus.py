"""Clusters of brokers on the command line: where `triage plan --placement` puts topics, and what `triage simulate
--balancing` does with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options
from triagemq.cli.options import duration, figure_table, percent, print_json, screen

if TYPE_CHECKING:
    from triagemq.plan.placement import CampusPlan
    from triagemq.scenario import Scenario

SHOWN_BROKERS = 40
SHOWN_TOPICS = 8


@dataclass(frozen=True, slots=True)
class CampusOptions:
    """How clusters of brokers share their clients."""

    placement: Annotated[
        str | None,
        typer.Option(
            help="Clusters: place topics on brokers: apart (correlated ones apart, then least used), least_used, "
            "round_robin, random, peer, stated, or module:function."
        ),
    ] = None
    correlations: Annotated[
        Path | None,
        typer.Option(help="Clusters: tables of `triage pipeline run`, of which topic_correlation is used."),
    ] = None

    def place(self, scenario: Scenario, seed: int) -> CampusPlan:
        """The requested placement."""
        from triagemq.lab.clusters import ALL_PLACEMENTS
        from triagemq.plan.placement import NO_CORRELATIONS, Correlations, place

        found = NO_CORRELATIONS
        if self.correlations is not None:
            from triagemq.pipeline.reading import Tables

            rows = Tables(self.correlations).records("topic_correlation")
            found = Correlations.between(
                scenario, ((row["topic"], row["other_topic"], row["correlation"]) for row in rows)
            )
        return place(scenario, self.placement or "apart", correlations=found, seed=seed, known=ALL_PLACEMENTS)


def show_placement(
    file: Path, campus: CampusOptions, seed: int, explain: tuple[str, str] | None, *, as_json: bool
) -> None:
    """Which broker serves which topics, or why one subscription is where it is."""
    from triagemq.plan.explaining import subscription_row
    from triagemq.plan.placement import explain_placement
    from triagemq.scenario import load

    scenario = load(file)
    placed = campus.place(scenario, seed)
    if explain is not None:
        words = explain_placement(placed, subscription_row(scenario, *explain))
        if as_json:
            print_json({"subscriber": explain[0], "topic": explain[1], "explanation": words})
        else:
            typer.echo(words)
        return
    result = placed.as_json()
    if as_json:
        print_json(result)
        return
    console = screen()
    table = figure_table(
        f"placement: {placed.algorithm}", "broker", "downlink", "matching", "uplink", "subscriptions"
    )
    table.add_column("topics", overflow="fold")
    for row in result["brokers"][:SHOWN_BROKERS]:
        table.add_row(
            f"{row['broker']} ({'head' if row['head'] else 'edge'} of {row['cluster']})",
            *(percent(row[f"{metric}_use"]) for metric in ("downlink", "matching", "uplink")),
            str(row["subscriptions"]),
            _topics(row),
        )
    console.print(table)
    if len(result["brokers"]) > SHOWN_BROKERS:
        console.print(f"... and {len(result['brokers']) - SHOWN_BROKERS} more brokers (--json has all)")
    console.print(f"the most used edge broker has {result['imbalance']:.2f} times the mean")
    for decision in placed.decisions:
        console.print(f"{decision.kind}: {decision.subject}: {decision.reason}", soft_wrap=True)


def _topics(row: dict[str, Any]) -> str:
    if row["head"]:
        return f"{row['published_topics']} published"
    more = len(row["topics"]) - SHOWN_TOPICS
    return ", ".join(row["topics"][:SHOWN_TOPICS]) + (f" and {more} more" if more > 0 else "")


def simulate_balancing(
    file: Path,
    campus: CampusOptions,
    balancing: str,
    *,
    seconds: float,
    seed: int,
    with_conditions: bool,
    as_json: bool,
) -> None:
    """Simulate the clusters of a scenario with clients that move, or do not."""
    from triagemq.lab.clusters import simulate_campus
    from triagemq.scenario import load_with_conditions
    from triagemq.scenario.conditions import Conditions

    scenario, conditions = load_with_conditions(file)
    placed = campus.place(scenario, seed)
    with options.progress_bar("simulating") as progress:
        result = simulate_campus(
            scenario,
            conditions if with_conditions else Conditions(),
            placement=placed.placement,
            balancing=balancing,
            seconds=seconds,
            progress=progress,
        )
    report = {"placement": placed.algorithm, **result.as_json()}
    if as_json:
        print_json(report)
        return
    console = screen()
    columns = (
        "broker",
        "most downlink",
        "most matching",
        "most uplink",
        "uplink at the end",
        "overloaded for",
    )
    table = figure_table(f"{seconds:g} s, placement {placed.algorithm}, balancing {balancing}", *columns)
    for row in report["brokers"][:SHOWN_BROKERS]:
        table.add_row(
            f"{row['broker']} ({row['cluster']})",
            *(percent(row[f"most_{metric}_use"]) for metric in ("downlink", "matching", "uplink")),
            percent(row["last_uplink_use"]),
            duration(row["overload_seconds"]),
        )
    console.print(table)
    for row in report["migrations"][:SHOWN_BROKERS]:
        who = _counted(row["subscriptions"], "subscription") or _counted(row["publications"], "publication")
        console.print(
            f"{row['at_seconds']:.0f} s: {who} of {', '.join(row['topics'])} from {row['source']} to {row['target']}: "
            f"{row['reason']}",
            soft_wrap=True,
        )
    if len(report["migrations"]) > SHOWN_BROKERS:
        console.print(f"... and {len(report['migrations']) - SHOWN_BROKERS} more migrations (--json has all)")
    console.print(
        f"migrations: {len(report['migrations'])}, {report['needless_migrations']} of them with no deadline at risk; "
        f"{report['late_events']:,.0f} of {report['events']:,.0f} events late, of {report['late_subscriptions']} "
        f"subscriptions; longest wait {duration(report['longest_wait_seconds'])}",
        soft_wrap=True,
    )


def _counted(number: int, noun: str) -> str:
    """
    >>> _counted(1, "topic"), _counted(3, "topic"), _counted(0, "topic")
    ('1 topic', '3 topics', '')
    """
    return f"{number} {noun}{'s' if number > 1 else ''}" if number else ""
