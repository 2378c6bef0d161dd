"""What a plan changes, worked out once, from columns: orders, reasons and whoever waits for news read it here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.decide.orders import Orders, OrdersChange, client_id_of
from triagemq.coordinator.decide.slots import Earlier, SlotTable
from triagemq.plan import SetFlow, SetPort

LEAST_DROP_CHANGE = 0.005
"""Drop rates that would change by less than this, with all else as before, are left alone: hysteresis."""


class TableChange:
    """A table beside what was there earlier."""

    def __init__(self, table: SlotTable, was: Earlier) -> None:
        self.table = table
        self.was = was
        cell = (table.flow_subscriber, table.flow_slot)
        self._reclassed: NDArray[np.bool_] = was.flow_class[cell] != table.flow_class
        self._rerouted: NDArray[np.bool_] = self._reclassed | (was.flow_port[cell] != table.flow_port)
        self._drop_step = np.abs(was.flow_drop[cell] - table.flow_drop)  # NaN where there was no flow
        left = was.flow_class >= 0
        left[cell] = False
        self._left_subscriber, self._left_slot = np.nonzero(left)
        # Subscribers of which a topic is new, gone, or on another slot, and those who are new.
        self._moved = was.is_new.copy()
        self._moved[table.subscriber[was.topic_slot != table.topic_slot]] = True
        self._moved[was.gone_topics_of] = True

    @property
    def is_next_to_nothing(self) -> bool:
        """Whether nothing but drop rates changes, and those by next to nothing."""
        return (
            not self.was.gone
            and not self._moved.any()
            and not len(self._left_slot)
            and not self._rerouted.any()
            and bool((self._drop_step < LEAST_DROP_CHANGE).all())
        )

    def for_whom(self) -> list[str]:
        """The subscribers whose topics or classes change.

        Drop rates do not count: with every client that comes or goes, everyone's may change a little, and nobody has to
        do anything about it.
        """
        concerned = self._moved.copy()
        concerned[self.table.flow_subscriber[self._reclassed]] = True
        concerned[self._left_subscriber] = True
        return [self.table.subscribers[row] for row in np.flatnonzero(concerned).tolist()]

    def orders(self, before: Orders, ports: Mapping[str, SetPort]) -> OrdersChange:
        """The change that leads to the orders of the table, one generation after `before`."""
        return OrdersChange(before.generation + 1, ports, self._flows(), self._slots())

    def _slots(self) -> dict[str, Mapping[str, int] | None]:
        table = self.table
        slots: dict[str, Mapping[str, int] | None] = dict.fromkeys(self.was.gone)
        bounds = np.searchsorted(table.subscriber, np.arange(len(table.subscribers) + 1)).tolist()
        for subscriber in np.flatnonzero(self._moved).tolist():
            rows = slice(bounds[subscriber], bounds[subscriber + 1])
            slots[table.subscribers[subscriber]] = {
                table.topics[topic]: slot
                for topic, slot in zip(
                    table.topic[rows].tolist(), table.topic_slot[rows].tolist(), strict=True
                )
                if slot >= 0
            }
        return slots

    def _flows(self) -> dict[str, SetFlow[str] | None]:
        table = self.table
        flows: dict[str, SetFlow[str] | None] = dict.fromkeys(self.was.gone_flows)
        for subscriber, slot in zip(self._left_subscriber.tolist(), self._left_slot.tolist(), strict=True):
            flows[client_id_of(table.subscribers[subscriber], slot)] = None
        changed = np.flatnonzero(self._rerouted | ~(self._drop_step == 0))
        for subscriber, slot, port, number, priority_class, drop_rate in zip(
            table.flow_subscriber[changed].tolist(),
            table.flow_slot[changed].tolist(),
            table.flow_port[changed].tolist(),
            table.flow_number[changed].tolist(),
            table.flow_class[changed].tolist(),
            table.flow_drop[changed].tolist(),
            strict=True,
        ):
            client_id = client_id_of(table.subscribers[subscriber], slot)
            flows[client_id] = SetFlow(client_id, table.ports[port], number, priority_class, drop_rate)
        return flows
