"""What a sweep can vary: how its values are written, checked, and applied to a scenario and its planning."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from triagemq.errors import ParameterError
from triagemq.plan import DROP_POLICIES, FLOW_ALGORITHMS, PRIORITY_ALGORITHMS, demand
from triagemq.plan.planner import resolve
from triagemq.scenario import Scenario, port_paths

Value = float | int | str

MOST_VALUES = 10_000
"""Of one range; more are a slip of the pen."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One thing to vary: a number within limits, as pydantic's Field has them, or the name of an algorithm."""

    kind: type[float] | type[int] | type[str]
    limits: Mapping[str, Any] = field(default_factory=dict)
    algorithms: Mapping[str, Any] | None = None
    planner: str = ""
    """What `make_plan` calls it; nothing for what changes the scenario."""

    def checked(self, name: str, value: object) -> Value:
        """The value as its column holds it, if it is possible."""
        allowed: Any = Annotated[self.kind, Field(**self.limits)]
        try:
            found: Value = TypeAdapter(allowed).validate_python(value)
        except ValidationError as error:
            raise ParameterError(name, f"is {value!r}: {error.errors()[0]['msg']}") from None
        if self.algorithms is not None:
            resolve(name, str(found), self.algorithms)
        return found


_POSITIVE = {"gt": 0, "allow_inf_nan": False}
_COUNT = {"ge": 1}

# In the order in which they are applied: rates first, because rho is relative to the load they make.
VARIABLES: Mapping[str, Variable] = {
    "rate": Variable(float, _POSITIVE),  # factor on how often everything is published
    "bandwidth_bps": Variable(float, _POSITIVE),  # of every output port that has subscribers
    "rho": Variable(float, _POSITIVE),  # offered load of every output port, by its bandwidth
    "buffer_packets": Variable(float, _COUNT),  # of every output port that has subscribers; inf for no limit
    "flows": Variable(str, {}, FLOW_ALGORITHMS, "flows"),
    "priorities": Variable(str, {}, PRIORITY_ALGORITHMS, "priorities"),
    "drops": Variable(str, {}, DROP_POLICIES, "drops"),
    "flows_per_subscriber": Variable(int, _COUNT, planner="flows_per_subscriber"),
    "classes": Variable(int, _COUNT, planner="priority_classes"),
    "rho_tolerance": Variable(float, {"ge": 0, "lt": 1}, planner="rho_tolerance"),  # of every port, left free
}
"""Name to what it is. What is not varied is as `triage simulate` has it: the scenario's, greedy, optimal drops.

`rho` sets the bandwidth of each port so that its own offered load is exactly the value (within rounding), also
where ports differ in the file; a port that carries nothing keeps its bandwidth. `rate` multiplies the rates and
divides the separations; the lengths of on and off periods stay.
"""


def parse_vary(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """The values of every `--vary NAME=VALUES`: a list by commas, or a range FROM:TO:STEP with both ends.

    >>> parse_vary(["rho=0.5:1:0.25", "drops=flat,optimal", "classes=9"])
    {'rho': (0.5, 0.75, 1.0), 'drops': ('flat', 'optimal'), 'classes': (9,)}
    >>> parse_vary(["rho=1:0.5:0.1"])
    Traceback (most recent call last):
    triagemq.errors.ParameterError: --vary rho: the range 1:0.5:0.1 ends before it begins; write FROM:TO:STEP
    """
    vary: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name, values = name.strip(), values.strip()
        if not equals or not values:
            raise ParameterError("--vary", f"{text!r} should read NAME=VALUES, such as rho=0.5:2.0:0.1")
        if name in vary:
            raise ParameterError(f"--vary {name}", "is given twice; write all its values in one, by commas")
        vary[name] = _values(name, values)
    return checked_vary(vary)


def checked_vary(vary: Mapping[str, Iterable[Value] | Value]) -> dict[str, tuple[Value, ...]]:
    """The same values, each once, if all are possible and go together."""
    checked: dict[str, tuple[Value, ...]] = {}
    for name, given in vary.items():
        variable = _variable(name)
        values = (given,) if isinstance(given, str | int | float) else tuple(given)
        if not values:
            raise ParameterError(f"--vary {name}", "has no values")
        checked[name] = tuple(dict.fromkeys(variable.checked(f"--vary {name}", value) for value in values))
    if "rho" in checked and "bandwidth_bps" in checked:
        raise ParameterError(
            "--vary", "rho and bandwidth_bps both set the bandwidth of the ports; vary one of them"
        )
    return checked


def varied_scenario(scenario: Scenario, settings: Mapping[str, Value]) -> Scenario:
    """The scenario with the settings that concern what exists.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.lab.generators import table2
    >>> make_plan(varied_scenario(table2(seed=1), {"rho": 0.8})).ports.rho_offered.round(12).tolist()
    [0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
    """
    if "rate" in settings:
        scenario = replace(scenario, publications=scenario.publications.times(float(settings["rate"])))
    ports = scenario.ports
    # Trunks, the ports that feed other switches, keep their own.
    last_hop = np.isin(np.arange(len(ports)), scenario.subscribers.port)
    if "bandwidth_bps" in settings:
        ports = ports.with_bandwidths(
            np.where(last_hop, float(settings["bandwidth_bps"]), ports.bandwidth_bps)
        )
    if "rho" in settings:
        ports = ports.with_bandwidths(_bandwidths(scenario, float(settings["rho"])))
    if "buffer_packets" in settings:
        buffers = np.where(last_hop, float(settings["buffer_packets"]), ports.buffer_packets)
        ports = replace(ports, buffer_packets=buffers)
    return scenario if ports is scenario.ports else replace(scenario, ports=ports)


def planner_settings(settings: Mapping[str, Value]) -> dict[str, Any]:
    """The settings that concern what is decided, as `make_plan` calls them."""
    return {VARIABLES[name].planner: value for name, value in settings.items() if VARIABLES[name].planner}


def _bandwidths(scenario: Scenario, rho: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The bandwidth of each port at which what is offered to it, all ports downstream included, is `rho` of it."""
    demanded = demand(scenario)
    crossed = port_paths(scenario)[demanded.port]
    load = np.broadcast_to(demanded.load_bytes_per_second[:, None], crossed.shape)
    on_path = crossed >= 0
    offered = np.bincount(crossed[on_path], load[on_path], minlength=len(scenario.ports))
    return np.where(offered > 0, offered * 8 / rho, scenario.ports.bandwidth_bps)


def _variable(name: str) -> Variable:
    if name in VARIABLES:
        return VARIABLES[name]
    near = difflib.get_close_matches(name, VARIABLES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ParameterError("--vary", f"{name!r} cannot be varied; {hint}known: {', '.join(VARIABLES)}")


def _values(name: str, text: str) -> tuple[Value, ...]:
    parts = [part.strip() for part in text.split(",")]
    if _variable(name).kind is str:
        return tuple(parts)
    return tuple(value for part in parts for value in _numbers(name, part))


def _numbers(name: str, text: str) -> list[float]:
    """One number, or the range FROM:TO:STEP in decimal steps, as exact as it is written."""
    try:
        numbers = [Decimal(part.strip()) for part in text.split(":")]
    except InvalidOperation:
        raise ParameterError(f"--vary {name}", f"{text!r} is not a number or a range FROM:TO:STEP") from None
    if len(numbers) == 1:
        return [float(numbers[0])]
    if len(numbers) != 3 or not all(number.is_finite() for number in numbers):
        raise ParameterError(f"--vary {name}", f"{text!r} is not a range; write FROM:TO:STEP")
    begin, end, step = numbers
    if step <= 0 or end < begin:
        what = "ends before it begins" if step > 0 else "has a step that is not above 0"
        raise ParameterError(f"--vary {name}", f"the range {text} {what}; write FROM:TO:STEP")
    if (end - begin) / step >= MOST_VALUES:
        raise ParameterError(f"--vary {name}", f"the range {text} has more than {MOST_VALUES:,} values")
    return [float(begin + number * step) for number in range(int((end - begin) / step) + 1)]
