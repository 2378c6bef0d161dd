"""`triage topics carry`: events with codes of topics leave by the ports that want parts of the tree of topics.

The ports are network interfaces of this machine, members of a bridge, or those of OpenFlow switches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triagemq.addresses import Exposed, check_listeners
from triagemq.errors import ParameterError
from triagemq.live.up.kernel_ports import given_for
from triagemq.network.linux import LinuxDataPlane
from triagemq.network.openflow import OpenFlowSwitches, SwitchTls
from triagemq.network.openflow.rules import switch_name
from triagemq.network.openflow.session import parse_place
from triagemq.plan.dataplane import FlowKey, Instruction, SetFlow, SetPort
from triagemq.topic_codes import EVENT_PORT, CodeBook, Prefix, subtree_prefix

_BUFFER_PACKETS = 1000.0
_CLASS = re.compile(r"@(\d+)$")


@dataclass(frozen=True, slots=True)
class SubtreeRoute:
    """A part of the tree of topics that is to leave by a port, in a class."""

    port: str
    topic_filter: str
    prefix: Prefix
    priority_class: int = 0

    @classmethod
    def parse(cls, text: str, book: CodeBook) -> SubtreeRoute:
        """From PORT=FILTER or PORT=FILTER@CLASS.

        >>> book = CodeBook()
        >>> book.add(["city/hall/smoke"])
        1
        >>> route = SubtreeRoute.parse("radio=city/#@2", book)
        >>> str(route.prefix), route.priority_class
        ('ff1e:8000::/18', 2)
        """
        port, mark, topic_filter = text.partition("=")
        if not mark or not port or not topic_filter:
            raise ParameterError("routes", f"{text!r} is not PORT=FILTER, as radio=building/floor1/#")
        found = _CLASS.search(topic_filter)
        topic_filter = _CLASS.sub("", topic_filter)
        prefix = subtree_prefix(book, topic_filter)
        return cls(port, topic_filter, prefix, 0 if found is None else int(found[1]))

    @property
    def key(self) -> FlowKey:
        return FlowKey(str(self.prefix), EVENT_PORT)


def instructions(routes: Sequence[SubtreeRoute], bandwidth_bps: float, classes: int) -> list[Instruction]:
    """For a data plane and for switches."""
    ports = dict.fromkeys(each.port for each in routes)
    return [
        *(SetPort(port, bandwidth_bps, _BUFFER_PACKETS, classes) for port in ports),
        *(
            SetFlow(each.key, each.port, number, each.priority_class, 0.0)
            for number, each in enumerate(routes)
        ),
    ]


def events_carried(
    routes: Sequence[SubtreeRoute], plane: LinuxDataPlane | OpenFlowSwitches
) -> dict[str, Any]:
    """The events of each subtree, and those that matched none, by port or switch."""
    if isinstance(plane, LinuxDataPlane):
        flows = plane.flow_counters()
        events = [flows[each.key, each.port].packets_in for each in routes]
        discarded = {port: counted.discarded for port, counted in plane.counters().ports.items()}
    else:
        switches = plane.counters()
        events = [
            sum(one.flows[each.key].packets for one in switches.values() if each.key in one.flows)
            for each in routes
        ]
        discarded = {switch_name(switch): one.discarded for switch, one in switches.items()}
    rows = [
        {
            "port": each.port,
            "filter": each.topic_filter,
            "prefix": str(each.prefix),
            "priority_class": each.priority_class,
            "events": count,
        }
        for each, count in zip(routes, events, strict=True)
    ]
    return {"routes": rows, "discarded": discarded}


def check_switch_listener(listen: str, tls: SwitchTls | None, *, insecure: bool) -> list[str]:
    """Warnings about a place where OpenFlow switches connect; ParameterError if others reach it without TLS.

    >>> check_switch_listener("tcp:127.0.0.1:6653", None, insecure=False)
    []
    >>> check_switch_listener("tcp:0.0.0.0:6653", None, insecure=True)
    ['insecure: OpenFlow at 0.0.0.0 is reached from other machines without encryption']
    """
    place = parse_place(listen)
    if isinstance(place, Path):
        return []
    lacks = None if tls is not None else "--tls-certificate, --tls-key and --switch-ca"
    return check_listeners(
        [Exposed("OpenFlow", "--openflow", place[0], tokens=None, encryption=lacks)], insecure=insecure
    )


def places_of(ports: Sequence[str], words: Sequence[str]) -> dict[str, tuple[int, str]]:
    """From PORT=DATAPATH/NAME, one for each port: where they are.

    >>> places_of(["radio"], ["radio=1/eth3"])
    {'radio': (1, 'eth3')}
    """
    found: dict[str, tuple[int, str]] = {}
    for port, where in given_for(ports, words, "DATAPATH/NAME").items():
        switch, _, name = where.partition("/")
        if not name or not switch.isdigit():
            raise ParameterError("interface", f"'{port}={where}' is not PORT=DATAPATH/NAME, as radio=1/eth3")
        found[port] = int(switch), name
    return found
