"""The embedded data plane passes the contract suite, in virtual time and with real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.network.bench import Bench, LoopbackBench, VirtualBench
from tests.network.contract import DataPlaneContract


def opened(make: Callable[[int], Bench]) -> Iterator[Callable[[int], Bench]]:
    benches: list[Bench] = []

    def open_one(flows: int) -> Bench:
        benches.append(make(flows))
        return benches[-1]

    yield open_one
    for bench in benches:
        bench.close()


class TestInVirtualTime(DataPlaneContract):
    has_widths = False

    @pytest.fixture
    def open_bench(self) -> Iterator[Callable[[int], Bench]]:
        yield from opened(VirtualBench)


class TestOnLoopback(DataPlaneContract):
    has_widths = False

    @pytest.fixture
    def open_bench(self) -> Iterator[Callable[[int], Bench]]:
        yield from opened(LoopbackBench)
