"""Cyclone DDS: a participant for all publishers, and one for each subscriber; there is no server.

A DDS topic for each topic. Readings are best effort, what is said once is reliable, both with a lifespan and the
transport priority of their class. Deadlines of DDS are left out: they tell who missed one, and change no order.
"""

from __future__ import annotations

import asyncio

from cyclonedds.core import Listener, Policy, Qos
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.idl import make_idl_struct
from cyclonedds.idl.types import sequence, uint8
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from peer_programs.client import Noted, Told, note_until_ended, program, publish_schedule, told
from peer_programs.settings import DDS, LIFESPAN_SECONDS, RELIABLE_TOPICS, dscp_of

_DOMAIN = 0
_BLOCKING_SECONDS = 1
_DEEP = 8
"""Samples that a reliable writer keeps for who has lost one."""
_DISCOVERY_SECONDS = 60.0
_LOOK_SECONDS = 0.05


Octets = make_idl_struct("Octets", "Octets", {"payload": sequence[uint8]})
"""An event."""


def participant(its: Told) -> tuple[Domain, DomainParticipant]:
    """The domain must outlive what is in it."""
    described = DDS.format(interface=its.interface, multicast=its.settings["multicast"])
    domain = Domain(_DOMAIN, described)
    return domain, DomainParticipant(_DOMAIN)


def quality(topic: str, level: int) -> Qos:
    """As the settings have it. A priority is the higher the more urgent: the DSCP that it would have."""
    said_once = topic in RELIABLE_TOPICS
    reliability = (
        Policy.Reliability.Reliable(duration(seconds=_BLOCKING_SECONDS))
        if said_once
        else Policy.Reliability.BestEffort
    )
    return Qos(
        reliability,
        Policy.History.KeepLast(_DEEP if said_once else 1),
        Policy.TransportPriority(dscp_of(level) >> 2),
        Policy.Lifespan(duration(seconds=LIFESPAN_SECONDS)),
    )


async def publish(its: Told) -> None:
    _, there = domain_and_participant = participant(its)
    writers = {}
    for topic in its.topics:
        qos = quality(topic, its.level[topic])
        writers[topic] = DataWriter(there, Topic(there, topic, Octets, qos=qos), qos=qos)
    expected = its.settings["readers"]
    async with asyncio.timeout(_DISCOVERY_SECONDS):
        while any(
            len(writers[topic].get_matched_subscriptions()) < count for topic, count in expected.items()
        ):
            await asyncio.sleep(_LOOK_SECONDS)

    async def send(topic: str, payload: bytes) -> None:
        writers[topic].write(Octets(payload=list(payload)))

    await publish_schedule(its, send)
    del domain_and_participant


async def subscribe(its: Told) -> None:
    noted, (domain, there) = Noted(its), participant(its)

    class Arrival(Listener):  # type: ignore[misc]
        """Of one topic."""

        def __init__(self, topic: str) -> None:
            super().__init__()
            self._topic = topic

        def on_data_available(self, reader: DataReader) -> None:
            for sample in reader.take(N=100):
                if isinstance(sample, Octets):
                    noted.got(self._topic, bytes(sample.payload))

    readers = []
    for topic in its.topics:
        qos = quality(topic, its.level[topic])
        # What the program has not read yet is not overwritten by what comes next.
        read = Qos(
            *(policy for policy in qos if not isinstance(policy, Policy.History.KeepLast)),
            Policy.History.KeepAll,
        )
        readers.append(
            DataReader(there, Topic(there, topic, Octets, qos=qos), qos=read, listener=Arrival(topic))
        )
    await note_until_ended(noted)
    del readers, domain


if __name__ == "__main__":
    program(told(), publish, subscribe)
