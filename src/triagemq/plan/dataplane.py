"""The DataPlane contract: what carries out a plan, whatever it is made of.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from triagemq.plan.instructions import FlowKey, Instruction

if TYPE_CHECKING:  # The names only: planning needs no Parquet.
    from triagemq.trace.schema import Outcome


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """One row of the trace's queue_samples: bytes on the wire and packets since the port was made, and the backlog.

    `drops` are those of the buffer. The packet in transmission belongs to the backlog, and
    packets_in = packets_out + drops + backlog_packets. `width_bps` is None where there is no limit.
    """

    bytes_in: int = 0
    packets_in: int = 0
    bytes_out: int = 0
    packets_out: int = 0
    drops: int = 0
    backlog_bytes: int = 0
    backlog_packets: int = 0
    width_bps: int | None = None


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
    Of a multicast key all that its copies have counted, at all ports together. `foreign` packets were sent to it by
    others than its source, and are not among the rest.
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
        return FlowCounters(
            self.flow_id,
            self.packets_in + other.packets_in,
            self.dropped_by_buffer + other.dropped_by_buffer,
            self.packets_out + other.packets_out,
            self.copies_out + other.copies_out,
            self.limited + other.limited,
            self.foreign + other.foreign,
        )


@dataclass(frozen=True, slots=True)
class UnmanagedCounters:
    """Packets to keys without a flow: they went out at once. `control_packets` of the `packets` were control."""

    packets: int = 0
    control_packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """A data plane at one instant.

    Ports and flows are there from the instruction that sets them until they are removed and their last packet has
    left; a removed flow or port that comes back later starts from 0. `gone` are flows that were removed since the
    reading before this one, in the order in which they went, with all that they have counted; not every data plane
    tells.
    """

    ports: Mapping[str, PortCounters] = field(default_factory=dict)
    flows: Mapping[FlowKey, FlowCounters] = field(default_factory=dict)
    unmanaged: UnmanagedCounters = UnmanagedCounters()
    gone: Sequence[tuple[FlowKey, FlowCounters]] = ()


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


class Treatment(NamedTuple):
    """How an event to a subscriber is treated: its class, and with which probability the gateway drops it.

    An event of a topic that was not seen before is never dropped; it goes before planned ones of its class, and by the
    `worth` of the filter that matches it. `flow_id` is the number of its flow, -1 if it has none in the plan.
    """

    priority_class: int
    drop_rate: float = 0.0
    worth: float = 0.0
    flow_id: int = -1


@dataclass(slots=True)
class OutgoingPacket:
    """A datagram for a subscriber. `control` marks everything but PUBLISH; `token` comes back with its fate.

    A data plane in the gateway's process goes by its `treatment`; without one, and elsewhere, its flow says its class.
    """

    key: FlowKey
    datagram: bytes
    control: bool
    token: object = None
    treatment: Treatment | None = None


Fate = tuple[object, "Outcome", int | None, int | None]
"""Token, outcome, enqueued_ns, dequeued_ns, with the meaning they have in the trace's deliveries.

`delivered` means sent; its dequeued_ns is the moment at which it was. What has left its port and could not be sent is
`lost_on_link` (the link is down, the socket refuses it). Times are None where they did not happen: both
for an unmanaged packet and for one limited, dequeued_ns for one dropped by the buffer or
(`in_flight`) still queued when the data plane was closed.
"""

OnFate = Callable[[Sequence[Fate]], None]


class Egress(Protocol):
    """A data plane inside the gateway's own process, which hands its datagrams over instead of sending them.

    The fate of every packet that is not control and has a token is reported, once, through an `OnFate` given at
    construction, in batches, from inside `send` or later from the event loop.
    """

    def send(self, packets: Sequence[OutgoingPacket]) -> None:
        """Take packets; never blocks. Those to a key without a flow go out at once, unpaced."""
