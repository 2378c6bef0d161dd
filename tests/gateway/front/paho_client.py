"""A paho client that collects what it gets, and waits for things."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

LONG_SECONDS = 30.0
VERSIONS = {"3.1.1": mqtt.MQTTv311, "5": mqtt.MQTTv5}


class Paho:
    """Connects at once, and again by itself when it is cut off; subscribes to the same again if its session is gone."""

    def __init__(
        self,
        port: int,
        client_id: str,
        version: str = "3.1.1",
        *,
        clean: bool = True,
        will: tuple[str, bytes] | None = None,
        user: str | None = None,
        receive_maximum: int | None = None,
    ) -> None:
        self.messages: list[mqtt.MQTTMessage] = []
        self.session_present: list[bool] = []
        self.refused: list[str] = []
        self.published: set[int] = set()
        """Of messages above QoS 0 those that are acknowledged."""
        self._changed = threading.Condition()
        self._answers: set[int] = set()
        self._is_5 = version == "5"
        options: dict[str, Any] = {} if self._is_5 else {"clean_session": clean}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=VERSIONS[version], **options
        )
        self.client.max_inflight_messages_set(1000)
        self.client.reconnect_delay_set(1, 1)
        if will is not None:
            self.client.will_set(*will)
        if user is not None:
            self.client.username_pw_set(user, user)
        self.client.on_message = self._on_message
        self.client.on_connect = self._on_connect
        self.client.on_publish = self._on_publish
        self.client.on_subscribe = self._on_subscribe
        started: dict[str, Any] = {}
        if self._is_5:
            properties = Properties(PacketTypes.CONNECT)
            if not clean:
                properties.SessionExpiryInterval = 600
            if receive_maximum is not None:
                properties.ReceiveMaximum = receive_maximum
            started = {"clean_start": clean, "properties": properties}
        self.client.connect("127.0.0.1", port, keepalive=20, **started)
        self.client.loop_start()

    def _on_message(self, client: Any, data: Any, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def _on_connect(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            if reason.is_failure:
                self.refused.append(str(reason))
            else:
                self.session_present.append(flags.session_present)
            self._changed.notify_all()

    def _on_subscribe(self, client: Any, data: Any, packet_id: int, reasons: Any, properties: Any) -> None:
        with self._changed:
            self._answers.add(packet_id)
            self._changed.notify_all()

    def _on_publish(self, client: Any, data: Any, packet_id: int, reason: Any, properties: Any) -> None:
        with self._changed:
            self.published.add(packet_id)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float = LONG_SECONDS) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def connected(self) -> Paho:
        assert self.wait(lambda: bool(self.session_present or self.refused))
        assert not self.refused
        return self

    def subscribe(self, topic_filter: str, qos: int = 0, *, terms: str | None = None) -> Paho:
        properties = None
        if terms is not None:
            properties = Properties(PacketTypes.SUBSCRIBE)
            properties.UserProperty = ("triage", terms)
        _, packet_id = self.client.subscribe(topic_filter, qos, properties=properties)
        assert self.wait(lambda: packet_id in self._answers)
        return self

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        info = self.client.publish(topic, payload, qos, retain)
        info.wait_for_publish(LONG_SECONDS)
        assert info.is_published()

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    def take(self, count: int, seconds: float = LONG_SECONDS) -> list[bytes]:
        """The payloads when there are so many."""
        assert self.wait(lambda: len(self.messages) >= count, seconds), f"{len(self.messages)} of {count}"
        return self.payloads

    def cut(self) -> None:
        """The connection breaks, without a DISCONNECT."""
        found = self.client.socket()
        assert found is not None
        found.shutdown(2)

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def until(condition: Callable[[], bool], seconds: float = LONG_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
