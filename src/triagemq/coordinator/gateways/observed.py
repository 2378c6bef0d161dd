"""Clients that no REST call has announced, as all gateways see them, as subscribers that can be planned for."""

from __future__ import annotations

from collections.abc import Collection

from triagemq.channel.messages import ObservedChange, ObservedClient
from triagemq.channel.orders import subscriber_of
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.policy.claims import observed_intent
from triagemq.intents import SUBSCRIBER


class ObservedSubscribers:
    """By gateway and client. A client at several gateways is moving: its filters are those at all of them.

    >>> observed = ObservedSubscribers()
    >>> panel = ObservedClient("panel-1", "192.0.2.7", "", {"hall/#": ""})
    >>> observed.follow("north", ObservedChange({"panel-1": panel}, whole=True))
    >>> observed.take_changed(), [*observed.records()], [*observed.names_at("north")]
    (True, [('subscriber', 'panel-1')], ['panel-1'])
    >>> observed.forget("north")
    >>> observed.take_changed(), observed.records()
    (True, {})
    """

    def __init__(self) -> None:
        # By subscriber's name, gateway and client id.
        self._clients: dict[str, dict[tuple[str, str], ObservedClient]] = {}
        self._names: dict[str, dict[str, str]] = {}
        self._records: dict[Key, Record] = {}
        self._changed = False

    def follow(self, gateway: str, change: ObservedChange) -> None:
        """What a gateway reports."""
        names = self._names.setdefault(gateway, {})
        gone = [each for each in names if change.whole and each not in change.clients]
        for client_id in gone:
            self._put(gateway, client_id, None)
        for client_id, client in change.clients.items():
            self._put(gateway, client_id, client)

    def forget(self, gateway: str) -> None:
        """A gateway is gone, with its clients."""
        self.follow(gateway, ObservedChange(whole=True))
        del self._names[gateway]

    def names_at(self, gateway: str) -> Collection[str]:
        """The subscribers that a gateway serves."""
        return self._names.get(gateway, {}).values()

    def records(self) -> dict[Key, Record]:
        """All of them, by the names that orders have for them."""
        return self._records

    def take_changed(self) -> bool:
        """Has anything changed since this was called last?"""
        changed, self._changed = self._changed, False
        return changed

    def _put(self, gateway: str, client_id: str, client: ObservedClient | None) -> None:
        name = subscriber_of(client_id)[0]
        several = self._clients.setdefault(name, {})
        if client is None:
            several.pop((gateway, client_id), None)
            self._names[gateway].pop(client_id, None)
        else:
            several[gateway, client_id] = client
            self._names[gateway][client_id] = name
        before = self._records.pop((SUBSCRIBER, name), None)
        if not several:
            del self._clients[name]
        elif (record := _record(name, tuple(several.values()))) is not None:
            # The same object while nothing is different: it is planned for as it was.
            self._records[SUBSCRIBER, name] = before if before == record and before is not None else record
        self._changed |= self._records.get((SUBSCRIBER, name)) is not before


def _record(name: str, clients: tuple[ObservedClient, ...]) -> Record | None:
    subscriptions: dict[str, str] = {}
    for each in clients:
        subscriptions |= each.subscriptions
    intent, latest = observed_intent(name, subscriptions), clients[-1]
    return None if intent is None else Record(intent, "", "", latest.address, latest.user)
