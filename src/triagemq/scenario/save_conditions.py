"""Conditions and worth profiles as YAML text, for whoever writes a scenario with what happens in it."""

from __future__ import annotations

from collections.abc import Iterator

from triagemq.scenario.conditions import (
    Condition,
    Conditions,
    ErrorRate,
    LinkState,
    PortBandwidth,
    PublicationRate,
    PublisherState,
    SubscriberState,
    WorthChange,
)
from triagemq.scenario.model import Scenario
from triagemq.scenario.save_text import Fields, entry, flow, quoted, section
from triagemq.scenario.units import number_text

__all__ = ["conditions_text"]


def conditions_text(scenario: Scenario, conditions: Conditions) -> str:
    """The sections `worth_profiles` and `conditions`; empty if there is nothing in them."""
    timeline = (f"  - {flow(_fields(scenario, conditions, each))}" for each in conditions.timeline)
    lines = [*section("worth_profiles", _profiles(conditions)), *section("conditions", timeline)]
    return "".join(f"{line}\n" for line in lines)


def _profiles(conditions: Conditions) -> Iterator[str]:
    for name, factors in conditions.profiles.items():
        yield entry("  ", name, "" if factors else "{}")
        for topic, factor in factors.items():
            yield entry("    ", topic, number_text(factor))


def _fields(scenario: Scenario, conditions: Conditions, condition: Condition) -> Fields:
    when = ("at_seconds", number_text(condition.at_seconds))
    match condition:
        case PortBandwidth():
            return [
                when,
                ("port", quoted(condition.port)),
                ("bandwidth_bps", number_text(condition.bandwidth_bps)),
            ]
        case PublisherState():
            state = "returns" if condition.works else "fails"
            return [when, ("publisher", quoted(condition.publisher)), ("state", state)]
        case SubscriberState():
            state = "joins" if condition.present else "leaves"
            return [when, ("subscriber", quoted(condition.subscriber)), ("state", state)]
        case LinkState():
            ends = ", ".join(map(quoted, _ends(scenario, conditions, condition.port)))
            return [when, ("link", f"[{ends}]"), ("state", "returns" if condition.up else "fails")]
        case ErrorRate():
            lost = number_text(condition.error_rate)
            return [when, (condition.of, quoted(condition.name)), ("error_rate", lost)]
        case PublicationRate():
            fields = [when]
            if condition.publisher is not None:
                fields.append(("publisher", quoted(condition.publisher)))
            fields.append(("topic", quoted(condition.topic)))
            if condition.rate_per_second is not None:
                return [*fields, ("rate_per_second", number_text(condition.rate_per_second))]
            return [*fields, ("rate_factor", number_text(condition.rate_factor or 1.0))]
        case WorthChange():
            return [when, ("worth_profile", quoted(condition.profile))]


def _ends(scenario: Scenario, conditions: Conditions, port: str) -> tuple[str, str]:
    """The switch of a port, and the one that it feeds, or would as a backup."""
    row = scenario.ports.name.index(port)
    fed = [
        name
        for name, feeder in zip(scenario.switches.name, scenario.switches.fed_by_port, strict=True)
        if feeder == row or conditions.backups.get(name) == port
    ]
    return scenario.switches.name[scenario.ports.switch[row]], fed[0]
