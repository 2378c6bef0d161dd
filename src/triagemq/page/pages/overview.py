"""Overview: utility, ports, classes and the latest decisions; and promises, admitted with their bounds, or refused."""

from __future__ import annotations

from triagemq.page.frame import Frame, TemplatePanel

_SHOWN_DECISIONS = 12
_MOST_ROWS = 200


async def show(frame: Frame) -> None:
    """Panels that are written anew every second."""
    readings = frame.context.readings
    panels = [TemplatePanel("overview_cards.html", ""), TemplatePanel("overview_starved.html", "")]
    panels += [TemplatePanel(f"overview_{name}.html") for name in ("ports", "classes", "decisions")]

    def refresh() -> None:
        now = readings.latest
        decisions = [] if now is None else now.decisions[: -_SHOWN_DECISIONS - 1 : -1]
        for panel in panels:
            panel.show(now=now, readings=readings, decisions=decisions)

    frame.every_second(refresh)


async def show_promises(frame: Frame) -> None:
    """Two tables."""
    TemplatePanel("promises_head.html", "").show()
    panel = TemplatePanel("promises.html", "")

    def refresh() -> None:
        promises = frame.context.coordinator.promises()
        admitted = [each for each in promises if each.admitted]
        refused = [each for each in promises if not each.admitted]
        panel.show(
            admitted=admitted[:_MOST_ROWS],
            refused=refused[:_MOST_ROWS],
            more=max(len(admitted) - _MOST_ROWS, 0) + max(len(refused) - _MOST_ROWS, 0),
        )

    frame.every_second(refresh)
