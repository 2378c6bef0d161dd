"""Worst delays at a port and along a path: what can be promised, whatever the other flows do within their terms.

At a port with priorities a packet that is being sent is finished first, a lower class number goes first, and packets of
one class go in order of arrival. A flow sends messages at least `separation` apart; each reaches the port at most
`jitter` later than the quickest one would. A message longer than a packet travels as packets of full length and a last
one.

Three methods (docs/background/guarantees.md):

- `exact`: every arrival in the busy period (`busy_period`), as response times of CAN messages are found.
- `calculus`: network calculus with token buckets, (bursts of classes <= k + longest lower packet)/(1 - load of
  classes < k).
- `paper`: MIDAS eq. (4) and the message's own transmission. Not safe: it leaves out the lower packet on the wire and
  the flows of the same class. The separation is less by the jitter, as in MIDAS V.B.

No bound is `inf`: where classes up to the flow's own load the port with more than it can carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError
from triagemq.theory.busy_period import LATER, ROUNDED, Floats, Integers, PortFlows, class_bounds
from triagemq.theory.validate import per_row, reals

Method = Literal["exact", "calculus", "paper"]


def delay_bounds(
    transmission: ArrayLike,
    separation: ArrayLike,
    jitter: ArrayLike,
    classes: ArrayLike,
    *,
    packet: ArrayLike | None = None,
    spread: ArrayLike | None = None,
    bucket: ArrayLike = False,
    passing: ArrayLike = False,
    lower_priority_blocking: float = 0.0,
    method: Method = "exact",
) -> Floats:
    """Per flow, the longest time from the arrival of a message's last packet to the end of its transmission.

    All in seconds. `transmission` is that of a whole message, `packet` that of its longest packet (None: the message is
    one packet). `spread` is the least time in which all of a message's packets but one, taken as of full length, can
    arrive: behind a link, (packets - 1) packets at its rate; a shorter last one comes that much sooner (None: all
    arrive together). `bucket` says whose flows a token bucket lets in: to others they may bring a message and the rate
    on top of it, not only a message per separation. Of those that are `passing` the bound holds for every packet that
    the bucket lets through, whatever is sent. `classes` are any integers, the lowest is served first. Of lower classes
    the longest packet in the set blocks, or `lower_priority_blocking` where that is longer.

    Three messages of 1 s, one of each class: the first waits for one that has just started, the last for all.

    >>> delay_bounds([1.0, 1.0, 1.0], [2.5, 3.5, 3.5], 0.0, [0, 1, 2])
    array([2. , 3. , 3.5])
    """
    flows = port_flows(transmission, separation, jitter, packet, spread, bucket, passing)
    ranks = _ranks(classes, flows.transmission.size)
    blocking = blocking_seconds(lower_priority_blocking)
    bounds = np.full(ranks.size, np.inf)
    for rank in range(ranks.max(initial=-1) + 1):
        lower = flows.packet[ranks > rank].max(initial=blocking)
        members = np.flatnonzero(ranks == rank)
        higher = np.flatnonzero(ranks < rank)
        bounds[members] = bounds_of_class(members, higher, lower, flows, method)
        if method == "exact":
            # Where both are the same sum, added up in another order, the last digit may differ.
            bounds[members] = np.minimum(bounds[members], _calculus(members, higher, lower, flows))
    return bounds


def bounds_of_class(
    members: Integers,
    higher: Integers,
    blocking: float,
    flows: PortFlows,
    method: str,
    enough: Floats | None = None,
) -> Floats:
    """Bounds of the flows `members`, which are one class below the flows `higher`; see `class_bounds`."""
    if method == "exact":
        return class_bounds(
            members, higher, blocking, flows, np.zeros(members.size) if enough is None else enough
        )
    if method == "calculus":
        return _calculus(members, higher, blocking, flows)
    if method == "paper":
        return _paper(members, higher, flows)
    raise ParameterError("method", f"is {method!r}; must be 'exact', 'calculus' or 'paper'")


def port_flows(
    transmission: ArrayLike,
    separation: ArrayLike,
    jitter: ArrayLike,
    packet: ArrayLike | None,
    spread: ArrayLike | None,
    bucket: ArrayLike = False,
    passing: ArrayLike = False,
) -> PortFlows:
    """The checked arguments, and how each message is cut."""
    whole = per_row("transmission", transmission, positive=True)
    longest = whole if packet is None else per_row("packet", packet, whole.size, positive=True)
    if (too_long := longest > whole * LATER).any():
        row = int(np.argmax(too_long))
        raise ParameterError(
            "packet", f"element {row} is {longest[row]}; must not exceed the message's {whole[row]}"
        )
    longest = np.minimum(longest, whole)
    # A message of three packets is not to become one of four by rounding.
    packets = np.maximum(np.ceil(whole / longest / LATER), 1.0)
    over = per_row("spread", 0.0 if spread is None else spread, whole.size)
    behind = _flags("bucket", bucket, whole.size)
    return PortFlows(
        transmission=whole,
        separation=per_row("separation", separation, whole.size, positive=True),
        jitter=per_row("jitter", jitter, whole.size),
        packet=longest,
        last=whole - (packets - 1.0) * longest,
        packets=packets.astype(np.int64),
        gap=over / np.maximum(packets - 1.0, 1.0),
        bucket=behind,
        passing=_flags("passing", passing, whole.size) & behind,
    )


def _calculus(members: Integers, higher: Integers, blocking: float, flows: PortFlows) -> Floats:
    share = flows.transmission / flows.separation
    bursts = flows.transmission + share * flows.jitter
    above = float(share[higher].sum())
    if above >= 1.0 or above + float(share[members].sum()) > 1.0:
        return np.full(members.size, np.inf)
    bound = (bursts[members].sum() + bursts[higher].sum() + blocking) / (1.0 - above)
    if flows.bucket[members].any() or flows.bucket[higher].any():
        # The exact bound is rounded up there, and may be this one.
        bound *= ROUNDED**2
    return np.full(members.size, bound)


def _paper(members: Integers, higher: Integers, flows: PortFlows) -> Floats:
    apart = flows.separation[higher] - flows.jitter[higher]
    if (apart <= 0.0).any():
        return np.full(members.size, np.inf)
    sent = flows.transmission[higher]
    above = float((sent / apart).sum())
    if above >= 1.0:
        return np.full(members.size, np.inf)
    return np.asarray((flows.transmission[members] + (sent * (1.0 - sent / apart)).sum()) / (1.0 - above))


@dataclass(frozen=True, slots=True)
class PathArrivals:
    """How a flow reaches each hop of its path, the first one included; seconds, one element per hop.

    `smallest` is the least time from the message's beginning to the end of its transmission at the hop.
    """

    jitter: Floats
    spread: Floats
    smallest: Floats


def path_arrivals(
    transmission: ArrayLike,
    packet: ArrayLike,
    budget: ArrayLike,
    *,
    latency: ArrayLike = 0.0,
) -> PathArrivals:
    """Jitter and spread at every hop, when each hop's bound is at most its `budget` (MIDAS V.B).

    One element per hop, the publisher's access link first, where the whole message waits at once. `transmission` and
    `packet` are those of the flow at the hop's rate; `latency` is what lies between the end of its transmission and the
    arrival at the next hop at most (multiplexing, the wire), and may be less. With budgets kept, the flow's delay
    end to end is at most their sum and that of the latencies, and hops can be judged one by one.

    What a hop's budget leaves over the smallest delay becomes jitter behind it. A message is never quicker than through
    one hop as a whole, with one packet before it (the first) and behind it (the last) on each other hop:

    >>> path_arrivals([8.0, 8.0, 8.0], [2.0, 2.0, 2.0], [9.0, 5.0, 4.0])
    PathArrivals(jitter=array([0., 1., 4.]), spread=array([0., 6., 6.]), smallest=array([ 8., 10., 12.]))
    """
    flows = port_flows(transmission, 1.0, 0.0, packet, None)
    hops = flows.transmission.size
    allowed = per_row("budget", budget, hops)
    between = per_row("latency", latency, hops)
    if np.unique(flows.packets).size > 1:
        raise ParameterError(
            "packet", "cuts the message into other numbers of packets at some hops; must not"
        )
    smallest = np.zeros(hops)
    for bottleneck in range(hops):
        times = np.where(np.arange(hops) < bottleneck, flows.packet, flows.last)
        times[bottleneck] = flows.transmission[bottleneck]
        smallest = np.maximum(smallest, np.where(np.arange(hops) < bottleneck, 0.0, np.cumsum(times)))
    late = np.cumsum(allowed + between) - smallest
    jitter = np.concatenate(([0.0], np.maximum(late[:-1], 0.0)))
    # A latency that varies from packet to packet brings them closer: the short last one by all of it.
    gap = np.maximum(flows.packet - between * flows.packet / flows.last, 0.0)
    spread = np.concatenate(([0.0], (flows.packets[:-1] - 1) * gap[:-1]))
    return PathArrivals(jitter, spread, smallest)


def _flags(name: str, values: ArrayLike, count: int) -> NDArray[np.bool_]:
    array: NDArray[np.generic] = np.asarray(values)
    if array.dtype != np.bool_ or array.shape not in ((), (count,)):
        raise ParameterError(name, f"must hold true or false for each of {count} flows")
    return np.array(np.broadcast_to(array, count), dtype=np.bool_)


def _ranks(classes: ArrayLike, count: int) -> Integers:
    array: NDArray[np.generic] = np.asarray(classes)
    if array.dtype.kind not in "iu" and array.size:
        raise ParameterError("classes", f"holds {array.dtype.name} values; must hold integers")
    if array.shape != (count,):
        raise ParameterError(
            "classes", f"has shape {array.shape}; must hold one integer for each of {count} flows"
        )
    ranks: Integers = np.unique(array, return_inverse=True)[1].astype(np.int64)
    return ranks


def blocking_seconds(seconds: float) -> float:
    checked = reals("lower_priority_blocking", seconds)
    if checked.ndim:
        raise ParameterError("lower_priority_blocking", f"has shape {checked.shape}; must be a scalar")
    return float(checked)
