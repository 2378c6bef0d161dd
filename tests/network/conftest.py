"""What tests of the network share: assertions of the contract suite that explain themselves, and real switches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network.openflow.lab import Lab

pytest.register_assert_rewrite("tests.network.contract")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    try:
        yield made
    finally:
        made.close()
