"""What promised messages need of a box: publishers that are plugged in, bridges that copy, and a port that is idle.

The idle port is no part of the scenario: a switch, a port, a publisher and a subscriber of its own with one small
message every now and then. The latency of these is what this machine adds to all others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from triagemq.client.direct import GroupAddress
from triagemq.errors import NetworkError, ParameterError
from triagemq.lab.box import Box
from triagemq.lab.emulate.promised import IDLE, IDLE_ADDRESS
from triagemq.plan.admission.promises import matching
from triagemq.plan.dataplane import FlowKey, Instructed, Instruction, RemoveFlow, SetFlow, SetPort
from triagemq.scenario import LimiterKind, Scenario, Table
from triagemq.scenario.model import filled

_IDLE_KEY = FlowKey(GroupAddress.parse(IDLE_ADDRESS).group, GroupAddress.parse(IDLE_ADDRESS).port)
_IDLE_FLOW = 2**31 - 1
_IDLE_CLASSES = 7

SomeTable = TypeVar("SomeTable", bound=Table)


class CopyingPlane:
    """Follows instructions as a data plane does; the box's bridges send copies to the ports that these name."""

    def __init__(self, plane: Instructed, box: Box) -> None:
        self._plane, self._box = plane, box
        # Publications of one topic have one group and a UDP port each.
        self._copies: dict[tuple[str, str], set[int]] = {}

    def apply(self, instructions: Sequence[Instruction]) -> None:
        self._plane.apply(instructions)
        for instruction in instructions:
            match instruction:
                case SetFlow(key=FlowKey() as key, port=port) if key.is_multicast:
                    self._copy(key, port)
                case RemoveFlow(key, port) if key.is_multicast:
                    ports = [name for group, name in self._copies if group == key.address]
                    for name in [port] if port else ports:
                        self._no_longer(key, name)
                case _:
                    pass

    def _copy(self, key: FlowKey, port: str) -> None:
        there = self._copies.setdefault((key.address, port), set())
        if not there:
            self._box.set_copies(key.address, port, present=True)
        there.add(key.udp_port)

    def _no_longer(self, key: FlowKey, port: str) -> None:
        there = self._copies.get((key.address, port), set())
        there.discard(key.udp_port)
        if not there and self._copies.pop((key.address, port), None) is not None:
            self._box.set_copies(key.address, port, present=False)


def plugged_publishers(scenario: Scenario) -> list[str]:
    """Publications that may be promised: at a managed switch, and subscribed with a guarantee."""
    publication, _, _ = matching(scenario)
    rows = np.unique(scenario.publications.publisher[publication])
    return [
        scenario.publishers.name[row] for row in rows.tolist() if scenario.publishers.access_switch[row] >= 0
    ]


def require_babbling(scenario: Scenario, babbling: Collection[str], plugged: Collection[str]) -> None:
    """ParameterError if one is to babble that cannot."""
    for name in babbling:
        if name not in scenario.publishers.name:
            raise ParameterError("babbling", f"no publisher is called {name!r}")
        if name not in plugged:
            raise ParameterError(
                "babbling", f"nothing that {name!r} publishes can be promised here; it has no limiter to meet"
            )
        if not np.isfinite(scenario.publishers.access_bps[scenario.publishers.name.index(name)]):
            raise ParameterError("babbling", f"the access link of {name!r} has no rate; give it access_bps")


def require_buckets(scenario: Scenario, plugged: Collection[str]) -> None:
    """NetworkError if what is promised counts on limiters that Open vSwitch does not have."""
    publishers, switches = scenario.publishers, scenario.switches
    for name in plugged:
        switch = int(publishers.access_switch[publishers.name.index(name)])
        if switches.limiter[switch] != LimiterKind.BUCKET:
            raise NetworkError(
                f"limiters of switch {switches.name[switch]!r} are windows, those of Open vSwitch are buckets, which "
                "let more through; state model: open-vswitch (or limiter: bucket), or use --dataplane linux"
            )


def with_idle_port(scenario: Scenario, plugged: Collection[str]) -> Scenario:
    """A scenario with one more switch and port, without clients: to be laid out, not to be planned."""
    publishers = scenario.publishers
    rates = [float(publishers.access_bps[publishers.name.index(name)]) for name in plugged]
    return replace(
        scenario,
        switches=_with_row(scenario.switches, name=(IDLE,)),
        ports=_with_row(
            scenario.ports,
            name=(IDLE,),
            switch=len(scenario.switches),
            bandwidth_bps=float(scenario.ports.bandwidth_bps.min()),
        ),
        publishers=_with_row(
            publishers,
            name=(IDLE,),
            broker=0,
            access_switch=len(scenario.switches),
            access_bps=min(rates),
        ),
        subscribers=_with_row(scenario.subscribers, name=(IDLE,), broker=0, port=len(scenario.ports)),
    )


def _with_row(table: SomeTable, **columns: object) -> SomeTable:
    last = filled(type(table), 1, **columns)
    joined = {}
    for column in fields(table):  # type: ignore[arg-type]
        before, after = getattr(table, column.name), getattr(last, column.name)
        joined[column.name] = (
            (*before, *after) if isinstance(before, tuple) else np.concatenate([before, after])
        )
    return replace(table, **joined)  # type: ignore[type-var]


def idle_instructions(bandwidth_bps: float) -> list[Instruction]:
    """The port and the flow that are for copies alone."""
    return [
        SetPort(IDLE, bandwidth_bps, float("inf"), _IDLE_CLASSES),
        SetFlow(_IDLE_KEY, IDLE, _IDLE_FLOW, 0, 0.0),
    ]
