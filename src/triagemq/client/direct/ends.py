"""What both ends of a direct topic have in common: its name and type, where it is, how they are opened and closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from triagemq.client.direct.multicast import GroupAddress, NetworkSettings
from triagemq.client.types import TypedTopic
from triagemq.errors import ParameterError
from triagemq.mqttsn import valid_topic_name

_LARGEST_MESSAGE = 16 << 20


class DirectEnd(ABC):
    """`address` None is for this host alone."""

    def __init__(
        self,
        topic: str | TypedTopic[Any],
        address: str | None,
        *,
        max_size_bytes: int | None = None,
        network: NetworkSettings | None = None,
        shared_memory: bool = True,
    ) -> None:
        self._typed = None if isinstance(topic, str) else topic
        self.topic = topic if isinstance(topic, str) else topic.topic
        if not valid_topic_name(self.topic):
            raise ParameterError("topic", f"{self.topic!r} is no topic name")
        if address is None and not shared_memory:
            raise ParameterError("address", "is the only way without shared memory; give GROUP:PORT")
        self._address = None if address is None else GroupAddress.parse(address)
        self._network = network or NetworkSettings()
        self._shares = shared_memory
        self.max_size_bytes = self._size_limit(max_size_bytes)

    def _size_limit(self, given: int | None) -> int:
        """The largest message: that of the type, or as declared."""
        if given is None:
            if self._typed is None:
                raise ParameterError("max_size_bytes", "must be declared for a topic without a type")
            return max(1, self._typed.largest_size_bytes)
        if not 1 <= given <= _LARGEST_MESSAGE:
            raise ParameterError("max_size_bytes", f"must be from 1 to {_LARGEST_MESSAGE}, is {given}")
        return given

    @property
    def _meets_at(self) -> str:
        """What ends on one host have in common beside the topic."""
        return "" if self._address is None else str(self._address)

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class AsyncEnd(DirectEnd):
    """For asyncio."""

    async def open(self) -> None:
        """Take the sockets, meet those on this host."""
        self._open()

    async def close(self) -> None:
        """Idempotent."""
        self._close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class BlockingEnd(DirectEnd):
    """Opened when it is made, closed by `close` or the end of `with`."""

    def close(self) -> None:
        """Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
