"""Waits until links carry frames: the kernel notices some time after the call that both ends are up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from triagemq.errors import NetworkError
from triagemq.network.linux.netlink import GET_LINK, LINK_MESSAGE, Netlink, attributes

__all__ = ["await_links"]

MOST_SECONDS = 30.0
OPERATION, INFORMATION, MEMBER_DATA, MEMBER_STATE = 16, 18, 5, 1
UP, FORWARDING = 6, 3


def await_links(namespace: str, members: Mapping[int, str], others: Mapping[int, str]) -> None:
    """Until bridges forward to their members, and the other interfaces are up; each by its number with its name."""
    deadline = time.monotonic() + MOST_SECONDS
    with closing(Netlink(namespace)) as netlink:
        while True:
            up, forwarding = _states(netlink)
            slow = [name for index, name in members.items() if index not in up & forwarding]
            slow += [name for index, name in others.items() if index not in up]
            if not slow:
                return
            if time.monotonic() > deadline:
                raise NetworkError(f"the link of {slow[0]} did not come up in {MOST_SECONDS:g} seconds")
            time.sleep(0.005)


def _states(netlink: Netlink) -> tuple[set[int], set[int]]:
    """The interfaces that are up, and those that a bridge forwards to."""
    up, forwarding = set(), set()
    for message, begin, end in netlink.dump(GET_LINK, LINK_MESSAGE.pack(0, 0, 0, 0, 0)):
        _, _, index, _, _ = LINK_MESSAGE.unpack_from(message, begin)
        for kind, first, last in attributes(message, begin + LINK_MESSAGE.size, end):
            if kind == OPERATION and message[first] == UP:
                up.add(index)
            elif kind == INFORMATION and _member_state(message, first, last) == FORWARDING:
                forwarding.add(index)
    return up, forwarding


def _member_state(message: bytes, begin: int, end: int) -> int | None:
    for kind, first, last in attributes(message, begin, end):
        if kind == MEMBER_DATA:
            for inner, value, _ in attributes(message, first, last):
                if inner == MEMBER_STATE:
                    return message[value]
    return None
