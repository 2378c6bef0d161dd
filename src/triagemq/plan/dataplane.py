"""Instructions that carry a plan out, and the contract of the data planes that follow them.

Every data plane keeps these promises; tests/network/contract.py checks them.

* Strict priority: a packet of a class waits for no packet of a lower one (a higher number), except the one that is
  being sent. Within a class packets leave in the order in which they came.
* Control packets pass first and are never dropped. A data plane drops no packet on purpose: drop rates are the
  gateway's, which draws before it sends.
* The buffer counts packets, the one in transmission included and control packets that wait not. Into a full buffer a
  packet comes only by pushing out the newest of the lowest class, which must be lower than its own.
* A limiter is a sliding window before the queue: what passed (bytes on the wire) may pass again a window
  later, but for the jitter of its terms. So in any time t no more than floor((t + jitter)/window) + 1 messages of a
  flow get by, and what keeps to that is not touched (up to 256 packets in a window). Where switches have token
  buckets, no more than is in the bucket and rate * t gets by. Control packets are never limited. A changed limiter
  remembers what has passed, and counters go on.
* A multicast key that has a source is its publisher's alone: what others send there neither uses up its limiter nor
  goes in its class. It goes last or is dropped, and is counted as foreign. (Where the gateway itself sends each packet,
  as in the embedded data plane, there are no others, and no multicast keys.)
* `apply` is atomic: all instructions take effect between two packets, or (on an error) none does. What is queued
  stays in the class it was queued in, and is sent, also when its flow or port is removed.
* Packets of one flow keep their order, except where a plan raises the flow to a higher class or moves it to another
  port: what comes after may overtake what was queued before. (Holding it back would make a flow that has become
  urgent wait behind a class that is starved.)

Instructions are plain data: output ports, and what happens to each flow on them. Until it is known where a flow goes it
has the client id of its connection for a key, then an address; all else in it stays the same from the plan to the data
plane. A state is a mapping, of ports by name and of flows by key; `difference` is the change from one state to another
and `applied` the state after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:  # The names only: planning needs no Parquet.
    from triagemq.trace.schema import Outcome

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

    With `queue_rates_bps` the queue of each class has a bandwidth, class 0 first, and a buffer of its own; together
    they are the port's. Where they are `borrowing`, a queue also gets what others leave. Packets that wait stay when
    queue rates change; a port that serves otherwise is another port, and made when this one has been removed. Control
    that divides the port anew while it runs leaves each queue at least its floor, `floors_bps`.
    """

    port: str
    bandwidth_bps: float
    buffer_packets: float
    classes: int
    queue_rates_bps: tuple[float, ...] = ()
    borrowing: bool = False
    floors_bps: tuple[float, ...] = ()

    def with_bandwidth(self, bandwidth_bps: float) -> SetPort:
        """The same with another bandwidth, of which each queue has the same share as before.

        >>> SetPort("radio", 10.0, 100, 2, (6.0, 4.0)).with_bandwidth(5.0).queue_rates_bps
        (3.0, 2.0)
        """
        factor = bandwidth_bps / self.bandwidth_bps
        return replace(
            self,
            bandwidth_bps=bandwidth_bps,
            queue_rates_bps=tuple(width * factor for width in self.queue_rates_bps),
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


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """One row of the trace's queue_samples: bytes on the wire and packets since the port was made, and the backlog.

    `drops` are those of the buffer, and what expired or was superseded while it waited. The packet in transmission
    belongs to the backlog, and packets_in = packets_out + drops + backlog_packets. `width_bps` is None where there is
    no limit.
    """

    bytes_in: int = 0
    packets_in: int = 0
    bytes_out: int = 0
    packets_out: int = 0
    drops: int = 0
    backlog_bytes: int = 0
    backlog_packets: int = 0
    width_bps: int | None = None

    def plus(self, other: QueueCounters) -> QueueCounters:
        """Both together, with this one's width.

        >>> QueueCounters(packets_in=3, width_bps=9).plus(QueueCounters(packets_in=4)).packets_in
        7
        """
        *counted, width_bps = astuple(self)
        *more, _ = astuple(other)
        return replace(QueueCounters(*map(sum, zip(counted, more, strict=True))), width_bps=width_bps)


@dataclass(frozen=True, slots=True)
class PortCounters:
    """A port's queues by priority class, and its queue of control packets.

    Where control packets have a bound, `beyond_bound` counts those that exceeded it and went last; and `strange_marks`
    packets that bear the mark of control packets and come from a sender that is not believed: last, too.
    `discarded` are events with codes of topics that match no prefix at this port.
    """

    queues: tuple[QueueCounters, ...]
    control: QueueCounters
    beyond_bound: int = 0
    strange_marks: int = 0
    discarded: int = 0


@dataclass(frozen=True, slots=True)
class FlowCounters:
    """One flow since it was made. Control packets are not among these; `packets_in` counts before all else.

    `copies_out` are the datagrams that have left, which may be of several packets each; 0 from who sees packets only.
    Of a multicast key all that its copies have counted, at all ports together. Where the kernel queues, drops are
    counted by class alone, and `packets_out` have entered their queue. Drops are as in QueueCounters. `foreign`
    packets were sent to it by others than its source, and are not among the rest.
    """

    flow_id: int
    packets_in: int = 0
    dropped_by_buffer: int = 0
    packets_out: int = 0
    copies_out: int = 0
    limited: int = 0
    foreign: int = 0

    @property
    def backlog_packets(self) -> int:
        gone = self.limited + self.dropped_by_buffer + self.packets_out
        return self.packets_in - gone

    def plus(self, other: FlowCounters) -> FlowCounters:
        """Both together, under this one's number.

        >>> FlowCounters(7, 3, packets_out=2).plus(FlowCounters(7, 5, limited=4))
        FlowCounters(flow_id=7, packets_in=8, dropped_by_buffer=0, packets_out=2, copies_out=0, limited=4, foreign=0)
        """
        _, *counted = astuple(self)
        _, *more = astuple(other)
        return FlowCounters(self.flow_id, *map(sum, zip(counted, more, strict=True)))


@dataclass(frozen=True, slots=True)
class UnmanagedCounters:
    """Packets to keys without a flow: they went out at once. `control_packets` of the `packets` were control."""

    packets: int = 0
    control_packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """A data plane at one instant.

    Flows are there from the instruction that sets them until they are removed, ports until their last packet has left
    then; one that comes back later starts from 0.
    """

    ports: Mapping[str, PortCounters] = field(default_factory=dict)
    flows: Mapping[FlowKey, FlowCounters] = field(default_factory=dict)
    unmanaged: UnmanagedCounters = UnmanagedCounters()


class Instructed(Protocol):
    """What follows the instructions of a plan: a data plane, or switches that lead packets to its queues."""

    def apply(self, instructions: Sequence[Instruction]) -> None:
        """Follow all instructions at once; PlanError says why one is impossible, and then none was followed."""


class DataPlane(Instructed, Protocol):
    """Carries out plans. All calls come from one thread."""

    def counters(self) -> Counters:
        """What has been counted until now."""

    def close(self) -> None:
        """Leave everything as it was before; idempotent."""


NEVER_NS = (1 << 63) - 1
"""When expires what does not."""


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """What a subscription says of its copies, besides what they are worth (`intents.SubscriptionIntent`)."""

    max_rate_per_second: float = math.inf
    newest_only: bool = False
    expires_seconds: float = math.inf
    properties: bool = False


NO_TERMS = CopyTerms()


class Treatment(NamedTuple):
    """How an event to a subscriber is treated: its class, and with which probability the gateway drops it.

    An event of a topic that was not seen before is never dropped; it goes before planned ones of its class, and by the
    `worth` of the filter that matches it. `flow_id` is the number of its flow, -1 if it has none in the plan. `terms`
    are those of the subscription, where it has any.
    """

    priority_class: int
    drop_rate: float = 0.0
    worth: float = 0.0
    flow_id: int = -1
    terms: CopyTerms | None = None


class WaitingTerms(NamedTuple):
    """How a packet may wait: it is sent before `expires_ns` or never, and a later one of the same key (`replaces`, if
    that is not None) takes its place. What is being transmitted waits no more."""

    replaces: Hashable = None
    expires_ns: int = NEVER_NS


class StreamEnd(Protocol):
    """A client's connection, whose packets are parts of a stream and not datagrams."""

    def transmit(self, packet: OutgoingPacket) -> None:
        """The transmission of a packet has ended; never blocks, and raises nothing."""


@dataclass(slots=True)
class OutgoingPacket:
    """A datagram for a subscriber. `control` marks everything but PUBLISH; `token` comes back with its fate.

    A data plane in the gateway's process goes by its `treatment`; without one, and elsewhere, its flow says its class.
    In such a plane it waits by its terms, if it has any.
    With a `connection` it leaves by that one instead of the socket of datagrams, and has `overhead_bytes` more on the
    wire.
    """

    key: FlowKey
    datagram: bytes
    control: bool
    token: object = None
    treatment: Treatment | None = None
    waiting: WaitingTerms | None = None
    connection: StreamEnd | None = None
    overhead_bytes: int = 0


TransmitOutcome = tuple[object, "Outcome", int | None, int | None]
"""Token, outcome, enqueued_ns, dequeued_ns, with the meaning they have in the trace's deliveries.

`delivered` means sent; its dequeued_ns is the moment at which it was. What has left its port and could not be sent is
`lost_on_link` (the link is down, the socket refuses it). Times are None where they did not happen: both
for an unmanaged packet and for one limited, dequeued_ns for one dropped by the buffer or
(`in_flight`) still queued when the data plane was closed.
"""

OnTransmitted = Callable[[Sequence[TransmitOutcome]], None]


class Egress(Protocol):
    """A data plane inside the gateway's own process, which hands its datagrams over instead of sending them.

    The fate of every packet that is not control and has a token is reported, once, through an `OnTransmitted` given at
    construction, in batches, from inside `send` or later from the event loop.
    """

    def send(self, packets: Sequence[OutgoingPacket]) -> None:
        """Take packets; never blocks. Those to a key without a flow go out at once, unpaced."""

    def reclassify(self, treatment_of: Callable[[object], Treatment | None]) -> None:
        """Put what waits here where a new plan wants it, by what packets have for a token. None: as before."""
