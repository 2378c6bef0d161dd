"""What a session has sent and a switch has not finished: questions, by their answers; orders, by the next barrier."""

from __future__ import annotations

import asyncio
from typing import Any

from triagemq.errors import SessionClosedError, SwitchError
from triagemq.network.openflow.decoding import NonsenseError

__all__ = ["Transactions"]

_MOST_MULTIPART_BYTES = 64 << 20
_PART_HEADER_BYTES = 16
_FLAGS_PLACE, _MORE_FOLLOWS = 11, 1


class Transactions:
    """Each has a number, and a name for whoever reads that it failed. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._last = 0
        self._questions: dict[int, asyncio.Future[bytes]] = {}
        self._parts: dict[int, tuple[list[bytes], asyncio.Future[list[bytes]]]] = {}
        self._names: dict[int, str] = {}
        self._orders: dict[int, str] = {}
        self._refused: list[tuple[int, str]] = []

    def next(self) -> int:
        """A number for a message that nobody waits for."""
        self._last = self._last % 0xFFFFFFFF + 1
        return self._last

    # Questions.

    def ask(self, what: str) -> tuple[int, asyncio.Future[bytes]]:
        """A question with one message for an answer; `forget` it in the end."""
        number = self.next()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._questions[number], self._names[number] = future, what
        return number, future

    def ask_for_parts(self, what: str) -> tuple[int, asyncio.Future[list[bytes]]]:
        """A question for statistics, of which the bodies of all parts are the answer; `forget` it in the end."""
        number = self.next()
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._parts[number], self._names[number] = ([], future), what
        return number, future

    def forget(self, number: int) -> None:
        """Answered, or nobody waits for the answer any more."""
        self._questions.pop(number, None)
        self._parts.pop(number, None)
        self._names.pop(number, None)

    def answer(self, number: int, message: bytes) -> bool:
        """A message has come; whether it answers a question."""
        future = self._questions.pop(number, None)
        if future is not None and not future.done():
            future.set_result(message)
        return future is not None

    def answer_part(self, number: int, message: bytes) -> bool:
        """A part of statistics has come; whether anybody asked."""
        if len(message) < _PART_HEADER_BYTES:
            raise NonsenseError("statistics without a header")
        if number not in self._parts:
            return False
        bodies, future = self._parts[number]
        bodies.append(message[_PART_HEADER_BYTES:])
        if sum(map(len, bodies)) > _MOST_MULTIPART_BYTES:
            raise NonsenseError("statistics without an end")
        if not message[_FLAGS_PLACE] & _MORE_FOLLOWS and not future.done():
            future.set_result(bodies)
        return True

    # Orders.

    def order(self, what: str) -> int:
        """An order: a switch that follows it says nothing."""
        number = self.next()
        self._orders[number] = what
        return number

    def unfinished_orders(self) -> set[int]:
        """Those that the next barrier ends."""
        return set(self._orders)

    def finish_orders(self, numbers: set[int]) -> tuple[str, ...]:
        """A barrier has been passed: what the switch refused of these, in words."""
        for number in numbers:
            self._orders.pop(number, None)
        refused = tuple(text for number, text in self._refused if number in numbers)
        self._refused = [each for each in self._refused if each[0] not in numbers]
        return refused

    # What goes wrong.

    def refuse(self, number: int, switch: str, why: str) -> bool:
        """The switch refuses; whether that is about anything here. Whoever asked is told now, the rest by a barrier."""
        name = self._names.get(number) or self._orders.get(number)
        if name is None:
            return False
        refusal = f"{name} ({why})"
        future: asyncio.Future[Any] | None = self._questions.pop(number, None)
        if future is None and number in self._parts:
            future = self._parts[number][1]
        if future is None:
            self._refused.append((number, refusal))
        elif not future.done():
            future.set_exception(SwitchError(switch, (refusal,)))
        return True

    def end(self, why: str) -> None:
        """No answer will come any more."""
        waiting: list[asyncio.Future[Any]] = [*self._questions.values()]
        waiting += [future for _, future in self._parts.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(SessionClosedError(why))
                future.exception()  # Whoever waited may have gone.
