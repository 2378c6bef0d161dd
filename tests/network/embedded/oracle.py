"""An output port as slow and obvious as can be: the specification that the embedded data plane is compared with.

Whoever uses it lets the packets of one moment arrive in the order of their classes, control first.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Waiting:
    """A packet at a port; class -1 is control."""

    number: int
    priority_class: int
    wire_bytes: int


@dataclass
class OraclePort:
    """`sent` and `dropped` are (number of the packet, time)."""

    bandwidth_bps: float
    buffer_packets: float
    sending: Waiting | None = None
    ends_ns: int = 0
    waiting: list[Waiting] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)

    def run_until(self, now_ns: int) -> None:
        """End every transmission that ends by now, one at a time."""
        while self.sending is not None and self.ends_ns <= now_ns:
            self.sent.append((self.sending.number, self.ends_ns))
            self.sending = None
            if self.waiting:
                # The highest class; of that the one that came first. min() takes the first of equals.
                best = min(self.waiting, key=lambda packet: packet.priority_class)
                self.waiting.remove(best)
                self._start(best, self.ends_ns)

    def arrive(self, packet: Waiting, now_ns: int) -> None:
        self.run_until(now_ns)
        if self.sending is None:
            self._start(packet, now_ns)
            return
        self.waiting.append(packet)
        data = [each for each in self.waiting if each.priority_class >= 0]
        if packet.priority_class >= 0 and 1 + len(data) > self.buffer_packets:
            # Somebody must go: of the lowest class the one that came last, which may be the packet itself.
            lowest = max(each.priority_class for each in data)
            loser = [each for each in data if each.priority_class == lowest][-1]
            self.waiting.remove(loser)
            self.dropped.append((loser.number, now_ns))

    def _start(self, packet: Waiting, now_ns: int) -> None:
        self.sending = packet
        self.ends_ns = now_ns + int(packet.wire_bytes * (8e9 / self.bandwidth_bps) + 0.5)
