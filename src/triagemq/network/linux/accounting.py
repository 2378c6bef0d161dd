"""What has become of each flow's packets, from what a classifier and the kernel's queues count.

A classifier counts every flow exactly as it comes; a queue counts what left it and what it had no room for, of all its
flows together. Where a queue has one flow, that is the flow's; where it has several, both are shared out, at every
reading, in proportion to what each flow put in. Sums over a queue's flows are exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from triagemq.errors import PlanError
from triagemq.network.linux.flow_table import FlowPolicy, FlowTable, packed_key
from triagemq.network.linux.queues import QueueStatistics
from triagemq.network.linux.records import UNMANAGED
from triagemq.network.state import CopyKey
from triagemq.plan import FlowCounters, FlowKey

# Counters rest before they are used again, in case a packet is just being counted.
_RESTING = 64


def share(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole numbers in proportion to weights, none above its own; less if they do not add up to so much.

    >>> share(10, [30, 10, 0]), share(5, [1, 1])
    ([8, 2, 0], [1, 1])
    """
    sum_of_weights = sum(weights)
    total = min(total, sum_of_weights)
    if total <= 0:
        return [0] * len(weights)
    shares = [total * weight // sum_of_weights for weight in weights]
    largest_rest = sorted(range(len(weights)), key=lambda each: -(total * weights[each] % sum_of_weights))
    for each in largest_rest[: total - sum(shares)]:
        shares[each] += 1
    return shares


AccountKey = FlowKey | CopyKey
"""Whose account it is: a flow's, or that of a multicast flow's copies at one port."""


class _QueueResidence:
    """A flow's time in one queue of one port: it has a counter of its own."""

    __slots__ = ("account", "admitted", "counter", "dropped_by_buffer", "ended", "packets_out", "row")

    def __init__(self, account: FlowAccount, counter: int) -> None:
        self.account, self.counter = account, counter
        self.row = [0, 0, 0]
        self.admitted = self.dropped_by_buffer = self.packets_out = 0
        self.ended = False

    @property
    def waiting(self) -> int:
        return self.admitted - self.dropped_by_buffer - self.packets_out


class FlowAccount:
    """One flow since it was made: its policy, its stays in queues that still have its packets, and what is past.

    Of a multicast key each port has one.
    """

    __slots__ = ("flow_id", "key", "packed_key", "past", "place", "policy", "removed", "stays")

    def __init__(self, key: AccountKey, port: int) -> None:
        self.key = key
        self.packed_key = packed_key(key) if isinstance(key, FlowKey) else packed_key(key[0], port)
        self.flow_id = 0
        self.policy: FlowPolicy | None = None
        self.place: tuple[int, int] | None = None
        self.stays: list[_QueueResidence] = []
        self.past = [0, 0, 0, 0, 0]
        self.removed = False

    @property
    def flow_key(self) -> FlowKey:
        return self.key if isinstance(self.key, FlowKey) else self.key[0]

    def counters(self) -> FlowCounters:
        packets_in, limited, foreign, by_buffer, packets_out = self.past
        for stay in self.stays:
            packets_in += stay.row[0]
            limited += stay.row[1]
            foreign += stay.row[2]
            by_buffer += stay.dropped_by_buffer
            packets_out += stay.packets_out
        return FlowCounters(
            self.flow_id, packets_in, by_buffer, packets_out, limited=limited, foreign=foreign
        )


class FlowAccounts:
    """The accounts of all flows, by key, and who has stayed in which queue (port number, queue)."""

    def __init__(self, table: FlowTable, most_counters: int) -> None:
        self._table = table
        self.accounts: dict[AccountKey, FlowAccount] = {}
        self.leaving: set[AccountKey] = set()
        """Flows that have been removed and, when last looked at, still had packets waiting."""
        self.gone: deque[tuple[FlowKey, FlowCounters]] = deque(maxlen=most_counters)
        """Those whose last packet has left since the last reading."""
        self._stays: dict[tuple[int, int], list[_QueueResidence]] = {}
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}
        self._free: deque[int] = deque()
        self._used = 0
        self._most = most_counters
        self._ended = self._ended_at_reading = 0

    def take_counter(self) -> int:
        """The number of a counter that is zero, for `move`."""
        if self._free and (len(self._free) > _RESTING or self._used == self._most):
            counter = self._free.popleft()
            self._table.reset_flow_counter(counter)
            return counter
        if self._used == self._most:
            raise PlanError(
                f"all {self._most} counters are in use; make fewer flows, or change them less often"
            )
        self._used += 1
        return self._used - 1

    def give_back(self, counters: Sequence[int]) -> None:
        """Counters that were taken are not needed after all."""
        self._free.extend(counters)

    def move(self, account: FlowAccount, flow_id: int, policy: FlowPolicy) -> None:
        """A flow has been made or has a new policy; a new queue goes with a new counter."""
        self.accounts[account.key] = account
        if account.removed:
            account.removed = False
            self.leaving.discard(account.key)
        account.flow_id, account.policy = flow_id, policy
        place = (policy.port, policy.queue)
        if account.place != place:
            self._end_stay(account)
            account.place = place
            stay = _QueueResidence(account, policy.counter)
            account.stays.append(stay)
            self._stays.setdefault(place, []).append(stay)

    def remove(self, account: FlowAccount) -> None:
        """A flow has gone; it is forgotten when its last packet has left."""
        self._end_stay(account)
        account.policy = None
        account.removed = True
        self.leaving.add(account.key)

    def needs_reading(self) -> bool:
        """Whether many flows have moved since the last reading, which alone frees the counters of their past stays."""
        return self._ended > 2 * self._ended_at_reading + 1024

    def forget_port(self, port: int) -> None:
        """A port has gone, and with it whatever waited there."""
        for place in [each for each in self._stays if each[0] == port]:
            for stay in self._stays.pop(place):
                self._close_stay(stay)
        for place in [each for each in self._seen if each[0] == port]:
            del self._seen[place]

    def read(self, statistics: Mapping[int, Sequence[QueueStatistics]]) -> None:
        """Bring all accounts up to date with what the queues of each port have counted a moment ago."""
        rows = self._table.flow_counters(self._used)[:, (0, 2, 3)].tolist()
        for port, queues in statistics.items():
            for number in range(1, UNMANAGED):
                place, queue = (port, number), queues[number]
                drops, packets_out = self._seen.get(place, (0, 0))
                self._seen[place] = (queue.drops, queue.packets_out)
                if self._stays.get(place):
                    self._read_queue(place, queue.drops - drops, queue.packets_out - packets_out, rows)
                    self._close_stays(place, queue.backlog_packets == 0)
        self._ended_at_reading = self._ended

    def _read_queue(self, place: tuple[int, int], drops: int, left: int, rows: list[list[int]]) -> None:
        """Share out what a queue has dropped and sent since the last reading."""
        stays = self._stays[place]
        came = []
        for stay in stays:
            packets_in, limited, _ = stay.row = rows[stay.counter]
            came.append(packets_in - limited - stay.admitted)
            stay.admitted = packets_in - limited
        for stay, dropped in zip(stays, share(drops, came), strict=True):
            stay.dropped_by_buffer += dropped
        if drops > (found := sum(came)):
            # More than came: a queue lost what it held.
            lost = share(drops - found, [stay.waiting for stay in stays])
            for stay, dropped in zip(stays, lost, strict=True):
                stay.dropped_by_buffer += dropped
        # Flows that have gone elsewhere first: what others put in came later.
        for some in ([stay for stay in stays if stay.ended], [stay for stay in stays if not stay.ended]):
            for stay, count in zip(some, share(left, [stay.waiting for stay in some]), strict=True):
                stay.packets_out += count
                left -= count

    def _close_stays(self, place: tuple[int, int], empty: bool) -> None:
        """Stays that are over end when their last packet has left, at the latest when the queue was empty."""
        kept = []
        for stay in self._stays[place]:
            if stay.ended and (empty or stay.waiting <= 0):
                self._close_stay(stay)
            else:
                kept.append(stay)
        self._stays[place] = kept

    def _end_stay(self, account: FlowAccount) -> None:
        if account.place is not None:
            account.stays[-1].ended = True
            account.place = None
            self._ended += 1

    def _close_stay(self, stay: _QueueResidence) -> None:
        """Add a stay to its flow's past. What still waits by its count was lost with the queue."""
        account = stay.account
        ending = (*stay.row, stay.dropped_by_buffer + stay.waiting, stay.packets_out)
        account.past = [before + added for before, added in zip(account.past, ending, strict=True)]
        account.stays.remove(stay)
        if stay.ended:
            self._ended -= 1
        else:
            account.place = None
        self._free.append(stay.counter)
        if account.removed and not account.stays:
            del self.accounts[account.key]
            self.leaving.discard(account.key)
            self.gone.append((account.flow_key, account.counters()))
