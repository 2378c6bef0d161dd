"""The policy of a gateway that a coordinator manages: classes and drops by its orders, rights by its grants.

Without a coordinator priorities take the place of orders, and a source of grants that of grants that are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from triagemq.channel.grants import Grant, Grants
from triagemq.channel.orders import Orders, subscriber_of
from triagemq.gateway.core.messages import Publication
from triagemq.gateway.core.settings import Policy
from triagemq.mqttsn.filters import within
from triagemq.plan.dataplane import Treatment

_MOST_TREATMENTS = 100_000


class GrantSource(Protocol):
    """Grants without a coordinator."""

    def find(self, base: str) -> Grant | None:
        """What the client with this id may do; None for one that is not let in."""

    def look(self) -> bool:
        """Have grants changed?"""


@dataclass(slots=True)
class Rules:
    """What a gateway goes by at this moment. `closed`: no client is let in, because the grants are not known yet.

    A `source` takes the place of the grants where there is no coordinator.
    """

    grants: Grants = field(default_factory=Grants)
    orders: Orders = field(default_factory=Orders)
    closed: bool = False
    source: GrantSource | None = None
    # Treatments found, and the orders and grants that they follow from.
    _treatments: dict[tuple[str, str], Treatment] = field(default_factory=dict, repr=False)
    _looked_up_by: tuple[Orders, Grants] | None = field(default=None, repr=False)

    def treatment(self, client_id: str, topic: str) -> Treatment:
        """How a client's copy of a topic is treated by the orders of now."""
        by = self._looked_up_by
        if (
            by is None
            or by[0] is not self.orders
            or by[1] is not self.grants
            or len(self._treatments) > _MOST_TREATMENTS
        ):
            self._looked_up_by = self.orders, self.grants
            self._treatments = {}
        found = self._treatments.get((client_id, topic))
        if found is None:
            found = self._treatments[client_id, topic] = self.orders.treatment(
                self.identify(client_id)[0], topic
            )
        return found

    def identify(self, client_id: str) -> tuple[str, int]:
        """The name of the subscriber that a client id belongs to, and its slot."""
        base, slot = subscriber_of(client_id)
        grant = self._of_base(base)
        return (base if grant is None or grant.name is None else grant.name), slot

    @property
    def required(self) -> bool:
        """Does a client need a grant?"""
        return self.grants.required or self.source is not None

    def grant(self, client_id: str) -> Grant | None:
        """What a client may do; None for one that is not known."""
        return self._of_base(subscriber_of(client_id)[0])

    def _of_base(self, base: str) -> Grant | None:
        return self.grants.by_base.get(base) if self.source is None else self.source.find(base)


@dataclass(frozen=True)
class ManagedPolicy(Policy):
    """Ranks by the orders and refuses by the grants."""

    rules: Rules = field(default_factory=Rules)

    def treatment(self, client_id: str, topic: str) -> Treatment:
        """By the orders, the lowest class of all for a client without a flow; or by `priorities`, which take the place
        of orders where there is no coordinator."""
        if self.priorities:
            return super().treatment(client_id, topic)
        return self.rules.treatment(client_id, topic)

    @property
    def closed(self) -> bool:
        return self.rules.closed

    def hears_directly(self, client_id: str, publication: Publication) -> bool:
        """What is promised, where the subscriber is listening and the publisher knew of that."""
        name, _ = self.rules.identify(client_id)
        since = self.rules.orders.direct.get(name, {}).get(publication.topic, {}).get(publication.publisher)
        return since is not None and (publication.sent_directly or 0) >= since

    def forbids_connection(self, client_id: str) -> bool:
        return self.rules.required and self.rules.grant(client_id) is None

    def forbids_subscription(self, client_id: str, topic_filter: str) -> bool:
        if not self.rules.required:
            return self.rules.closed
        grant = self.rules.grant(client_id)
        return grant is None or not within(topic_filter, grant.subscribe)

    def forbids_publication(self, client_id: str, topic: str) -> bool:
        if not self.rules.required:
            return self.rules.closed
        grant = self.rules.grant(client_id)
        return grant is None or not within(topic, grant.publish)
