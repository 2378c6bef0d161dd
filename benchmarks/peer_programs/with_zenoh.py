"""Zenoh: its router, a session for all publishers, and one for each subscriber.

Topics have Zenoh's seven priorities, one for each class. What is said once may block, readings are dropped where the
queue of their priority is full: Zenoh's own advice. The settings say the transport, and whether links are marked.
"""

from __future__ import annotations

import json

import zenoh

from peer_programs.client import (
    Noted,
    Told,
    ended,
    note_until_ended,
    program,
    publish_schedule,
    say_connected,
    told,
)
from peer_programs.settings import RELIABLE_TOPICS, ZENOH, ZENOH_MARKED, ZENOH_PORT, dscp_of

_FIRST_PRIORITY, _PRIORITIES = 1, 7
"""Of those that applications may use: real time. 0 is Zenoh's own."""


def endpoints(its: Told) -> list[str]:
    """Where the router listens: once, or on a port for each priority, whose packets are marked with its DSCP."""
    transport = its.settings["transport"]
    if not its.settings["marked"]:
        return [f"{transport}/{its.server}:{ZENOH_PORT}"]
    return [
        f"{transport}/{its.server}:{ZENOH_PORT + level}?prio={_FIRST_PRIORITY + level}-{_FIRST_PRIORITY + level}"
        f"#dscp={dscp_of(level):#x}"
        for level in range(_PRIORITIES)
    ]


def opened(its: Told) -> zenoh.Session:
    """A session in its role. A client would use the first of several links: where there are some it is a peer."""
    serves, marked = its.role == "server", its.settings["marked"]
    mode = "router" if serves else "peer" if marked else "client"
    choices = ZENOH | (ZENOH_MARKED if marked else {}) | its.settings.get("more", {})
    choices |= {"mode": mode, "listen/endpoints": endpoints(its) if serves else []}
    if not serves:
        choices["connect/endpoints"] = endpoints(its)
    config = zenoh.Config()
    for name, value in choices.items():
        config.insert_json5(name, json.dumps(value))
    return zenoh.open(config)


async def serve(its: Told) -> None:
    stopped, session = ended(), opened(its)
    say_connected()
    await stopped.wait()
    session.close()


async def publish(its: Told) -> None:
    session = opened(its)
    publishers = {
        topic: session.declare_publisher(
            topic,
            priority=zenoh.Priority(_FIRST_PRIORITY + its.level[topic]),
            congestion_control=zenoh.CongestionControl.BLOCK
            if topic in RELIABLE_TOPICS
            else zenoh.CongestionControl.DROP,
        )
        for topic in its.topics
    }

    async def send(topic: str, payload: bytes) -> None:
        publishers[topic].put(payload)

    await publish_schedule(its, send)
    session.close()


async def subscribe(its: Told) -> None:
    noted, session = Noted(its), opened(its)

    def got(sample: zenoh.Sample) -> None:
        noted.got(str(sample.key_expr), sample.payload.to_bytes())

    subscribers = [session.declare_subscriber(topic, got) for topic in its.topics]
    await note_until_ended(noted)
    del subscribers
    session.close()


if __name__ == "__main__":
    program(told(), publish, subscribe, serve)
