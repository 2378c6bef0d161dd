"""What a rig is to be: the scenario, its data plane, and where everything is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triagemq.errors import ParameterError
from triagemq.live.up.exchange import EMBEDDED_CLASSES, KERNEL_CLASSES

__all__ = ["DATA_PLANES", "RigOptions", "check_data_plane"]

DATA_PLANES = ("linux", "openflow", "embedded")


def check_data_plane(name: str) -> None:
    """ParameterError if there is none of that name."""
    if name not in DATA_PLANES:
        raise ParameterError("dataplane", f"is {name!r}; it is one of {', '.join(DATA_PLANES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RigOptions:
    """`file` is the scenario as a file, for the processes that read it; `state` is where they keep what they know.

    `replay` is a Trace whose publications are sent instead of random ones.
    """

    file: Path
    state: Path
    dataplane: str = "linux"
    no_triage: bool = False
    seed: int = 0
    planner: Mapping[str, Any] = field(default_factory=dict)
    replay: Path | None = None

    def __post_init__(self) -> None:
        check_data_plane(self.dataplane)
        if self.state.is_dir() and any(self.state.iterdir()):
            raise ParameterError("state", f"{self.state} is not empty; give another directory")

    @property
    def classes(self) -> int:
        """What the data plane has."""
        return EMBEDDED_CLASSES if self.dataplane == "embedded" else KERNEL_CLASSES
