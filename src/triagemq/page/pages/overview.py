"""Overview: utility, ports, classes and the latest decisions; and promises, admitted with their bounds, or refused."""

from __future__ import annotations

from triagemq.page.frame import Frame, update
from triagemq.page.rendering import render

_SHOWN_DECISIONS = 12
_MOST_ROWS = 200


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


async def show_promises(frame: Frame) -> None:
    """Two tables."""
    frame.panel("", render("promises_head.html"))
    panel = frame.panel("")

    def refresh() -> None:
        promises = frame.context.coordinator.promises()
        admitted = [each for each in promises if each.admitted]
        refused = [each for each in promises if not each.admitted]
        update(
            panel,
            render(
                "promises.html",
                admitted=admitted[:_MOST_ROWS],
                refused=refused[:_MOST_ROWS],
                more=max(len(admitted) - _MOST_ROWS, 0) + max(len(refused) - _MOST_ROWS, 0),
            ),
        )

    frame.every_second(refresh)
