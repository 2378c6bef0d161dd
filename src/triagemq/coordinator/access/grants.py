"""Who may do what at a gateway: grants by client id, and the policy that follows them and the orders.

A client id without its slot (its base) is a capability when access is controlled: it holds a key that only its owner
and the coordinator know. Whoever has no grant is not let in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triagemq.coordinator.decide.orders import Orders, client_id_of, subscriber_of
from triagemq.errors import ParameterError
from triagemq.exchange import Policy
from triagemq.exchange.topic_patterns import within
from triagemq.mqttsn import valid_topic_filter

__all__ = [
    "Grant",
    "Grants",
    "ManagedPolicy",
    "Rules",
    "changed_grants",
    "grants_change",
    "grants_from_json",
    "grants_to_json",
]


@dataclass(frozen=True, slots=True)
class Grant:
    """Topic patterns that the holder of a client id may publish and subscribe to.

    `name` is the publisher's or subscriber's name if the client id has more in it; orders and the trace use the name.
    """

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Grants:
    """All grants by base; while they are not `required`, everyone may do everything."""

    required: bool = False
    by_base: Mapping[str, Grant] = field(default_factory=dict)


@dataclass(slots=True)
class Rules:
    """What a gateway goes by at this moment. `closed`: nobody is let in, because it does not know yet who may be."""

    grants: Grants = field(default_factory=Grants)
    orders: Orders = field(default_factory=Orders)
    closed: bool = False

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

    def priority_class(self, client_id: str, topic: str) -> int:
        """The class of the flow that carries the topic; the lowest of all for who has none."""
        orders = self.rules.orders
        name, slot = self.rules.identify(client_id)
        slot = orders.slots.get(name, {}).get(topic, slot)
        flow = orders.flows.get(client_id_of(name, slot))
        return orders.lowest_class if flow is None else flow.priority_class

    def client_ids_are_secret(self) -> bool:
        return self.rules.grants.required or self.rules.closed

    @property
    def closed(self) -> bool:
        return self.rules.closed

    def drop_rate(self, client_id: str, topic: str) -> float:
        """That of the client's flow: topics go through the connection that the orders name for them."""
        flow = self.rules.orders.flows.get(client_id_of(*self.rules.identify(client_id)))
        return 0.0 if flow is None else flow.drop_rate

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


def grants_to_json(grants: Grants) -> dict[str, Any]:
    """What `grants_from_json` reads.

    >>> grants = Grants(True, {"ff-7.k3y": Grant(subscribe=("floor3/#",), name="ff-7")})
    >>> grants_from_json(grants_to_json(grants)) == grants
    True
    """
    found: dict[str, Any] = {}
    for base, grant in grants.by_base.items():
        found[base] = {"publish": list(grant.publish), "subscribe": list(grant.subscribe)}
        if grant.name is not None:
            found[base]["name"] = grant.name
    return {"required": grants.required, "grants": found}


def grants_change(before: Grants, after: Grants) -> dict[str, Any]:
    """What `changed_grants` reads: the grants that are new or different, and the client ids whose grant has ended.

    >>> before = Grants(True, {"a.k": Grant(subscribe=("#",)), "b.k": Grant(publish=("smoke",))})
    >>> grants_change(before, Grants(True, {"b.k": Grant(publish=("smoke",))}))
    {'required': True, 'grants': {}, 'gone': ['a.k']}
    """
    changed = {base: one for base, one in after.by_base.items() if before.by_base.get(base) != one}
    return {
        **grants_to_json(Grants(after.required, changed)),
        "gone": [base for base in before.by_base if base not in after.by_base],
    }


def changed_grants(before: Grants, value: object) -> tuple[Grants, set[str]]:
    """The grants after a change, and the client ids whose grant it touches; ParameterError if it is none."""
    change = grants_from_json(value)
    gone = value.get("gone", []) if isinstance(value, dict) else []
    if not isinstance(gone, list) or not all(isinstance(one, str) for one in gone):
        raise ParameterError("grants", "`gone` must be a list of client ids")
    by_base = {**before.by_base, **change.by_base}
    for base in gone:
        by_base.pop(base, None)
    return Grants(change.required, by_base), {*change.by_base, *gone}


def grants_from_json(value: object) -> Grants:
    """Grants, or ParameterError; it never repeats a client id, which is a secret."""
    if not isinstance(value, dict):
        raise ParameterError("grants", "must be an object with `required` and `grants`")
    required, by_base = value.get("required"), value.get("grants", {})
    if not isinstance(required, bool):
        raise ParameterError("grants", "`required` must be true or false")
    if not isinstance(by_base, dict):
        raise ParameterError("grants", "must be an object, client id to patterns")
    return Grants(required, {base: _grant(one) for base, one in by_base.items()})


def _grant(value: object) -> Grant:
    if not isinstance(value, dict):
        raise ParameterError("grants", "each must be an object with `publish` and `subscribe`")
    name = value.get("name")
    if name is not None and not isinstance(name, str):
        raise ParameterError("grants", "`name` must be text")
    return Grant(_patterns(value.get("publish", [])), _patterns(value.get("subscribe", [])), name)


def _patterns(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(
        isinstance(one, str) and valid_topic_filter(one) for one in value
    ):
        raise ParameterError("grants", "patterns must be a list of topic filters")
    return tuple(value)
