"""What all pages share: the coordinator, who looks, what is read, and what was begun for it."""

from __future__ import annotations

import asyncio

from triagemq.coordinator.coordinator import Coordinator
from triagemq.coordinator.settings import Settings
from triagemq.dashboard.guests import Guests
from triagemq.dashboard.readings import Readings
from triagemq.dashboard.values import LatestValues
from triagemq.dashboard.visitors import Visitors


class Desk:
    """Made when somebody first asks for a page; `began` is that moment of the monotonic clock."""

    def __init__(self, here: Coordinator, settings: Settings, began: float) -> None:
        self.here = here
        self.settings = settings
        self.visitors = Visitors(here.service)
        self.readings = Readings(here, began)
        self.values = LatestValues()
        self.guests = Guests(settings)

    @property
    def brokers(self) -> list[str]:
        """URLs of all brokers of which the passwords are known."""
        joined = [each.broker for each in self.here.runtime.gateways if each.broker]
        own = self.settings.page_broker or self.settings.broker
        return [*dict.fromkeys([*([own] if own else []), *joined])]

    async def close(self) -> None:
        await asyncio.gather(
            self.guests.close(), self.readings.close(), self.values.close(), return_exceptions=True
        )
