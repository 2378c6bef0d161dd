"""Links that lose packets at random: an eBPF program where a link's packets arrive, which lets a share of them go.

A packet is lost when it has crossed the link: it has taken its bandwidth, and nobody behind the link sees it. What is
lost are packets, whatever they carry, and each by a draw of its own. The share is a number in memory that the program
reads, so that it changes at once and without a word to the kernel. It all goes with the namespaces.
"""

from __future__ import annotations

import math
import os
import struct
from contextlib import closing

from triagemq.network.emulated.layout import End
from triagemq.network.linux.assembler import Assembler
from triagemq.network.linux.bpf import ArrayMap, load_program
from triagemq.network.linux.netlink import Netlink
from triagemq.network.linux.queues import attach_at_arrival

__all__ = ["Losses", "together"]

_RANDOM = 7
_PASS, _DROP = 0, 2
_SHARE = struct.Struct("=Q")


def together(*error_rates: float) -> float:
    """The share lost on a way of several links, each of which loses its own.

    >>> together(0.5, 0.2)
    0.6
    """
    return 1 - math.prod(1 - each for each in error_rates)


class Losses:
    """By the end of a link at which packets arrive, the share of them that is lost there."""

    def __init__(self) -> None:
        self._shares: dict[End, ArrayMap] = {}

    def set(self, end: End, share: float) -> None:
        """Lose this share from now on. Nothing is attached to a link that has never lost anything."""
        if end not in self._shares:
            if share <= 0:
                return
            self._shares[end] = _attach(end)
        _SHARE.pack_into(self._shares[end].memory, 0, min(1 << 32, round(share * (1 << 32))))

    def close(self) -> None:
        """Forget the shares; the kernel forgets them with the interfaces."""
        while self._shares:
            self._shares.popitem()[1].close()


def _attach(end: End) -> ArrayMap:
    share = ArrayMap(_SHARE.size, 1)
    try:
        program = load_program(_program(share.file))
        try:
            with closing(Netlink(end.namespace)) as netlink:
                attach_at_arrival(netlink, end.index, program)
        finally:
            os.close(program)
    except BaseException:
        share.close()
        raise
    return share


def _program(share: int) -> bytes:
    a = Assembler()
    a.call(_RANDOM)
    # The helper's number has 32 bits, the rest of the register is not promised.
    a.compute(0, "<<", 32)
    a.compute(0, ">>", 32)
    a.load_value(1, share)
    a.load(8, 1, 1, 0)
    a.jump_if_by(0, "<", 1, "lost")
    a.set(0, _PASS)
    a.exit()
    a.label("lost")
    a.set(0, _DROP)
    a.exit()
    return a.program()
