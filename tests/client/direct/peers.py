"""Publishers and subscribers of direct topics in processes of their own, and what tests ask of them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

PUBLISH = """
import contextlib, json, sys
from triagemq.client.direct import BlockingDirectPublisher, NetworkSettings
given = json.loads(sys.argv[1])
network = NetworkSettings(interface=given.get("interface", "lo"))
with contextlib.suppress(KeyboardInterrupt), BlockingDirectPublisher(
    given["topic"], given["address"], max_size_bytes=given["size"], network=network,
    min_separation_seconds=given.get("separation", 0.0),
) as publisher:
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            number = publisher.counters.published + 1
            publisher.publish((str(number) + "," ).encode() * (given["size"] // (len(str(number)) + 1)))
        print(json.dumps(publisher.counters.published), flush=True)
"""

SUBSCRIBE = """
import contextlib, json, sys
from triagemq.client.direct import BlockingDirectSubscriber, NetworkSettings
given = json.loads(sys.argv[1])
network = NetworkSettings(interface=given.get("interface", "lo"))
with contextlib.suppress(KeyboardInterrupt), BlockingDirectSubscriber(
    given["topic"], given["address"], network=network
) as subscriber:
    print(json.dumps("ready"), flush=True)
    for event in subscriber:
        head, _, rest = event.value.partition(b",")
        whole = event.value == (head + b",") * (event.value.count(b","))
        print(json.dumps([event.number, int(head), whole, event.session]), flush=True)
"""


class Peer:
    """`end` ends it as Ctrl-C does, `kill` as kill -9."""

    def __init__(self, program: str, given: dict[str, Any], *before: str) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", program, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "ready"

    def line(self) -> Any:
        """What it says next."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, "it has ended"
        return json.loads(text)

    def publish(self, count: int) -> int:
        """So many more; how many there are in all."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        total = self.line()
        assert isinstance(total, int)
        return total

    def numbers(self, count: int) -> list[int]:
        """The numbers of the next events, each of which is whole."""
        found = [self.line() for _ in range(count)]
        assert all(number == head and whole for number, head, whole, _ in found)
        return [number for number, *_ in found]

    def first_of_another(self, known: set[int]) -> int:
        """The number of the first event from a publisher that is not known yet; all before it are whole, too."""
        while True:
            number, head, whole, session = self.line()
            assert number == head
            assert whole
            if session not in known:
                known.add(session)
                assert isinstance(number, int)
                return number

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)


@contextlib.contextmanager
def publisher(*before: str, topic: str, size: int = 100, **given: Any) -> Iterator[Peer]:
    peer = Peer(PUBLISH, {"topic": topic, "size": size, **given}, *before)
    try:
        yield peer
    finally:
        peer.end()


@contextlib.contextmanager
def subscriber(*before: str, topic: str, **given: Any) -> Iterator[Peer]:
    peer = Peer(SUBSCRIBE, {"topic": topic, **given}, *before)
    try:
        yield peer
    finally:
        peer.end()
