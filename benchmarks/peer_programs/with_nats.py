"""Clients of NATS, with its own library for Python: one connection for all publishers, one for each subscriber."""

from __future__ import annotations

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from peer_programs.client import Noted, Told, note_until_ended, program, publish_schedule, told

_PORT = 4222


async def connected(its: Told) -> Client:
    """Connects again, for ever, when it is cut off: what NATS expects of a client."""
    return await nats.connect(f"nats://{its.server}:{_PORT}", max_reconnect_attempts=-1)


def subject(topic: str) -> str:
    """A topic as NATS has it.

    >>> subject("floor-1/west/smoke")
    'floor-1.west.smoke'
    """
    return topic.replace("/", ".")


async def publish(its: Told) -> None:
    client = await connected(its)

    async def send(topic: str, payload: bytes) -> None:
        await client.publish(subject(topic), payload)

    await publish_schedule(its, send)
    await client.close()


async def subscribe(its: Told) -> None:
    noted, client = Noted(its), await connected(its)

    async def got(message: Msg) -> None:
        noted.got(message.subject.replace(".", "/"), message.data)

    for topic in its.topics:
        await client.subscribe(subject(topic), cb=got)
    await client.flush(30)
    await note_until_ended(noted)


if __name__ == "__main__":
    program(told(), publish, subscribe)
