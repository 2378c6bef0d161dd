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

Flows behind a token bucket (`bucket`) count as what that lets through of a publisher who keeps on sending, packets of
any length: b + u x, of H and of the others in K. The flow itself counts as it is declared; who sends more is promised
nothing. But where it goes on (`passing`), what comes to the next port depends on the delay of any packet, and the flow
counts like the others, with l = 0. W then grows between jumps, too, and with it the start, which jumps where it meets a
message of H: these moments are looked at as well.

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
ROUNDED = 1.0 + 1e-12
"""Sums and differences of what token buckets let through are rounded; no bound is to be too low by that."""
# Where the load is almost all of the port the line hardly falls; the bound is then the line at the last jump.
_MOST_JUMPS = 10_000


class PortFlows(NamedTuple):
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
    bucket: NDArray[np.bool_]
    """Whether a token bucket lets the flow in, and not a window."""
    passing: NDArray[np.bool_]
    """Whether the bound is to hold for every packet that the bucket lets through, whatever is sent."""


class Load(NamedTuple):
    """What several flows bring together: in a closed window, floor(offset + rate * window) + 1 messages each, and
    those behind token buckets `filled` and `filling` * window of work."""

    transmission: Floats
    rate: Floats
    offset: Floats
    filled: float
    filling: float
    utilisation: float
    burst: float
    """The most work at once: that of token buckets."""
    least_burst: float
    """Work in any window is never below this, and utilisation times the window."""


@compiled
def load(among: Integers, flows: PortFlows) -> Load:
    """Flows side by side, so that sums over them are quick."""
    behind = flows.bucket[among]
    stepping = among[~behind]
    transmission = flows.transmission[stepping]
    rate = LATER / flows.separation[stepping]
    offset = flows.jitter[stepping] * rate
    utilisation = late = burst = 0.0
    for row in range(stepping.size):
        utilisation += transmission[row] / flows.separation[stepping[row]]
        late += transmission[row] * offset[row]
        burst += transmission[row]
    filled = filling = 0.0
    for flow in among[behind]:
        share = flows.transmission[flow] / flows.separation[flow]
        filling += share
        filled += flows.transmission[flow] + share * flows.jitter[flow]
    return Load(
        transmission,
        rate,
        offset,
        filled,
        filling,
        utilisation + filling,
        burst + late + filled,
        late / LATER + filled,
    )


@compiled
def arrived(window: float, flows: Load) -> float:
    """The work that flows bring in a closed window, but for those behind token buckets."""
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
        later = (ahead + higher.filled + arrived(start, higher)) / (1.0 - higher.filling)
        if later <= start:
            return later
        start = later


@compiled
def _next_message(after: float, flows: Load) -> float:
    """When the next message can come in a window that is longer than this one."""
    soonest = np.inf
    for row in range(flows.rate.size):
        messages = np.floor(flows.offset[row] + flows.rate[row] * after) + 1.0
        soonest = min(soonest, (messages - flows.offset[row]) / flows.rate[row])
    return soonest


@compiled
def _worst_while_filling(ahead: float, begin: float, end: float, filling: float, higher: Load) -> float:
    """The longest from an arrival in [begin, end) to its start, while work `ahead` of it grows at a rate below what the
    port has left. The start jumps where it meets another message of a higher class."""
    arrival, worst = begin, 0.0
    while True:
        start = starts_at(ahead + filling * (arrival - begin), higher)
        worst = max(worst, start - arrival)
        if filling == 0.0 or starts_before(ahead + filling * (arrival - begin), higher) - arrival <= worst:
            return worst
        meets = max(_next_message(start, higher), start * LATER)
        needed = meets * (1.0 - higher.filling) - higher.filled - arrived(start, higher) - ahead
        arrival = max(begin + needed / filling, arrival * LATER)
        if not arrival < end:
            return worst


@compiled
def starts_before(ahead: float, higher: Load) -> float:
    """No start is later, at the price of no sum: floor(v) + 1 <= v + 1."""
    return (ahead + higher.burst) / (1.0 - higher.utilisation)


@compiled
def _gap(before: int, flow: int, flows: PortFlows) -> float:
    """Least time between the arrivals of a message's last packet and of the one `before` packets earlier."""
    if before == 0:
        return 0.0
    return float(flows.gap[flow] * (before - 1 + flows.last[flow] / flows.packet[flow]))


@compiled
def _came(window: float, flow: int, flows: PortFlows) -> int:
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
    begin: float,
    end: float,
    work: float,
    filling: float,
    best: float,
    flow: int,
    higher: Load,
    flows: PortFlows,
) -> float:
    """The largest delay of a last packet that arrives in [begin, end), while only own packets jump, or `best`.

    `work` is ahead of it at the beginning once its whole message has come, and grows by `filling`.
    """
    packet, last = flows.packet[flow], flows.last[flow]
    most = flows.packets[flow] - 1
    came = _came(begin, flow, flows)
    while True:
        arrival = max(begin, _gap(came, flow, flows))
        if arrival >= end:
            return best
        ahead = work - (most - came) * packet + filling * (arrival - begin)
        if starts_before(ahead, higher) + last - arrival > best:
            until = end if came == most else min(end, _gap(came + 1, flow, flows))
            best = max(best, _worst_while_filling(ahead, arrival, until, filling, higher) + last)
        if came == most:
            return best
        came += 1


@compiled
def _excess(window: float, flow: int, flows: PortFlows) -> float:
    """How much more a token bucket lets through of a flow in a window than was declared."""
    separation = flows.separation[flow]
    messages = np.floor((window + flows.jitter[flow]) * LATER / separation)
    return float(flows.transmission[flow] * ((window + flows.jitter[flow]) / separation - messages))


@compiled
def class_bounds(
    members: Integers, higher: Integers, blocking: float, flows: PortFlows, enough: Floats
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
    shortest = np.where(flows.passing[members], 0.0, flows.last[members]).min()
    windows, works, peaks = np.empty(_MOST_JUMPS), np.empty(_MOST_JUMPS), np.empty(_MOST_JUMPS)
    settled = np.zeros(_MOST_JUMPS, dtype=np.bool_)
    candidates = np.empty(_MOST_JUMPS, dtype=np.int64)
    messages = np.floor(flows.jitter[members] * LATER / flows.separation[members]) + 1.0
    upcoming = messages * flows.separation[members] - flows.jitter[members]
    windows[0], works[0] = 0.0, blocking + own.filled + arrived(0.0, own)
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
                changed = members[nearest]
                works[known] = works[jump] + own.filling * (windows[known] - windows[jump])
                if not flows.bucket[changed]:
                    works[known] += flows.transmission[changed]
                peaks[known] = starts_before(works[known] - shortest, above) + shortest - windows[known]
                messages[nearest] += 1.0
                upcoming[nearest] = messages[nearest] * flows.separation[changed] - flows.jitter[changed]
                known += 1
            begin, end = windows[jump], windows[jump + 1]
            if peaks[jump] <= best or begin == end:
                continue
            if not settled[jump] and own.filling == 0.0:
                peaks[jump] = starts_at(works[jump] - shortest, above) + shortest - begin
                settled[jump] = True
            if peaks[jump] > best:
                work, filling = works[jump] - flows.last[flow], own.filling
                if flows.passing[flow]:
                    best = max(best, _worst_while_filling(works[jump], begin, end, filling, above))
                    continue
                if flows.bucket[flow]:
                    work -= _excess(begin, flow, flows)
                    filling -= flows.transmission[flow] / flows.separation[flow]
                best = _worst_between(begin, end, work, max(filling, 0.0), best, flow, above, flows)
        if best > enough[row] and own.filling + above.filling > 0.0:
            best *= ROUNDED
        bounds[row] = min(best, max(burst / rest, enough[row]))
    return bounds
