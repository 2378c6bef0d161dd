"""The time at which a datagram came is the kernel's, however late it is read."""

from __future__ import annotations

import socket
import time
from contextlib import closing

from triagemq.lab.emulate.receipts import LastArrival, TimedSocket, stamping


def test_a_datagram_that_is_read_late_came_when_it_came() -> None:
    arrival = LastArrival()
    with (
        stamping(),
        closing(TimedSocket(arrival, socket.AF_INET, socket.SOCK_DGRAM)) as receiver,
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(20)
        before_ns = time.time_ns()
        for content in (b"first", b"second"):
            sender.sendto(content, receiver.getsockname())
        after_ns = time.time_ns()
        time.sleep(0.2)
        assert receiver.recv(100) == b"first"
        first_ns = arrival.of(time.time_ns())
        assert receiver.recv(100) == b"second"
        second_ns = arrival.of(time.time_ns())
    # Clocks that are read one after the other by two processors may be a moment apart.
    assert before_ns - 1e6 <= first_ns <= second_ns <= after_ns + 1e6
