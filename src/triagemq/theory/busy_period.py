"""Worst delays of one class at a port: the longest that a packet can take in a busy period (guarantees.md).

Let a busy period of classes up to k begin at time 0, and let a message's last packet of length l arrive at x. The
port serves before it: what is left of one lower packet that was on the wire at 0 (B, and never again: while something
of class k or higher waits, no lower packet starts); what of its own class arrived until x, W(x); and what of the
higher classes arrived until it starts, for a packet that arrives in the moment it would start goes first:

    w = B + W(x) - l + H(w)        the least solution; its delay is w + l - x, and the bound the largest over all x

A flow with separation T and jitter J brings at most floor((x + J)/T) + 1 messages in a closed window of length x.
That is counted as if all packets of a message came at once, which is safe: every packet of a message, the first as the
last, comes at most once per separation but for the jitter. Of its own message those packets count that can have come
in the window, m before the last if x >= gap(m), the time that m packets take to come through the link before.

W only grows at jumps, so between two of them the delay falls: x = 0 and the jumps are enough. With u = C/T and
b = C + u J, sums over the higher classes (H) and over the own one (K), floor(v) + 1 <= v + 1 gives

    delay at any x' >= x  <=  (B + b_H + b_K - l + u_K x)/(1 - u_H) + l - x        falls with x if u_H + u_K <= 1

At x = 0 that is at most the bound of network calculus, so the exact bound is never above it. And once the line is below
the largest delay seen, no later x can matter: the search ends there, and need not know how long the busy period is.

A floor is taken of a value larger by one part in a billion (`LATER`), so that rounding counts a message too many rather
than one too few where a jump and the window's end are the same moment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import compiled

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LATER = 1.0 + 1e-9
# Where the load is almost all of the port the line hardly falls; the bound is then the line at the last jump.
_MOST_JUMPS = 20_000


class Flows(NamedTuple):
    """What the flows of one port bring, one element per flow; seconds."""

    transmission: Floats
    separation: Floats
    jitter: Floats
    packet: Floats
    last: Floats
    """Transmission time of a message's last packet; all before it are as long as `packet`."""
    packets: Integers
    gap: Floats
    """Least time between the arrivals of two packets of a message, of full length."""


@compiled
def arrived(time: float, among: Integers, flows: Flows) -> float:
    """The work that flows `among` bring in a closed window."""
    work = 0.0
    for flow in among:
        messages = np.floor((time + flows.jitter[flow]) / flows.separation[flow] * LATER) + 1.0
        work += messages * flows.transmission[flow]
    return work


@compiled
def load(among: Integers, flows: Flows) -> tuple[float, float, float]:
    """Utilisation, work at once (token buckets' bursts), and the part of it that is due to jitter."""
    utilisation = burst = late = 0.0
    for flow in among:
        share = flows.transmission[flow] / flows.separation[flow]
        utilisation += share
        late += share * flows.jitter[flow]
        burst += flows.transmission[flow]
    return utilisation, burst + late, late


@compiled
def starts_at(ahead: float, higher: Integers, higher_load: tuple[float, float, float], flows: Flows) -> float:
    """When a packet starts that has work `ahead`, and all that comes of higher classes until then."""
    # floor(v) + 1 > v: no solution is below this.
    start = (ahead + higher_load[2]) / (1.0 - higher_load[0])
    while True:
        later = ahead + arrived(start, higher, flows)
        if later <= start:
            return later
        start = later


@compiled
def _gap(before: int, flow: int, flows: Flows) -> float:
    """Least time between the arrivals of a message's last packet and of the one `before` packets earlier."""
    if before == 0:
        return 0.0
    return float(flows.gap[flow] * (before - 1 + flows.last[flow] / flows.packet[flow]))


@compiled
def _came(window: float, flow: int, flows: Flows) -> int:
    """How many packets of the own message, besides the last, can have come in the window."""
    most = int(flows.packets[flow]) - 1
    if flows.gap[flow] <= 0.0:
        return most
    before = min(most, int(window / flows.gap[flow]) + 2)
    while before > 0 and _gap(before, flow, flows) > window * LATER:
        before -= 1
    return before


@compiled
def _worst_between(
    begin: float,
    end: float,
    work: float,
    best: float,
    flow: int,
    higher: Integers,
    higher_load: tuple[float, float, float],
    flows: Flows,
) -> float:
    """The largest delay of a last packet that arrives in [begin, end), while only own packets jump, or `best`.

    `work` is ahead of it once its whole message has come. Own packets are looked at in halves: as many as come in a
    half, but all at its beginning, are never better than the truth, and a half that is good even so is left out.
    """
    packet, last = flows.packet[flow], flows.last[flow]
    most = flows.packets[flow] - 1
    stack = np.empty((64, 2), dtype=np.int64)
    stack[0, 0] = _came(begin, flow, flows)
    final = stack[0, 0]
    if final < most:
        final = _came(end, flow, flows)
        if final > stack[0, 0] and _gap(final, flow, flows) >= end:
            final -= 1
    stack[0, 1] = final
    height = 1
    while height > 0:
        height -= 1
        first, final = stack[height]
        arrival = max(begin, _gap(first, flow, flows))
        ahead = work - (most - final) * packet
        # The line of the module's text is a bound at the price of no sum.
        rough = (ahead + higher_load[1]) / (1.0 - higher_load[0]) + last - arrival
        if rough <= best:
            continue
        delay = starts_at(ahead, higher, higher_load, flows) + last - arrival
        if delay <= best:
            continue
        if first == final:
            best = delay
            continue
        middle = (first + final) // 2
        stack[height, 0], stack[height, 1] = first, middle
        stack[height + 1, 0], stack[height + 1, 1] = middle + 1, final
        height += 2
    return best


@compiled
def class_bounds(members: Integers, higher: Integers, blocking: float, flows: Flows) -> Floats:
    """Bounds of the flows `members` of one class below the flows `higher`, in the order of `members`."""
    bounds = np.full(members.size, np.inf)
    higher_load = load(higher, flows)
    own_load = load(members, flows)
    if higher_load[0] >= 1.0 or higher_load[0] + own_load[0] > 1.0:
        return bounds
    rest = 1.0 - higher_load[0]
    burst = blocking + higher_load[1] + own_load[1]
    # Jumps of the class, found as they are needed and then shared by its flows.
    windows = np.empty(_MOST_JUMPS + 1)
    works = np.empty(_MOST_JUMPS + 1)
    upcoming = np.empty(members.size)
    windows[0], works[0] = 0.0, arrived(0.0, members, flows)
    messages = np.empty(members.size)
    for row, flow in enumerate(members):
        messages[row] = np.floor(flows.jitter[flow] / flows.separation[flow] * LATER) + 1.0
        upcoming[row] = messages[row] * flows.separation[flow] - flows.jitter[flow]
    known = 1
    for row, flow in enumerate(members):
        last = flows.last[flow]
        best = 0.0
        jump = 0
        while True:
            if jump + 1 >= known:
                nearest = int(np.argmin(upcoming))
                changed = members[nearest]
                windows[known] = upcoming[nearest]
                works[known] = works[known - 1] + flows.transmission[changed]
                messages[nearest] += 1.0
                upcoming[nearest] = messages[nearest] * flows.separation[changed] - flows.jitter[changed]
                known += 1
            begin, end = windows[jump], windows[jump + 1]
            line = (burst - last + own_load[0] * begin) / rest + last - begin
            if line <= best:
                break
            if jump + 1 == _MOST_JUMPS:
                best = line
                break
            if begin < end:
                ahead = blocking + works[jump] - last
                best = _worst_between(begin, end, ahead, best, flow, higher, higher_load, flows)
            jump += 1
        bounds[row] = min(best, burst / rest)
    return bounds
