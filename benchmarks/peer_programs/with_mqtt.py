"""Clients of an MQTT broker, with Paho: one connection for all publishers, one for each subscriber.

MQTT 5. The settings say which quality of service both sides use. Messages do not expire: with 5 s fewer came in time to
be worth something at QoS 1, and QoS 0 waits in the system's buffers, where nothing expires.
"""

from __future__ import annotations

import asyncio
from typing import Any

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5

from peer_programs.client import Noted, Told, note_until_ended, program, publish_schedule, told

_PORT = 1883
_PATIENCE_SECONDS = 30.0


async def connected(its: Told, **callbacks: Any) -> Client:
    """A client whose thread does what there is to do."""
    names = its.settings.get("client_ids", [])
    client_id = names[its.subscriber] if names and its.subscriber >= 0 else ""
    client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5)
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    client.on_connect = lambda *_: loop.call_soon_threadsafe(there.set)
    for name, callback in callbacks.items():
        setattr(client, name, callback)
    client.connect(its.server, its.settings["front_port"] if client_id else _PORT, keepalive=60)
    client.loop_start()
    await asyncio.wait_for(there.wait(), _PATIENCE_SECONDS)
    return client


async def publish(its: Told) -> None:
    client = await connected(its)

    async def send(topic: str, payload: bytes) -> None:
        client.publish(topic, payload, qos=its.settings["qos"])

    await publish_schedule(its, send)
    client.disconnect()
    client.loop_stop()


async def subscribe(its: Told) -> None:
    noted, loop, there = Noted(its), asyncio.get_running_loop(), asyncio.Event()
    client = await connected(
        its,
        on_message=lambda client, data, message: noted.got(message.topic, message.payload),
        on_subscribe=lambda *_: loop.call_soon_threadsafe(there.set),
    )
    client.subscribe([(topic, its.settings["qos"]) for topic in its.topics])
    await asyncio.wait_for(there.wait(), _PATIENCE_SECONDS)
    await note_until_ended(noted)
    client.loop_stop()


if __name__ == "__main__":
    program(told(), publish, subscribe)
