"""`triage topics carry`: events with codes of topics leave by the ports that want parts of the tree of topics.

The ports are network interfaces of this machine, members of a bridge, or those of OpenFlow switches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triagemq.errors import ParameterError
from triagemq.exchange.exposure import Exposed, check_listeners
from triagemq.network.linux import Interface, LinuxDataPlane
from triagemq.network.openflow import OpenFlowSwitches, SwitchTls
from triagemq.network.openflow.session import parse_place
from triagemq.plan import FlowKey, Instruction, SetFlow, SetPort
from triagemq.topic_codes import EVENT_PORT, CodeBook, Prefix, subtree_prefix

_BUFFER_PACKETS = 1000.0
_CLASS = re.compile(r"@(\d+)$")


@dataclass(frozen=True, slots=True)
class WantedSubtree:
    """A part of the tree of topics that is to leave by a port, in a class."""

    port: str
    topic_filter: str
    prefix: Prefix
    priority_class: int = 0

    @classmethod
    def parse(cls, text: str, book: CodeBook) -> WantedSubtree:
        """From PORT=FILTER or PORT=FILTER@CLASS.

        >>> book = CodeBook()
        >>> book.add(["city/hall/smoke"])
        1
        >>> wanted = WantedSubtree.parse("radio=city/#@2", book)
        >>> str(wanted.prefix), wanted.priority_class
        ('ff1e:8000::/18', 2)
        """
        port, mark, topic_filter = text.partition("=")
        if not mark or not port or not topic_filter:
            raise ParameterError("wanted", f"{text!r} is not PORT=FILTER, as radio=building/floor1/#")
        found = _CLASS.search(topic_filter)
        topic_filter = _CLASS.sub("", topic_filter)
        prefix = subtree_prefix(book, topic_filter)
        return cls(port, topic_filter, prefix, 0 if found is None else int(found[1]))

    @property
    def key(self) -> FlowKey:
        return FlowKey(str(self.prefix), EVENT_PORT)


def instructions(wanted: Sequence[WantedSubtree], bandwidth_bps: float, classes: int) -> list[Instruction]:
    """For a data plane and for switches."""
    ports = dict.fromkeys(each.port for each in wanted)
    return [
        *(SetPort(port, bandwidth_bps, _BUFFER_PACKETS, classes) for port in ports),
        *(
            SetFlow(each.key, each.port, number, each.priority_class, 0.0)
            for number, each in enumerate(wanted)
        ),
    ]


class CarryingMachine:
    """Ports of this machine, from the first instruction to `close`."""

    def __init__(
        self,
        wanted: Sequence[WantedSubtree],
        interfaces: Mapping[str, str],
        bandwidth_bps: float,
        classes: int,
    ) -> None:
        self._wanted = wanted
        self._plane = LinuxDataPlane({port: Interface(name) for port, name in interfaces.items()})
        try:
            self._plane.apply(instructions(wanted, bandwidth_bps, classes))
        except BaseException:
            self._plane.close()
            raise

    def close(self) -> dict[str, Any]:
        """Put the interfaces back; what was counted."""
        ports, copies = self._plane.counters().ports, self._plane.copies()
        self._plane.close()
        return {
            "wanted": _rows(self._wanted, lambda each: copies[each.key, each.port].packets_in),
            "discarded": {port: counted.discarded for port, counted in ports.items()},
        }


class CarryingSwitches:
    """Ports of OpenFlow switches, as DATAPATH/NAME, from the first instruction to `close`."""

    def __init__(
        self,
        wanted: Sequence[WantedSubtree],
        places: Mapping[str, tuple[int, str]],
        listen: str,
        bandwidth_bps: float,
        classes: int,
        *,
        tls: SwitchTls | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        self._wanted = wanted
        self._switches = OpenFlowSwitches(
            {switch for switch, _ in places.values()}, listen=[listen], ports=places, tls=tls, allowed=allowed
        )
        try:
            self._switches.apply(instructions(wanted, bandwidth_bps, classes))
        except BaseException:
            self._switches.close()
            raise

    def close(self) -> dict[str, Any]:
        """Take the rules away; what the switches have counted."""
        counted = self._switches.counters()
        self._switches.close()
        flows = [one.flows for one in counted.values()]

        def events(wanted: WantedSubtree) -> int:
            return sum(some[wanted.key].packets for some in flows if wanted.key in some)

        return {
            "wanted": _rows(self._wanted, events),
            "discarded": {f"{switch:016x}": one.discarded for switch, one in counted.items()},
        }


def _rows(wanted: Sequence[WantedSubtree], events: Callable[[WantedSubtree], int]) -> list[dict[str, Any]]:
    return [
        {
            "port": each.port,
            "filter": each.topic_filter,
            "prefix": str(each.prefix),
            "priority_class": each.priority_class,
            "events": events(each),
        }
        for each in wanted
    ]


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


def places_of(words: Sequence[str], ports: Sequence[str]) -> dict[str, tuple[int, str]]:
    """From PORT=DATAPATH/NAME, one for each port: where they are.

    >>> places_of(["radio=1/eth3"], ["radio"])
    {'radio': (1, 'eth3')}
    """
    found: dict[str, tuple[int, str]] = {}
    for word in words:
        port, _, place = word.partition("=")
        switch, mark, name = place.partition("/")
        if not mark or not name or not switch.isdigit():
            raise ParameterError("interface", f"{word!r} is not PORT=DATAPATH/NAME, as radio=1/eth3")
        found[port] = int(switch), name
    for port in ports:
        if port not in found:
            raise ParameterError("interface", f"port {port!r} has none; add --interface {port}=DATAPATH/NAME")
    return found
