"""What the linux data plane needs of whatever sorts packets into queues: eBPF with root, nftables without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from triagemq.network.linux.netlink import Link, Netlink

__all__ = ["Classifying", "Listener", "Policy", "PolicyChange", "PortClassifier"]


class Listener(NamedTuple):
    """Where a part of the exchange listens: an IP address in digits (0.0.0.0 and :: for all) and a port.

    What comes from there may be control; TCP that goes there is.
    """

    protocol: Literal["udp", "tcp"]
    address: str
    port: int


class Policy(NamedTuple):
    """What happens to a flow's packets: at which port, into which queue, dropped below which threshold of 2^32."""

    port: int
    queue: int
    threshold: int
    counter: int


class PolicyChange(NamedTuple):
    """A flow by its packed key, and its policies before and after; None where there is no such flow."""

    packed_key: bytes
    before: Policy | None
    after: Policy | None


class PortClassifier(Protocol):
    """The classifier of one port."""

    def attach(self, netlink: Netlink, link: Link) -> None:
        """Begin to choose queues for the packets that leave by an interface."""

    def set_bandwidth(self, bandwidth_bps: float) -> None:
        """Of the port: control packets may use a share of it."""

    def close(self) -> None:
        """Let go of what is held here; queues that are removed take their classifier with them."""


class Classifying(Protocol):
    """The flows of a data plane. `stage`, then `switch`, then `settle` or `take_back`."""

    def open_port(self, number: int, namespace: str | None) -> PortClassifier:
        """A classifier for the port that flows know by this number; its counters are zero."""

    def trust(self, listeners: Sequence[Listener]) -> None:
        """Whose control packets are believed from now on; nobody else's are."""

    def stage(self, changes: Sequence[PolicyChange]) -> None:
        """Write down what is to hold after `switch`."""

    def switch(self) -> None:
        """From now on what was staged holds, for every packet that comes."""

    def settle(self) -> None:
        """The change stays."""

    def take_back(self, *, switched: bool) -> None:
        """What was staged is not to be; all flows have the policies they had."""

    def flow_counters(self, count: int) -> NDArray[np.uint64]:
        """A row for each of the first counters: packets that came, those dropped by policy, bytes passed on."""

    def queue_counters(self, port: int) -> NDArray[np.uint64]:
        """A row for each queue of a port: packets and bytes put into it."""

    def reset_flow_counter(self, number: int) -> None: ...

    def close(self) -> None: ...
