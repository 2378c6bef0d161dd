"""Publishers that publish more than they declared, and strangers that send to the address of a promise.

Limiters cut the one, switches and queues set the other aside. Either is a decision, and told once a time.
"""

from __future__ import annotations

from triagemq.coordinator.channel.messages import Measured
from triagemq.coordinator.decide.orders import Promised
from triagemq.plan import Decision, FlowCounters

QUIET_MEASUREMENTS = 10
"""After so many measurements in which nothing was cut it is news again."""


class Babbling:
    """Takes two measurements, one after the other, and gives decisions about publications that are newly cut."""

    def __init__(self) -> None:
        self._quiet: dict[tuple[str, str], int] = {}

    def news(self, before: Measured, now: Measured, promised: Promised) -> list[Decision]:
        """What was cut or foreign between the measurements and is not known to be."""
        found: list[Decision] = []
        if before.epoch != now.epoch:
            # A gateway has come, gone or begun anew: what differs was not counted in this second.
            return found
        self._quiet = {each: count for each, count in self._quiet.items() if each[1] in promised.addresses}
        for name, key in promised.addresses.items():
            none = FlowCounters(0)
            flow = now.flows.get(str(key), none)
            earlier = before.flows.get(str(key), none)
            cut, foreign = flow.limited - earlier.limited, flow.foreign - earlier.foreign
            if self._is_news("limited", name, cut):
                words = "it publishes larger messages or more often than it declared; nobody else is touched"
                found.append(Decision("limited", name, "as declared", f"{cut} packets cut", words))
            if self._is_news("foreign", name, foreign):
                words = (
                    f"another host sends to {key}; its packets go last or nowhere, and the promise is kept"
                )
                found.append(Decision("foreign", name, "", f"{foreign} packets of others", words))
        return found

    def _is_news(self, kind: str, name: str, packets: int) -> bool:
        quiet = self._quiet.get((kind, name))
        if packets > 0:
            self._quiet[kind, name] = 0
        elif quiet is not None:
            self._quiet[kind, name] = quiet + 1
            if quiet + 1 >= QUIET_MEASUREMENTS:
                del self._quiet[kind, name]
        return packets > 0 and quiet is None
