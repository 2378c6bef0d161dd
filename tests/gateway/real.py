"""Real brokers, gateways and clients on loopback, for tests that need processes and sockets."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.ports import own_port

from triagemq.broker.process import find_mosquitto
from triagemq.mqtt.packets import (
    PacketStream,
    PacketType,
    encode_connect,
    encode_publish,
    parse_acknowledgement,
)
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Message,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    decode,
    encode,
)

Kind = TypeVar("Kind")
GATEWAY = "import typer; from triagemq.cli.gateway import gateway; typer.run(gateway)"


class Child:
    """A process that this test started, and ends."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, stdin=subprocess.DEVNULL
        )

    def line(self, seconds: float = 20.0) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        assert ready, f"no line within {seconds} s; see {self._log.name}"
        return self.process.stdout.readline().decode().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> str:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            output, _ = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
        self._log.close()
        return output.decode()


class Mosquitto:
    """Mosquitto on a fixed port; `kill` and `start` as often as wanted."""

    def __init__(self, directory: Path, extra: str = "", port: int | None = None) -> None:
        self.port = own_port() if port is None else port
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._configuration = directory / "mosquitto.conf"
        access = "" if "allow_anonymous" in extra else "allow_anonymous true\n"
        listener = "" if "listener" in extra else f"listener {self.port} 127.0.0.1\n"
        self._configuration.write_text(
            f"{listener}{access}user root\nmax_inflight_messages 0\nmax_queued_messages 0\n"
            f"persistence true\npersistence_location {directory}/\nset_tcp_nodelay true\n{extra}"
        )
        self._child: Child | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = find_mosquitto()
        assert command is not None
        self._child = Child([command, "-c", str(self._configuration)], self._directory / "log")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.01)
        raise AssertionError("Mosquitto does not answer")

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.process.pid

    def save(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> None:
        assert self._child is not None
        self._child.kill()

    def end(self) -> None:
        if self._child is not None:
            self._child.end()


class GatewayProcess:
    """`triage gateway` as a process on a fixed port."""

    def __init__(self, directory: Path, *options: str, port: int | None = None) -> None:
        self.port = own_port(kind=socket.SOCK_DGRAM) if port is None else port
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._options = options
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", GATEWAY, "--listen", f"127.0.0.1:{self.port}", "--json"]
        self.child = Child([*command, *self._options], self._directory / "gateway.log")
        self.ready = json.loads(self.child.line())
        assert self.ready["ready"]

    def kill(self) -> None:
        self.child.kill()

    def counters(self) -> dict[str, Any]:
        self.child.process.send_signal(signal.SIGUSR1)
        found: dict[str, Any] = json.loads(self.child.line())
        return found

    def end(self) -> dict[str, Any]:
        output = self.child.end()
        return dict(json.loads(output)["counters"]) if output.strip() else {}


@contextlib.contextmanager
def ended(*things: Any) -> Iterator[None]:
    """Whatever happens, nothing stays behind."""
    try:
        yield
    finally:
        for thing in things:
            thing.end()


class SnClient:
    """A blocking MQTT-SN client that answers what has to be answered."""

    def __init__(self, port: int, client_id: str, *, bind: int = 0) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind(("127.0.0.1", bind))
        self.socket.connect(("127.0.0.1", port))
        self.client_id = client_id
        self.messages: list[Publish] = []
        self.topics: dict[int, str] = {}
        self._message_id = 0

    def end(self) -> None:
        self.socket.close()

    def send(self, message: Message) -> None:
        with contextlib.suppress(ConnectionRefusedError):
            self.socket.send(encode(message))

    def receive(self, seconds: float) -> Message | None:
        """The next message, answered if it needs an answer."""
        self.socket.settimeout(max(seconds, 0.0001))
        try:
            message = decode(self.socket.recv(65535))
        except (TimeoutError, ConnectionRefusedError, BlockingIOError):
            return None
        match message:
            case Publish():
                self.messages.append(message)
                if message.qos == 1:
                    self.send(PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
                elif message.qos == 2:
                    self.send(PubRec(message.message_id))
            case PubRel():
                self.send(PubComp(message.message_id))
            case Register():
                self.topics[message.topic_id] = message.topic_name
                self.send(RegAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
        return message

    def collect(self, seconds: float, count: int = 1 << 60) -> None:
        """Receive until there are `count` messages, or the time is over."""
        deadline = time.monotonic() + seconds
        while len(self.messages) < count and (left := deadline - time.monotonic()) > 0:
            self.receive(left)

    def ask(self, message: Message, kind: type[Kind], *, attempts: int = 10, each: float = 1.0) -> Kind:
        """Send, and wait for an answer of a kind; send again if there is none."""
        for _ in range(attempts):
            self.send(message)
            deadline = time.monotonic() + each
            while (left := deadline - time.monotonic()) > 0:
                answer = self.receive(left)
                if isinstance(answer, kind):
                    return answer
        raise AssertionError(f"no {kind.__name__} for {message}")

    def connect(self, *, clean: bool = False, duration: int = 60) -> SnClient:
        answer = self.ask(Connect(self.client_id, duration, clean_session=clean), ConnAck)
        assert answer.return_code is ReturnCode.ACCEPTED
        return self

    def subscribe(self, topic: str, qos: int = 0) -> SubAck:
        self._message_id += 1
        return self.ask(Subscribe(TopicIdType.NORMAL, topic, self._message_id, qos), SubAck)

    def register(self, topic: str) -> int:
        self._message_id += 1
        return self.ask(Register(0, self._message_id, topic), RegAck).topic_id


class Publisher:
    """A blocking MQTT 3.1.1 publisher that knows which of its messages the broker has acknowledged."""

    def __init__(self, port: int, client_id: str = "publisher", *, user: str | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = PacketStream()
        self._next_packet_id = 1
        self.unanswered: set[int] = set()
        password = None if user is None else user
        self._socket.sendall(
            encode_connect(4, client_id, clean=True, keep_alive_seconds=0, user=user, password=password)
        )
        try:
            assert self._socket.recv(4)[3] == 0
        except BaseException:
            self._socket.close()
            raise

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> int:
        packet_id = self._next_packet_id if qos else 0
        if qos:
            self._next_packet_id = packet_id % 0xFFFF + 1
            self.unanswered.add(packet_id)
        self._socket.sendall(
            encode_publish(4, topic.encode(), payload, qos=qos, retain=retain, packet_id=packet_id)
        )
        return packet_id

    def answers(self, seconds: float) -> list[int]:
        """Packet ids that are acknowledged now; ConnectionError when the broker is gone."""
        self._socket.settimeout(max(seconds, 0.0001))
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            return []
        if not data:
            raise ConnectionResetError
        found = []
        for first, body in self._stream.feed(data):
            if first >> 4 == PacketType.PUBACK:
                found.append(parse_acknowledgement(body)[0])
        self.unanswered.difference_update(found)
        return found

    def wait(self, seconds: float = 30.0) -> None:
        """Until everything is acknowledged."""
        deadline = time.monotonic() + seconds
        while self.unanswered and (left := deadline - time.monotonic()) > 0:
            self.answers(left)
        assert not self.unanswered

    def end(self) -> None:
        self._socket.close()
