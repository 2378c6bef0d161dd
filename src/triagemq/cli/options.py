"""Options that several commands share, and how their results are printed."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.broker import BrokerAddress
    from triagemq.pipeline import SparkOptions

_UNIT_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

File = Annotated[Path, typer.Argument(help="Scenario: a YAML file, or a directory with Parquet tables.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]
Flows = Annotated[str, typer.Option("--flows", help="greedy, random, or module:function.")]
Priorities = Annotated[
    str | None,
    typer.Option("--priorities", help="greedy (default), cluster, info, random, none, or module:function."),
]
Drops = Annotated[
    str | None,
    typer.Option("--drops", help="none, flat, linear, exponential, optimal (default), or module:function."),
]
Babbling = Annotated[
    list[str] | None,
    typer.Option(help="A publisher that sends promised messages as fast as it can; may be repeated."),
]
Synchronised = Annotated[
    bool,
    typer.Option("--synchronised", help="All promised messages begin together, not in random phases."),
]
Control = Annotated[
    str,
    typer.Option(
        help="Divide ports with queue rates anew every 200 ms by delays from: idm, backlog, learned (default: off)."
    ),
]
DelayModelFolder = Annotated[
    Path | None, typer.Option("--delay-model", help="With --control learned: the directory of its model.")
]
Formulas = Annotated[
    bool,
    typer.Option("--formulas", help="Formulas alone: follow no sample of events where they are approximate."),
]
Scope = Annotated[str, typer.Option("--scope", help="Cut classes over the flows of one port, or global.")]
Classes = Annotated[
    int | None, typer.Option("--classes", min=1, help="Priority classes (default: the scenario's).")
]
FlowsPerSubscriber = Annotated[
    int | None,
    typer.Option(
        "--flows-per-subscriber", min=1, help="Flows a subscriber may open (default: the scenario's)."
    ),
]
RhoTolerance = Annotated[
    float | None,
    typer.Option("--rho-tolerance", help="Share of each port left free (default: the scenario's)."),
]
PlanFile = Annotated[
    Path | None, typer.Option("--plan", help="Use this plan (from `triage plan -o`) instead of making one.")
]
ClientAuthority = Annotated[
    Path | None,
    typer.Option(
        "--client-ca", help="With DTLS: clients need a certificate of the authority in this file (PEM)."
    ),
]
BrokerAuthority = Annotated[
    Path | None,
    typer.Option(
        "--broker-ca", help="With mqtts://: certificate of the authority to trust (default: the system's)."
    ),
]
SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="A Spark cluster, as spark://host:7077 (default: as spark-submit or spark-defaults.conf say).",
    ),
]
SparkConf = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark's, key=value; may be repeated.")
]


@dataclass(frozen=True, slots=True)
class ExchangePlanning:
    """How an exchange plans: options of `up` and `emulate`, one for each field."""

    no_triage: Annotated[
        bool, typer.Option("--no-triage", help="One queue, no drops: what a plain exchange does.")
    ] = False
    priorities: Priorities = None
    drops: Drops = None
    flows: Flows = "greedy"
    control: Control = "off"
    delay_model: DelayModelFolder = None
    seed: Seed = 0

    def settings(self) -> dict[str, Any]:
        """As fields of RigOptions; ParameterError where control lacks its model."""
        from triagemq.gateway.config import check_control

        check_control(self.control, self.delay_model)
        chosen = {"flows": self.flows, "priorities": self.priorities, "drops": self.drops}
        return {
            "no_triage": self.no_triage,
            "seed": self.seed,
            "planner": {name: value for name, value in chosen.items() if value is not None},
            "control": self.control,
            "delay_model": self.delay_model,
        }


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of a record in the place of each parameter that is one: they are its options.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Whom:
    ...     gateway: str = "localhost"
    ...     name: str = ""
    >>> def pub(topic: str, whom: Whom, json: bool = False) -> None:
    ...     print(topic, whom, json)
    >>> import inspect
    >>> list(inspect.signature(with_groups(pub)).parameters)
    ['topic', 'gateway', 'name', 'json']
    >>> with_groups(pub)("smoke", name="room-3")
    smoke Whom(gateway='localhost', name='room-3') False
    """
    own = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        each.name: each.annotation for each in own.parameters.values() if is_dataclass(each.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        parameters += _options(groups[each.name]) if each.name in groups else [each]
    # Python wants parameters without a default first, and a Typer command is called by names alone.
    named = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) if number else each
        for number, each in enumerate(parameters)
    ]
    signature = own.replace(parameters=named)

    @functools.wraps(command)
    def run(*arguments: Any, **given: Any) -> None:
        bound = signature.bind(*arguments, **given)
        bound.apply_defaults()
        records = {
            name: group(**{each.name: bound.arguments.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        command(**bound.arguments, **records)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in named}
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=kinds[each.name]
        )
        for each in fields(group)
    ]


def require(*packages: str) -> None:
    """An error now if a package is missing that would be needed only at the end."""
    from importlib.util import find_spec

    from triagemq.errors import MissingDependencyError

    for package in packages:
        if find_spec(package) is None:
            raise MissingDependencyError(package, MissingDependencyError.GROUPS[package])


def broker_address(broker: str, authority: Path | None) -> BrokerAddress:
    """Where a broker that runs is; ParameterError if that, or a file that TLS needs, is of no use."""
    from triagemq.broker import BrokerAddress

    address = BrokerAddress.parse(broker)
    if authority is not None:
        if not address.tls:
            raise ParameterError("--broker-ca", "goes with --broker mqtts://HOST")
        address = replace(address, ca=str(authority.absolute()))
    address.ssl_context()
    return address


def spark_options(master: str | None, conf: list[str] | None, *, ui: bool = False) -> SparkOptions:
    """How a command runs Spark, as its options say."""
    from triagemq.pipeline import SparkOptions

    settings = {}
    for setting in conf or []:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise ParameterError("--conf", f"is {setting!r}; write spark.some.setting=value")
        settings[key] = value
    return SparkOptions(master=master, conf=settings, ui=ui)


def seconds_of(text: str | float) -> float:
    """A time as people write it, with or without a unit.

    >>> seconds_of("8ms"), seconds_of("0.5"), seconds_of("250 us"), seconds_of("1.5h")
    (0.008, 0.5, 0.00025, 5400.0)
    """
    found = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?) *(us|ms|[smhdw])?", str(text).strip())
    number, unit = found.groups() if found else ("", None)
    try:
        return float(number) * _UNIT_SECONDS[unit or "s"]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; write 0.008, 8ms or 7d") from None


def retention_seconds(text: str | float) -> float:
    """How long something is stored, with its unit: 7 alone may mean days or seconds. A number is a remembered time."""
    if isinstance(text, float):
        return text
    seconds = seconds_of(text)
    if not seconds or not text.strip()[-1].isalpha():
        raise typer.BadParameter(f"{text!r} is no time with a unit; write 12h or 7d")
    return seconds


Front = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT where MQTT clients connect instead of at the broker, to be served by the plan."
    ),
]
FrontTls = Annotated[
    str | None,
    typer.Option(metavar="CERT,KEY", help="Its certificate and key (PEM files): TLS at --front."),
]


def front_files(front: str | None, tls: str | None) -> tuple[str, str] | None:
    """Paths of certificate and key; ParameterError for what is no pair of files."""
    if tls is None:
        return None
    if front is None:
        raise ParameterError("--front-tls", "goes with --front HOST:PORT")
    certificate, _, key = tls.partition(",")
    for file in (certificate, key):
        if not Path(file).is_file():
            raise ParameterError("--front-tls", f"must be CERT,KEY, two PEM files; {file!r} is none")
    return str(Path(certificate).absolute()), str(Path(key).absolute())
