"""Who may do what at a gateway: grants by client id, and the policy that follows them and the orders.

A client id without its slot (its base) is a capability when access is controlled: it holds a key that only its owner
and the coordinator know. A client without a grant is not let in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict, Strict

from triagemq.coordinator.decide.orders import Orders, subscriber_of
from triagemq.exchange import Policy
from triagemq.exchange.gateway.messages import Publication
from triagemq.mqttsn import valid_topic_filter
from triagemq.mqttsn.filters import within
from triagemq.plan import Treatment
from triagemq.plan.instructions import applied, difference


def _pattern(text: str) -> str:
    if not valid_topic_filter(text):
        raise ValueError("patterns must be topic filters")
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]


@dataclass(frozen=True, slots=True)
class Grant:
    """Topic patterns that the holder of a client id may publish and subscribe to.

    `name` is the publisher's or subscriber's name if the client id has more in it; orders and the trace use the name.
    """

    publish: tuple[Pattern, ...] = ()
    subscribe: tuple[Pattern, ...] = ()
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Grants:
    """All grants by base; while they are not `required`, everyone may do everything."""

    required: bool = False
    by_base: Mapping[str, Grant] = field(default_factory=dict)

    def since(self, before: Grants) -> GrantsChange:
        """What has changed.

        >>> before = Grants(True, {"a.k": Grant(subscribe=("#",)), "b.k": Grant(publish=("smoke",))})
        >>> Grants(True, {"b.k": Grant(publish=("smoke",))}).since(before)
        GrantsChange(required=True, by_base={'a.k': None})
        """
        return GrantsChange(self.required, difference(before.by_base, self.by_base))


@dataclass(frozen=True, slots=True)
class GrantsChange:
    """Grants as those before them and what is new or different; None is for those that have ended."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    required: Annotated[bool, Strict()]
    by_base: Mapping[str, Grant | None] = field(default_factory=dict)

    def after(self, before: Grants) -> Grants:
        """The grants that they become."""
        return Grants(self.required, applied(before.by_base, self.by_base))


_MOST_TREATMENTS = 100_000


@dataclass(slots=True)
class Rules:
    """What a gateway goes by at this moment. `closed`: no client is let in, because the grants are not known yet."""

    grants: Grants = field(default_factory=Grants)
    orders: Orders = field(default_factory=Orders)
    closed: bool = False
    # What was looked up, and by which orders and grants.
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
        grant = self.grants.by_base.get(base)
        return (base if grant is None or grant.name is None else grant.name), slot

    def grant(self, client_id: str) -> Grant | None:
        return self.grants.by_base.get(subscriber_of(client_id)[0])


@dataclass(frozen=True)
class ManagedPolicy(Policy):
    """Ranks by the orders and refuses by the grants."""

    rules: Rules = field(default_factory=Rules)

    def treatment(self, client_id: str, topic: str) -> Treatment:
        """As the orders say; the lowest class of all for who has no flow."""
        return self.rules.treatment(client_id, topic)

    def client_ids_are_secret(self) -> bool:
        return self.rules.grants.required or self.rules.closed

    @property
    def closed(self) -> bool:
        return self.rules.closed

    def hears_directly(self, client_id: str, publication: Publication) -> bool:
        """What is promised, where the subscriber is listening and the publisher knew of that."""
        name, _ = self.rules.identify(client_id)
        since = self.rules.orders.direct.get(name, {}).get(publication.topic, {}).get(publication.publisher)
        return since is not None and (publication.sent_directly or 0) >= since

    def forbids_connection(self, client_id: str) -> bool:
        return self.rules.grants.required and self.rules.grant(client_id) is None

    def forbids_subscription(self, client_id: str, topic_filter: str) -> bool:
        if not self.rules.grants.required:
            return self.rules.closed
        grant = self.rules.grant(client_id)
        return grant is None or not within(topic_filter, grant.subscribe)

    def forbids_publication(self, client_id: str, topic: str) -> bool:
        if not self.rules.grants.required:
            return self.rules.closed
        grant = self.rules.grant(client_id)
        return grant is None or not within(topic, grant.publish)
