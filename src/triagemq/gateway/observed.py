"""Clients that no REST call has announced, as changes that the coordinator asks for, of bounded size."""

from __future__ import annotations

from collections.abc import Mapping

from triagemq.channel.messages import ObservedChange, ObservedClient

MOST_CLIENTS = 20_000
MOST_FILTERS = 500
"""Of one client; those beyond are counted and not planned for, and so are filters beyond `MOST_CHARACTERS`."""

MOST_CHARACTERS = 64_000
_CHARACTERS_AT_ONCE = 4_000_000
"""In one answer; what does not fit comes with the next one."""


class ObservedClients:
    """Clients by id. `put` whenever a client connects or its filters change, `remove` when it is gone.

    >>> observed = ObservedClients()
    >>> observed.put(ObservedClient("panel-1", "192.0.2.7", "panel", {"hall/#": ""}))
    >>> change, step = observed.since(0)
    >>> change.whole, [client.client_id for client in change.clients.values()]
    (True, ['panel-1'])
    >>> observed.remove("panel-1")
    >>> observed.since(step)[0]
    ObservedChange(clients={'panel-1': None}, whole=False)
    """

    def __init__(self) -> None:
        self._clients: dict[str, ObservedClient] = {}
        # The step of each client's last change, the oldest first; clients that are gone are in it, too.
        self._steps: dict[str, int] = {}
        # Step 1 is that of the empty table, and 0 that of a reader who knows nothing.
        self._step = 1
        # A reader of an earlier step gets everything: of some clients it is not known any more that they went since.
        self._complete_since = 1
        self.omitted = 0
        """Clients and filters that were not reported, because there are too many."""

    def put(self, client: ObservedClient) -> None:
        """A client is there, with these filters; one without a filter receives nothing and is not reported."""
        known = self._clients.get(client.client_id)
        subscriptions = self._bounded(client.subscriptions)
        if not subscriptions:
            self.remove(client.client_id)
            return
        if known is None and len(self._clients) >= MOST_CLIENTS:
            self.omitted += 1
            return
        client = ObservedClient(client.client_id, client.address, client.user, subscriptions)
        if client != known:
            self._clients[client.client_id] = client
            self._changed(client.client_id)

    def remove(self, client_id: str) -> None:
        """A client is gone; one that never was is no matter."""
        if self._clients.pop(client_id, None) is not None:
            self._changed(client_id)

    def since(self, step: int) -> tuple[ObservedChange, int]:
        """What has changed after a step (0: everything), and the step to give the next time."""
        whole = not self._complete_since <= step <= self._step
        changed = []
        for client_id, at in reversed(self._steps.items()):
            if not whole and at <= step:
                break
            changed.append((client_id, at))
        found: dict[str, ObservedClient | None] = {}
        characters, reached = 0, self._step
        for client_id, at in reversed(changed):
            client = self._clients.get(client_id)
            if client is None:
                if not whole:
                    found[client_id] = None
                continue
            if characters > _CHARACTERS_AT_ONCE:
                reached = at - 1
                break
            characters += _characters(client.subscriptions)
            found[client_id] = client
        return ObservedChange(found, whole), reached

    def _changed(self, client_id: str) -> None:
        self._step += 1
        self._steps.pop(client_id, None)
        self._steps[client_id] = self._step
        if len(self._steps) > 2 * MOST_CLIENTS:
            self._steps = {one: at for one, at in self._steps.items() if one in self._clients}
            self._complete_since = self._step

    def _bounded(self, subscriptions: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        characters = 0
        for topic_filter, terms in subscriptions.items():
            characters += len(topic_filter) + len(terms)
            if len(found) == MOST_FILTERS or characters > MOST_CHARACTERS:
                break
            found[topic_filter] = terms
        self.omitted += len(subscriptions) - len(found)
        return found


def _characters(subscriptions: Mapping[str, str]) -> int:
    return sum(len(topic_filter) + len(terms) for topic_filter, terms in subscriptions.items())
