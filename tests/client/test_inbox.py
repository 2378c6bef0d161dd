"""What comes over one connection is handed on once, whatever a gateway repeats after a restart."""

from __future__ import annotations

import pytest

from triagemq.client.events import Event, Inbox
from triagemq.mqttsn import Publish, PubRel, Register, TopicIdType


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_is_repeated_under_another_topic_id_is_the_same(qos: int, released: bool) -> None:
    came: list[Event] = []
    inbox = Inbox(lambda message: None, came.append, {})
    for attempt, topic_id in enumerate((7, 9)):
        # A gateway that was started again may have given the topic another id.
        inbox.begin(fresh=attempt == 0)
        inbox.register(Register(topic_id, 1, "floor/2/smoke"))
        inbox.publish(Publish(TopicIdType.NORMAL, topic_id, b"thick", qos, dup=attempt > 0, message_id=5))
        if released:
            inbox.release(PubRel(5))
    assert [event.topic for event in came] == ["floor/2/smoke"]
    assert inbox.counters.duplicates == 1
    inbox.publish(Publish(TopicIdType.NORMAL, 9, b"thin", qos, message_id=5))
    assert len(came) == 2
