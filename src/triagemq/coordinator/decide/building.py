"""Orders from columns: what has not changed is shared with the orders before, so that a small change costs little."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from triagemq.coordinator.decide.orders import FlowOrder, Orders, client_id_of
from triagemq.coordinator.decide.slots import Earlier, SlotTable
from triagemq.plan import SetPort
from triagemq.scenario import Integers, Scenario

__all__ = ["build_orders", "set_ports"]


def set_ports(scenario: Scenario, classes: int, paced_bps: Mapping[str, float]) -> dict[str, SetPort]:
    """The scenario's ports, each with the classes that the data plane keeps apart.

    The number is that of the settings and not of the classes in use: a port is not changed when a plan uses one fewer.
    `paced_bps` is how fast ports send that are planned with another bandwidth.
    """
    ports = scenario.ports
    return {
        name: SetPort(name, paced_bps.get(name, bandwidth_bps), buffer_packets, classes)
        for name, bandwidth_bps, buffer_packets in zip(
            ports.name, ports.bandwidth_bps.tolist(), ports.buffer_packets.tolist(), strict=True
        )
    }


def build_orders(ports: dict[str, SetPort], table: SlotTable, was: Earlier, before: Orders) -> Orders:
    """The orders of a table, one generation after `before`; mappings of subscribers that keep theirs are the same."""
    slots = dict(before.slots)
    for name in before.slots.keys() - set(table.subscribers):
        del slots[name]
    bounds = np.searchsorted(table.subscriber, np.arange(len(table.subscribers) + 1)).tolist()
    for subscriber in _moved(table, was, before).tolist():
        rows = slice(bounds[subscriber], bounds[subscriber + 1])
        names = [table.topics[topic] for topic in table.topic[rows].tolist()]
        slots[table.subscribers[subscriber]] = dict(zip(names, table.topic_slot[rows].tolist(), strict=True))
    return Orders(before.generation + 1, ports, _flows(table, was, before), slots)


def _moved(table: SlotTable, was: Earlier, before: Orders) -> Integers:
    """Subscribers of which a topic is new, gone, or on another slot, and those without any mapping yet."""
    moved = np.zeros(len(table.subscribers), dtype=bool)
    moved[table.subscriber[was.topic_slot != table.topic_slot]] = True
    moved[was.gone_topics_of] = True
    if len(before.slots) != len(table.subscribers) or not before.slots.keys() >= set(table.subscribers):
        moved |= np.array([name not in before.slots for name in table.subscribers], dtype=bool)
    return np.flatnonzero(moved).astype(np.int32)


def _flows(table: SlotTable, was: Earlier, before: Orders) -> dict[str, FlowOrder]:
    """All flows, those that are as before taken over."""
    cell = (table.flow_subscriber, table.flow_slot)
    same = (
        (was.flow_class[cell] == table.flow_class)
        & (was.flow_port[cell] == table.flow_port)
        & (was.flow_number[cell] == table.flow_number)
        & (was.flow_drop[cell] == table.flow_drop)
    )
    left = was.flow_class >= 0
    left[cell] = False
    flows = dict(before.flows)
    for name in before.slots.keys() - set(table.subscribers):
        for slot in range(was.flow_class.shape[1]):
            flows.pop(client_id_of(name, slot), None)
    for subscriber, slot in zip(*(places.tolist() for places in np.nonzero(left)), strict=True):
        flows.pop(client_id_of(table.subscribers[subscriber], slot), None)
    changed = np.flatnonzero(~same)
    for subscriber, slot, port, number, priority_class, drop_rate in zip(
        table.flow_subscriber[changed].tolist(),
        table.flow_slot[changed].tolist(),
        table.flow_port[changed].tolist(),
        table.flow_number[changed].tolist(),
        table.flow_class[changed].tolist(),
        table.flow_drop[changed].tolist(),
        strict=True,
    ):
        flows[client_id_of(table.subscribers[subscriber], slot)] = FlowOrder(
            table.ports[port], number, priority_class, drop_rate
        )
    return flows
