"""The fixture of every test with real switches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network.openflow.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    try:
        yield made
    finally:
        made.close()
