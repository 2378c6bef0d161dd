"""What holds for the whole suite: what needs root is skipped without it, on CI no test may be skipped, who goes first.

A skipped test proves nothing: an ordinary user is told at the end what was not tried and why, and with CI=true
an attempt to skip, of a test or of a whole file, is a failure.

Tests of processes and networks mostly wait, and measure time: those that compute run beside them and give way.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

# How long one example takes tells about the machine and what else it does, not about what is tested.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Who starts the suite in the background of a script ignores Ctrl-C, and so would all that the tests press it for.
signal.signal(signal.SIGINT, signal.default_int_handler)

ON_CI = os.environ.get("CI") == "true"

ONE_SPARK = "tests/pipeline/"
COMPUTING = (
    ONE_SPARK,
    *(
        f"tests/{name}/"
        for name in ("delay", "docs", "forecast", "lab/papers", "plan", "scenario", "simulate", "theory")
    ),
)
PRIORITY, LOWER_PRIORITY = os.getpriority(os.PRIO_PROCESS, 0), 10

MACHINE_BACKLOG = Path("/proc/sys/net/core/netdev_max_backlog")
"""How many packets may wait on a processor on their way from one end of a wire between namespaces to the other. All
namespaces share it: a test that overloads its own wires would lose the packets of the test beside it."""
ENOUGH_FOR_ALL_PACKETS = 100_000
backlog_before = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    if os.geteuid() == 0 and not hasattr(config, "workerinput") and os.access(MACHINE_BACKLOG, os.W_OK):
        found = MACHINE_BACKLOG.read_text()
        if int(found) < ENOUGH_FOR_ALL_PACKETS:
            config.stash[backlog_before] = found
            MACHINE_BACKLOG.write_text(str(ENOUGH_FOR_ALL_PACKETS))


def pytest_unconfigure(config: pytest.Config) -> None:
    if backlog_before in config.stash:
        MACHINE_BACKLOG.write_text(config.stash[backlog_before])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # All workers import everything, and begin at the same moment: what the first compiles serves the others.
    with Path(__file__).open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(held, fcntl.LOCK_SH)
        # What is imported stays: the garbage collector need not go through it again and again, now or later.
        gc.disable()
        collected = yield
        gc.freeze()
        gc.enable()
        return collected


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needs_root = item.get_closest_marker("needs_root")
    if needs_root is not None and os.geteuid() != 0:
        pytest.skip(f"needs root: {needs_root.args[0]}; run `make test` as root")


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    from tests.sharing import OneComputes

    return OneComputes(config, log, COMPUTING, ONE_SPARK)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    # Only root may take a higher priority again.
    if os.geteuid() == 0:
        computes = item.nodeid.startswith(COMPUTING)
        os.setpriority(os.PRIO_PROCESS, 0, min(19, PRIORITY + LOWER_PRIORITY) if computes else PRIORITY)
    return (yield)
