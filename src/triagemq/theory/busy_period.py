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
_MOST_JUMPS = 10_000


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


class Load(NamedTuple):
    """What several flows bring together: in a closed window, floor(offset + rate * window) + 1 messages each."""

    transmission: Floats
    rate: Floats
    offset: Floats
    utilisation: float
    burst: float
    """The most work at once: that of token buckets."""
    least_burst: float
    """Work in any window is never below this, and utilisation times the window."""


@compiled
def load(among: Integers, flows: Flows) -> Load:
    """Flows side by side, so that sums over them are quick."""
    transmission = flows.transmission[among]
    rate = LATER / flows.separation[among]
    offset = flows.jitter[among] * rate
    utilisation = late = burst = 0.0
    for row in range(among.size):
        utilisation += transmission[row] / flows.separation[among[row]]
        late += transmission[row] * offset[row]
        burst += transmission[row]
    return Load(transmission, rate, offset, utilisation, burst + late, late / LATER)


@compiled
def arrived(window: float, flows: Load) -> float:
    """The work that flows bring in a closed window."""
    work = 0.0
    for row in range(flows.rate.size):
        messages = np.floor(flows.offset[row] + flows.rate[row] * window) + 1.0
        work += messages * flows.transmission[row]
    return work


@compiled
def starts_at(ahead: float, higher: Load) -> float:
    """When a packet starts that has work `ahead`, and all that comes of higher classes until then."""
    # floor(v) + 1 > v: no solution is below this.
    start = (ahead + higher.least_burst) / (1.0 - higher.utilisation)
    while True:
        later = ahead + arrived(start, higher)
        if later <= start:
            return later
        start = later


@compiled
def starts_before(ahead: float, higher: Load) -> float:
    """No start is later, at the price of no sum: floor(v) + 1 <= v + 1."""
    return (ahead + higher.burst) / (1.0 - higher.utilisation)


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
    if flows.gap[flow] * most <= window:
        return most
    before = min(most, int(window / flows.gap[flow]) + 2)
    while before > 0 and _gap(before, flow, flows) > window * LATER:
        before -= 1
    return before


@compiled
def _worst_between(
    begin: float, end: float, work: float, best: float, flow: int, higher: Load, flows: Flows
) -> float:
    """The largest delay of a last packet that arrives in [begin, end), while only own packets jump, or `best`.

    `work` is ahead of it once its whole message has come. Own packets are looked at in halves: as many as come in a
    half, but all at its beginning, are never better than the truth, and a half that is good even so is left out.
    """
    packet, last = flows.packet[flow], flows.last[flow]
    most = flows.packets[flow] - 1
    first = _came(begin, flow, flows)
    final = first
    if first < most:
        final = _came(end, flow, flows)
        if final > first and _gap(final, flow, flows) >= end:
            final -= 1
    # Halves of halves: as many as a number has digits.
    halves = np.empty((64, 2), dtype=np.int64)
    halves[0, 0], halves[0, 1] = first, final
    left = 1
    while left > 0:
        left -= 1
        first, final = halves[left]
        arrival = max(begin, _gap(first, flow, flows))
        ahead = work - (most - final) * packet
        if starts_before(ahead, higher) + last - arrival <= best:
            continue
        delay = starts_at(ahead, higher) + last - arrival
        if delay <= best:
            continue
        if first == final:
            best = delay
            continue
        middle = (first + final) // 2
        halves[left, 0], halves[left, 1] = first, middle
        halves[left + 1, 0], halves[left + 1, 1] = middle + 1, final
        left += 2
    return best


@compiled
def class_bounds(
    members: Integers, higher: Integers, blocking: float, flows: Flows, enough: Floats
) -> Floats:
    """Bounds of the flows `members` of one class below the flows `higher`, in the order of `members`.

    A bound up to `enough` is given as that, and a larger one as any delay above it that can happen: to know whether
    deadlines are kept takes less than to know all delays. Zeros ask for the bounds themselves.

    Jumps of the class are found as they are needed, and shared by its flows. `peaks` are no smaller than the delay of
    any flow until the next jump: first by the line, then that of the shortest last packet behind a whole message. Jumps
    with peaks up to `cleared` are of no use to a flow that has found as much elsewhere; the others are `candidates`.
    """
    bounds = np.full(members.size, np.inf)
    above, own = load(higher, flows), load(members, flows)
    if members.size == 0 or above.utilisation >= 1.0 or above.utilisation + own.utilisation > 1.0:
        return bounds
    rest = 1.0 - above.utilisation
    burst = blocking + above.burst + own.burst
    shortest = flows.last[members].min()
    windows, works, peaks = np.empty(_MOST_JUMPS), np.empty(_MOST_JUMPS), np.empty(_MOST_JUMPS)
    settled = np.zeros(_MOST_JUMPS, dtype=np.bool_)
    candidates = np.empty(_MOST_JUMPS, dtype=np.int64)
    messages = np.floor(own.offset) + 1.0
    upcoming = messages * flows.separation[members] - flows.jitter[members]
    windows[0], works[0] = 0.0, blocking + arrived(0.0, own)
    peaks[0] = starts_before(works[0] - shortest, above) + shortest
    known, chosen = 1, 0
    cleared, beyond = np.inf, 0.0
    # Those with small bounds first: what is cleared by them is cleared for the others.
    for row in np.argsort(enough - flows.last[members]):
        flow = members[row]
        best = max(enough[row], beyond)
        if burst / rest <= best:
            bounds[row] = max(burst / rest, enough[row])
            continue
        looked, jump = 0, 0
        while enough[row] == 0.0 or best <= enough[row]:
            if looked < chosen:
                jump = candidates[looked]
                looked += 1
            else:
                if best >= cleared:
                    break
                jump = 0 if looked == chosen else jump + 1
                looked = chosen + 1
                line = (burst - shortest + own.utilisation * windows[jump]) / rest + shortest - windows[jump]
                if jump + 2 == _MOST_JUMPS:
                    beyond = line
                    best = max(best, line)
                if line <= best:
                    cleared, chosen = best, 0
                    for earlier in range(jump):
                        if peaks[earlier] > best:
                            candidates[chosen] = earlier
                            chosen += 1
                    break
            if jump + 1 == known:
                nearest = int(np.argmin(upcoming))
                windows[known] = upcoming[nearest]
                works[known] = works[jump] + own.transmission[nearest]
                peaks[known] = starts_before(works[known] - shortest, above) + shortest - windows[known]
                messages[nearest] += 1.0
                changed = members[nearest]
                upcoming[nearest] = messages[nearest] * flows.separation[changed] - flows.jitter[changed]
                known += 1
            begin, end = windows[jump], windows[jump + 1]
            if peaks[jump] <= best or begin == end:
                continue
            if not settled[jump]:
                peaks[jump] = starts_at(works[jump] - shortest, above) + shortest - begin
                settled[jump] = True
            if peaks[jump] > best:
                best = _worst_between(begin, end, works[jump] - flows.last[flow], best, flow, above, flows)
        bounds[row] = min(best, max(burst / rest, enough[row]))
    return bounds
