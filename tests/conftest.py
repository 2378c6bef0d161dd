"""What holds for the whole suite: what needs root is skipped without it, and on CI no test may be skipped.

A skipped test proves nothing: an ordinary user is told at the end what was not tried and why, and with CI=true
an attempt to skip, of a test or of a whole file, is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

# How long one example takes tells about the machine and what else it does, not about what is tested.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

ON_CI = os.environ.get("CI") == "true"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needs_root = item.get_closest_marker("needs_root")
    if needs_root is not None and os.geteuid() != 0:
        pytest.skip(f"needs root: {needs_root.args[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _no_skip_on_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _no_skip_on_ci((yield))


def _no_skip_on_ci(report: Any) -> Any:
    if ON_CI and report.skipped and not hasattr(report, "wasxfail"):
        *_, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"with CI=true nothing may be skipped. {reason}"
    return report
