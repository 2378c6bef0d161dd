"""Zenoh: its router, a session for all publishers, and one for each subscriber.

Topics have Zenoh's seven priorities, one for each class. What is said once may block, readings are dropped where the
queue of their priority is full: Zenoh's own advice. The settings say the transport, and whether links are marked.
"""

from __future__ import annotations

import asyncio
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
from peer_programs.settings import RELIABLE_TOPICS, ZENOH, ZENOH_MARKED, ZENOH_PORT, ZENOH_SLOW_LINK, dscp_of

_PRIORITIES = (
    zenoh.Priority.REAL_TIME,
    zenoh.Priority.INTERACTIVE_HIGH,
    zenoh.Priority.INTERACTIVE_LOW,
    zenoh.Priority.DATA_HIGH,
    zenoh.Priority.DATA,
    zenoh.Priority.DATA_LOW,
    zenoh.Priority.BACKGROUND,
)
"""By class. In endpoints they are 1 to 7; 0 is Zenoh's own."""
_PATIENCE_SECONDS, _LOOK_SECONDS = 60.0, 0.05
_DECLARING_SECONDS = 1.0
"""Nobody says when the router knows of a subscription."""


def plain_endpoint(its: Told) -> str:
    """Where the router listens for everyone, and for publishers in any case: nothing is scarce between them."""
    return f"{its.settings['transport']}/{its.server}:{ZENOH_PORT}"


def marked_endpoints(its: Told) -> list[str]:
    """Where it listens for each priority, on a link whose packets are marked with a DSCP of its own."""
    return [
        f"{its.settings['transport']}/{its.server}:{ZENOH_PORT + 1 + level}?prio={1 + level}-{1 + level}"
        f"#dscp={dscp_of(level):#x}"
        for level in range(len(_PRIORITIES))
    ]


def opened(its: Told) -> zenoh.Session:
    """A session in its role. A client would use the first of several links: with marked ones a subscriber is a peer."""
    marked = marked_endpoints(its) if its.settings["marked"] and its.role != "publishers" else []
    choices = ZENOH | ZENOH_SLOW_LINK | (ZENOH_MARKED if its.settings["marked"] else {})
    if its.role == "server":
        choices |= {"mode": "router", "listen/endpoints": [plain_endpoint(its), *marked]}
    else:
        choices |= {"mode": "peer" if marked else "client", "listen/endpoints": []}
        choices["connect/endpoints"] = marked or [plain_endpoint(its)]
    config = zenoh.Config()
    for name, value in choices.items():
        config.insert_json5(name, json.dumps(value))
    return zenoh.open(config)


async def linked(session: zenoh.Session, links: int) -> None:
    """Peers connect when they are open already: until so many links are there."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while len(session.info.links()) < links:
            await asyncio.sleep(_LOOK_SECONDS)


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
            priority=_PRIORITIES[its.level[topic]],
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
    await linked(session, len(_PRIORITIES) if its.settings["marked"] else 1)

    def got(sample: zenoh.Sample) -> None:
        noted.got(str(sample.key_expr), sample.payload.to_bytes())

    subscribers = [session.declare_subscriber(topic, got) for topic in its.topics]
    await asyncio.sleep(_DECLARING_SECONDS)
    await note_until_ended(noted)
    del subscribers
    session.close()


if __name__ == "__main__":
    program(told(), publish, subscribe, serve)
