"""Whether this machine can have a network in a box: asked before anything is made, answered in one line."""

from __future__ import annotations

from triagemq.errors import NetworkError
from triagemq.network.linux.capabilities import problem_of
from triagemq.network.linux.namespaces import CLONE_NEWNET, in_thread_after, unshare
from triagemq.network.openflow import require_open_vswitch

__all__ = ["require_machine"]


def require_machine(dataplane: str) -> None:
    """NetworkError, with what to do, if something is missing."""
    problem = problem_of(lambda: in_thread_after(lambda: unshare(CLONE_NEWNET), lambda: None))
    if problem is not None:
        raise NetworkError(
            f"a network in a box needs root (making a namespace: {problem}); "
            "run it with sudo, or run the scenario without a box: triage up FILE"
        )
    if dataplane == "openflow":
        require_open_vswitch()
