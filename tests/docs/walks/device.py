"""A device that wants topics and gets events as it is told on standard input, and repeats the line when it has."""

from __future__ import annotations

import json
import sys
import time
import urllib.request

from triagemq.client import BlockingPublisher, BlockingSubscriber

NAME = "watch"


def is_planned(topic: str) -> bool:
    """Whether a plan that knows the topic is in force."""
    mine = f"{sys.argv[1]}/v1/subscribers/{NAME}"
    with urllib.request.urlopen(f"{mine}/assignment") as answer:
        if topic not in json.load(answer)["classes"]:
            return False
    with urllib.request.urlopen(mine) as answer:
        return bool(json.load(answer)["in_force"])


def main() -> None:
    with (
        BlockingPublisher(sys.argv[1], name="sensor") as publisher,
        BlockingSubscriber(sys.argv[1], name=NAME) as subscriber,
    ):
        # So rarely that a silence is none, and the plan stays as it is.
        publisher.declare(dict.fromkeys(("gas", "smoke", "heat", "water"), 0.05), size_bytes=100)
        events = iter(subscriber)
        for line in sys.stdin:
            verb, *topics = line.split()
            for topic in topics:
                if verb == "subscribe":
                    subscriber.subscribe(topic, utility="log:10")
                    while not is_planned(topic):
                        time.sleep(0.05)
                publisher.publish(topic, b"42", qos=1)
                next(events)
            print(line, end="", flush=True)


if __name__ == "__main__":
    main()
