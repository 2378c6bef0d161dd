"""Assertions of the contract suite explain themselves like those of a test module."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.network.contract")
