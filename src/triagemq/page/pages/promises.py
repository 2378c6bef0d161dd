"""Promises: what is admitted, with its bound and what is to spare; what is refused, and what could be had instead."""

from __future__ import annotations

from triagemq.page.frame import Frame, update
from triagemq.page.rendering import render

_MOST_ROWS = 200


async def show(frame: Frame) -> None:
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
