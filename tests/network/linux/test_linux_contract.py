"""The linux data plane passes the contract suite, with real packets between network namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.network.bench import Bench
from tests.network.contract import LimiterContract
from tests.network.linux.kernel_bench import KernelBench

pytestmark = pytest.mark.needs_root("it changes queues of the kernel")


class TestInTheKernel(LimiterContract):
    follows_flows = False
    served_share = 0.95

    @pytest.fixture
    def open_bench(self, tmp_path: Path) -> Iterator[Callable[[int], Bench]]:
        benches: list[Bench] = []

        def open_one(flows: int) -> Bench:
            benches.append(KernelBench(flows, tmp_path))
            return benches[-1]

        yield open_one
        for bench in benches:
            bench.close()
