"""Overview: what is captured, how full the ports are, what each class gets, and what was decided last."""

from __future__ import annotations

from triagemq.page.frame import Frame, update
from triagemq.page.rendering import render

_SHOWN_DECISIONS = 12


async def show(frame: Frame) -> None:
    """Panels that are written anew every second."""
    readings = frame.context.readings
    panels = {
        name: frame.panel("panel" if name not in ("cards", "starved") else "")
        for name in ("cards", "starved", "ports", "classes", "decisions")
    }

    def refresh() -> None:
        now = readings.latest
        for name, panel in panels.items():
            update(
                panel,
                render(
                    f"overview_{name}.html",
                    now=now,
                    readings=readings,
                    decisions=[] if now is None else now.decisions[: -_SHOWN_DECISIONS - 1 : -1],
                ),
            )

    frame.every_second(refresh)
