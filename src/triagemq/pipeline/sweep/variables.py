"""What a sweep can vary: how its values are written, checked, and applied to a scenario and its planning."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from triagemq.errors import ParameterError
from triagemq.plan import DROP_POLICIES, FLOW_ALGORITHMS, PRIORITY_ALGORITHMS, demand
from triagemq.plan.planner import resolve
from triagemq.scenario import Scenario, port_paths

Value = float | int | str

MOST_VALUES = 10_000
"""Of one variable; a range with more is a slip of the pen."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One thing to vary. `kind` is float, int or str; numbers lie from `least` (or above it) to `most`."""

    meaning: str
    kind: type[float] | type[int] | type[str]
    least: float = 0.0
    above_least: bool = True
    most: float = math.inf
    may_be_infinite: bool = False
    algorithms: Mapping[str, Any] | None = None

    def checked(self, name: str, value: object) -> Value:
        """The value as its column holds it, if it is possible."""
        if self.kind is str:
            return self._algorithm(name, value)
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise ParameterError(name, f"is {value!r}; a number is needed")
        number = float(value)
        if math.isnan(number) or (math.isinf(number) and not self.may_be_infinite):
            raise ParameterError(name, f"is {number}; a finite number is needed")
        if number < self.least or (self.above_least and number == self.least):
            raise ParameterError(
                name,
                f"is {value}; {'more than' if self.above_least else 'at least'} {self.least:g} is needed",
            )
        if number > self.most or (number == self.most and math.isfinite(self.most)):
            raise ParameterError(name, f"is {value}; less than {self.most:g} is needed")
        if self.kind is int:
            if number != int(number):
                raise ParameterError(name, f"is {value}; a whole number is needed")
            return int(number)
        return number

    def _algorithm(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise ParameterError(name, f"is {value!r}; the name of an algorithm is needed")
        resolve(name, value, self.algorithms or {})
        return value


# In the order in which they are applied: rates first, because rho is relative to the load they make.
VARIABLES: Mapping[str, Variable] = {
    "rate": Variable("factor on how often everything is published", float),
    "bandwidth_bps": Variable("bandwidth of every output port", float),
    "rho": Variable("offered load of every output port, by its bandwidth", float),
    "buffer_packets": Variable(
        "buffer of every output port; inf for no limit", float, 1, False, may_be_infinite=True
    ),
    "flows": Variable("flow algorithm", str, algorithms=FLOW_ALGORITHMS),
    "priorities": Variable("priority algorithm", str, algorithms=PRIORITY_ALGORITHMS),
    "drops": Variable("drop policy", str, algorithms=DROP_POLICIES),
    "flows_per_subscriber": Variable("flows a subscriber may open", int, 1, False),
    "classes": Variable("priority classes", int, 1, False),
    "rho_tolerance": Variable("share of every port left free", float, 0, False, 1.0),
}
"""Name to what it is. What is not varied is as `triage simulate` has it: the scenario's, greedy, optimal drops.

`rho` sets the bandwidth of each port so that its own offered load is exactly the value (within rounding), also
where ports differ in the file; a port that carries nothing keeps its bandwidth. `rate` multiplies the rates and
divides the separations; the lengths of on and off periods stay.
"""

_PLANNER = {
    "flows": "flows",
    "priorities": "priorities",
    "drops": "drops",
    "flows_per_subscriber": "flows_per_subscriber",
    "classes": "priority_classes",
    "rho_tolerance": "rho_tolerance",
}


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
        if len(values) > MOST_VALUES:
            raise ParameterError(
                f"--vary {name}", f"has {len(values):,} values; at most {MOST_VALUES:,} are run"
            )
        checked[name] = tuple(dict.fromkeys(variable.checked(f"--vary {name}", value) for value in values))
    if "rho" in checked and "bandwidth_bps" in checked:
        raise ParameterError(
            "--vary", "rho and bandwidth_bps both set the bandwidth of the ports; vary one of them"
        )
    return checked


def varied_scenario(scenario: Scenario, settings: Mapping[str, Value]) -> Scenario:
    """The scenario with the settings that concern what exists.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.generators import table2
    >>> make_plan(varied_scenario(table2(seed=1), {"rho": 0.8})).ports.rho_offered.round(12).tolist()
    [0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
    """
    if "rate" in settings:
        factor, publications = float(settings["rate"]), scenario.publications
        publications = replace(
            publications,
            rate_per_second=publications.rate_per_second * factor,
            min_separation_seconds=publications.min_separation_seconds / factor,
            max_separation_seconds=publications.max_separation_seconds / factor,
        )
        scenario = replace(scenario, publications=publications)
    ports = scenario.ports
    if "bandwidth_bps" in settings:
        ports = replace(ports, bandwidth_bps=np.full(len(ports), float(settings["bandwidth_bps"])))
    if "rho" in settings:
        ports = replace(ports, bandwidth_bps=_bandwidths(scenario, float(settings["rho"])))
    if "buffer_packets" in settings:
        ports = replace(ports, buffer_packets=np.full(len(ports), float(settings["buffer_packets"])))
    return scenario if ports is scenario.ports else replace(scenario, ports=ports)


def planner_settings(settings: Mapping[str, Value]) -> dict[str, Any]:
    """The settings that concern what is decided, as `make_plan` calls them."""
    return {_PLANNER[name]: value for name, value in settings.items() if name in _PLANNER}


def _bandwidths(scenario: Scenario, rho: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The bandwidth of each port at which what is offered to it, all ports downstream included, is `rho` of it."""
    asked = demand(scenario)
    crossed = port_paths(scenario)[asked.port]
    load = np.broadcast_to(asked.load_bytes_per_second[:, None], crossed.shape)
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
    if step <= 0:
        raise ParameterError(
            f"--vary {name}", f"the step of the range {text} is not above 0; write FROM:TO:STEP"
        )
    if end < begin:
        raise ParameterError(f"--vary {name}", f"the range {text} ends before it begins; write FROM:TO:STEP")
    if (end - begin) / step >= MOST_VALUES:
        raise ParameterError(f"--vary {name}", f"the range {text} has more than {MOST_VALUES:,} values")
    return [float(begin + number * step) for number in range(int((end - begin) / step) + 1)]
