"""Publishers that publish more than they declared: their limiters cut it, and that is decided and told once a time."""

from __future__ import annotations

from triagemq.coordinator.channel.messages import Measured
from triagemq.coordinator.decide.orders import Promised
from triagemq.plan import Decision

QUIET_MEASUREMENTS = 10
"""After so many measurements in which nothing was cut it is news again."""


class Babbling:
    """Takes two measurements, one after the other, and gives decisions about publications that are newly cut."""

    def __init__(self) -> None:
        self._quiet: dict[str, int] = {}

    def news(self, before: Measured, now: Measured, promised: Promised) -> list[Decision]:
        """What was cut between the measurements and is not known to be."""
        found = []
        for name, key in promised.addresses.items():
            flow = now.flows.get(str(key))
            earlier = before.flows.get(str(key)) if before.epoch == now.epoch else None
            cut = 0 if flow is None else flow.limited - (0 if earlier is None else earlier.limited)
            if cut <= 0:
                if name in self._quiet:
                    self._quiet[name] += 1
                    if self._quiet[name] >= QUIET_MEASUREMENTS:
                        del self._quiet[name]
                continue
            if name not in self._quiet:
                words = "it publishes larger messages or more often than it declared; nobody else is touched"
                found.append(Decision("limited", name, "as declared", f"{cut} packets cut", words))
            self._quiet[name] = 0
        return found
