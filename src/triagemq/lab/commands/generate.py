"""`triage generate table2|building|prototype`: write a scenario."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from triagemq.cli import options, terminal

app = typer.Typer(help="Write a scenario: the papers' tables, or a building on fire.", no_args_is_help=True)

Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="A .yaml file, or a directory for the Parquet form; else standard output."
    ),
]
Subscribers = Annotated[int, typer.Option("--subscribers", help="Subscribers.")]
Bandwidth = Annotated[
    float | None, typer.Option("--bandwidth-bps", help="Bandwidth of each port, in bits per second.")
]
Buffer = Annotated[
    float | None,
    typer.Option("--buffer-packets", help="Packets that each port can hold (default: no limit)."),
]
Tolerance = Annotated[float, typer.Option("--rho-tolerance", help="Share of each port left free.")]
Sizes = Annotated[str, typer.Option("--sizes", help="Event sizes: exponential or constant.")]


def _pair(read: Callable[[str], Any], example: str, help: str) -> Any:
    """An option with a value for telemetry and one for events."""

    def parse(text: str | tuple[Any, Any]) -> tuple[Any, Any]:
        if isinstance(text, tuple):
            return text
        try:
            telemetry, event = text.split(",")
            return read(telemetry), read(event)
        except ValueError:
            raise typer.BadParameter(
                f"is {text!r}; write a telemetry and an event value, e.g. {example}"
            ) from None

    return typer.Option(parser=parse, metavar=example, help=help)


def _range(text: str) -> tuple[float, float]:
    low, high = text.split(":")
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Table2:
    """Every field is an option of `triage generate table2`, and a parameter of the generator."""

    seed: options.Seed = 0
    subscribers: Subscribers = 10
    publishers: Annotated[int, typer.Option(help="Publishers.")] = 160
    topics: Annotated[Any, _pair(int, "140,60", "Topics: telemetry,event.")] = "140,60"
    subscriptions: Annotated[
        Any, _pair(int, "70,42", "Subscriptions of each subscriber: telemetry,event.")
    ] = "70,42"
    topics_per_publisher: Annotated[Any, _pair(int, "4,4", "Topics of each publisher: telemetry,event.")] = (
        "4,4"
    )
    rate_means: Annotated[Any, _pair(float, "6,4", "Mean events per second: telemetry,event.")] = "6,4"
    rate_ranges: Annotated[Any, _pair(_range, "4:7,3:5", "Their ranges; outside is redrawn.")] = "4:7,3:5"
    size_means: Annotated[Any, _pair(float, "110,800", "Mean bytes: telemetry,event.")] = "110,800"
    size_ranges: Annotated[Any, _pair(_range, "90:500,500:1100", "Their ranges.")] = "90:500,500:1100"
    weight_means: Annotated[Any, _pair(float, "0.5,1", "Mean utility weights: telemetry,event.")] = "0.5,1"
    weight_ranges: Annotated[Any, _pair(_range, "0.01:2,0.1:4", "Their ranges.")] = "0.01:2,0.1:4"
    event_weight_factor: Annotated[
        float, typer.Option(help="Multiplies the weights of event topics (FireDeX Fig. 10).")
    ] = 1.0
    freshness_seconds: Annotated[
        float | None,
        typer.Option(help="Utility decays with latency over this time constant (default: never)."),
    ] = None
    sizes: Sizes = "exponential"
    bandwidth_bps: Bandwidth = None
    buffer_packets: Buffer = None
    shared_port: Annotated[bool, typer.Option("--shared-port", help="One port for all.")] = False
    flows_per_subscriber: Annotated[int, typer.Option(help="Flows a subscriber may open.")] = 9
    priority_classes: Annotated[int, typer.Option(help="Priority classes.")] = 9
    rho_tolerance: Tolerance = 0.1


@app.command()
@options.with_groups
def table2(*, out: Out = None, given: Table2, json: options.Json = False) -> None:
    """The simulation column of PrioDeX's Table 2: telemetry and events at random, one port per subscriber."""
    _generate("table2", asdict(given), out, json)


@dataclass(frozen=True, slots=True)
class Building:
    """Every field is an option of `triage generate building`, and a parameter of the generator."""

    seed: options.Seed = 0
    floors: Annotated[int, typer.Option(help="Floors.")] = 3
    rooms_per_floor: Annotated[int, typer.Option(help="Rooms on each floor.")] = 6
    fire_fighters: Annotated[int, typer.Option(help="Fire fighters inside.")] = 6
    occupants: Annotated[int, typer.Option(help="Occupants with a phone.")] = 12
    overload: Annotated[float, typer.Option(help="Offered load over what each port can carry.")] = 1.7
    buffer_packets: Annotated[float, typer.Option(help="Packets that each port can hold.")] = 200


@app.command()
@options.with_groups
def building(*, out: Out = None, given: Building, json: options.Json = False) -> None:
    """A smart building on fire: sensors, crew, commander, occupants, and too little radio."""
    _generate("building", asdict(given), out, json)


@dataclass(frozen=True, slots=True)
class Prototype:
    """Every field is an option of `triage generate prototype`, and a parameter of the generator."""

    seed: options.Seed = 0
    subscribers: Subscribers = 10
    rho: Annotated[float, typer.Option(help="Offered load of the shared port.")] = 1.7
    topics: Annotated[int, typer.Option(help="Topics, and as many priority classes.")] = 7
    publishers_per_topic: Annotated[int, typer.Option(help="Publishers, each on all topics.")] = 10
    event_bytes: Annotated[float, typer.Option(help="Bytes of an event.")] = 100
    overhead_bytes: Annotated[float, typer.Option(help="Bytes of headers on the wire.")] = 49
    bandwidth_bps_per_subscriber: Annotated[
        float, typer.Option(help="The shared port's bandwidth, over the subscribers.")
    ] = 32_000
    sizes: Sizes = "constant"
    buffer_packets: Buffer = None
    rho_tolerance: Tolerance = 0.1


@app.command()
@options.with_groups
def prototype(*, out: Out = None, given: Prototype, json: options.Json = False) -> None:
    """The prototype column of PrioDeX's Table 2: seven topics and classes, one shared port."""
    _generate("prototype", asdict(given), out, json)


def _generate(name: str, given: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Write what the generator of that name makes of what is given; a limit that is not stated is none."""
    import yaml

    from triagemq.lab import generators
    from triagemq.scenario import dumps, save
    from triagemq.scenario.building import building as building_scenario

    given |= {
        name: math.inf for name in ("freshness_seconds", "buffer_packets") if given.get(name, 0) is None
    }
    made = building_scenario if name == "building" else getattr(generators, name)
    scenario = made(**given)
    if out is not None:
        save(scenario, out)
    if as_json:
        facts = {
            "scenario": scenario.name,
            "out": None if out is None else str(out),
            "topics": len(scenario.topics),
            "publishers": len(scenario.publishers),
            "publications": len(scenario.publications),
            "subscribers": len(scenario.subscribers),
            "subscriptions": len(scenario.subscriptions),
        }
        # What is written nowhere else is in the object: JSON is YAML, too.
        terminal.print_json(
            facts if out is not None else facts | {"document": yaml.safe_load(dumps(scenario))}
        )
    elif out is None:
        typer.echo(dumps(scenario), nl=False)
    else:
        typer.echo(
            f"{out}: {len(scenario.publications)} publications, {len(scenario.subscriptions)} subscriptions",
            err=True,
        )
