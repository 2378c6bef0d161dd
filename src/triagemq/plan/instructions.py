"""What carries a plan out: output ports, and what happens to each flow on them. Plain data, no I/O.

Until it is known where a flow goes it has the client id of its connection for a key, then an address; all else in it
stays the same from the plan to the data plane. A state is a mapping, of ports by name and of flows by key;
`difference` is the change from one state to another and `applied` the state after it, for every reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class FlowKey:
    """How the network tells flows apart: a subscriber's IP address (in digits, never a name) and UDP port.

    Or a topic's multicast address: copies of each packet leave by several output ports. "ADDRESS/LENGTH" is a prefix of
    topics' codes (topic_codes): events of all topics below it. The longest that fits holds. As soon as there is any,
    events with codes that match none at a port are discarded there, and counted.
    """

    address: str
    udp_port: int

    @property
    def is_multicast(self) -> bool:
        """
        >>> FlowKey("239.1.2.3", 5000).is_multicast, FlowKey("10.0.0.1", 5000).is_multicast
        (True, False)
        >>> FlowKey("ff15::7", 5000).is_multicast, FlowKey("a name", 5000).is_multicast
        (True, False)
        """
        address = self.address
        # Called for every flow of a plan: quick for those that are not.
        if "224" <= address[:3] <= "239" and address[3:4] == ".":
            return True
        return address[:2] in ("ff", "FF") and ":" in address

    @property
    def is_prefix(self) -> bool:
        """
        >>> FlowKey("ff1e:8000::/18", 7400).is_prefix, FlowKey("ff1e::1", 7400).is_prefix
        (True, False)
        """
        return "/" in self.address

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.udp_port}" if ":" in self.address else f"{self.address}:{self.udp_port}"
        )


@dataclass(frozen=True, slots=True)
class SetPort:
    """Make an output port, or change it. The buffer counts packets, the one in transmission included.

    With `widths_bps` the queue of each class has a bandwidth, class 0 first, and a buffer of its own; together they are
    the port's. Where they are `borrowing`, a queue also gets what others leave. Packets that wait stay when widths
    change; a port that serves otherwise is another port, and made when this one has been removed. Control that divides
    the port anew while it runs leaves each queue at least its floor, `floors_bps`.
    """

    port: str
    bandwidth_bps: float
    buffer_packets: float
    classes: int
    widths_bps: tuple[float, ...] = ()
    borrowing: bool = False
    floors_bps: tuple[float, ...] = ()

    def with_bandwidth(self, bandwidth_bps: float) -> SetPort:
        """The same with another bandwidth, of which each queue has the same share as before.

        >>> SetPort("radio", 10.0, 100, 2, (6.0, 4.0)).with_bandwidth(5.0).widths_bps
        (3.0, 2.0)
        """
        factor = bandwidth_bps / self.bandwidth_bps
        return replace(
            self,
            bandwidth_bps=bandwidth_bps,
            widths_bps=tuple(width * factor for width in self.widths_bps),
            floors_bps=tuple(floor * factor for floor in self.floors_bps),
        )


@dataclass(frozen=True, slots=True)
class RemovePort:
    """Take an output port away; no flow may use it any more. What it holds is still sent."""

    port: str


@dataclass(frozen=True, slots=True)
class SetFlow(Generic[Key]):
    """Make a flow, or change where it goes, its class and the share of its copies that the gateway drops.

    `flow_id` is the number that the first plan gave to the flow, and stays. A multicast key has a flow for each output
    port by which copies leave, with a class of its own; any other key has one, where the last instruction says.

    `source` is the IP address of the publisher that a multicast key was given to. Packets of other senders to the key
    are foreign: they use up no limiter, go last or are dropped, and are counted. "" stands for any sender.
    """

    key: Key
    port: str
    flow_id: int
    priority_class: int
    drop_rate: float
    source: str = ""

    def at(self, key: FlowKey) -> SetFlow[FlowKey]:
        """The same at an address."""
        return SetFlow(key, self.port, self.flow_id, self.priority_class, self.drop_rate)


@dataclass(frozen=True, slots=True)
class RemoveFlow:
    """Forget a flow: packets to its key are no longer managed. What is queued is still sent. Its limiters go with it.

    `port` is the one by which no more copies of a multicast key leave; "" stands for all.
    """

    key: FlowKey
    port: str = ""


@dataclass(frozen=True, slots=True)
class SetLimiter:
    """Let no more of a flow into the network than a message, `burst_bytes`, in the time in which its rate brings one:
    what is beyond that is lost where it enters. A message may come up to `jitter_seconds` later than it should, and the
    next one in time.

    Bytes are those on the wire. `port` is an output port of the flow on the switch where it enters; "" stands for every
    one that has no limiter of its own. Only what is not control is limited.

    Where there are windows, any time t sees at most floor((t + jitter)/window) + 1 messages. Where there are token
    buckets (meters of OpenFlow switches), it sees up to what is in the bucket, and rate * t.
    """

    key: FlowKey
    burst_bytes: float
    rate_bytes_per_second: float
    port: str = ""
    jitter_seconds: float = 0.0

    @property
    def window_seconds(self) -> float:
        """What passes may pass again after this time."""
        return self.burst_bytes / self.rate_bytes_per_second

    @property
    def bucket_bytes(self) -> float:
        """What a token bucket has to hold to cut no publisher that keeps to these terms.

        >>> limiter = SetLimiter(FlowKey("239.1.2.3", 5000), 3000.0, 1e6, jitter_seconds=0.001)
        >>> limiter.window_seconds, limiter.bucket_bytes
        (0.003, 4000.0)
        """
        return self.burst_bytes + self.rate_bytes_per_second * self.jitter_seconds


LIMITER_PACKETS = 256
"""So many packets that have passed a window remembers. What passed before them counts as if it had passed with the
first of these: if a message has more packets, what passes is never more, but may be less than could."""


@dataclass(frozen=True, slots=True)
class RemoveLimiter:
    """Take the limiter away that was set with this key and port."""

    key: FlowKey
    port: str = ""


Instruction = SetPort | RemovePort | SetFlow[FlowKey] | RemoveFlow | SetLimiter | RemoveLimiter
"""One step of a change, for a data plane."""


def difference(before: Mapping[Key, Value], after: Mapping[Key, Value]) -> dict[Key, Value | None]:
    """The change from one state to another: what is new or different, and None for what is gone.

    >>> difference({"radio": 1, "cable": 2, "trunk": 3}, {"radio": 1, "cable": 4, "satellite": 5})
    {'cable': 4, 'satellite': 5, 'trunk': None}
    """
    changed: dict[Key, Value | None] = {
        key: value for key, value in after.items() if (old := before.get(key)) is not value and old != value
    }
    changed.update((key, None) for key in before if key not in after)
    return changed


def applied(before: Mapping[Key, Value], change: Mapping[Key, Value | None]) -> dict[Key, Value]:
    """The state after a change.

    >>> applied({"radio": 1, "trunk": 3}, {"cable": 4, "trunk": None, "never there": None})
    {'radio': 1, 'cable': 4}
    """
    after = dict(before)
    for key, value in change.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after
