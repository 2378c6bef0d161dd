"""What is looked at before an intent is accepted: rights, limits, and names used twice."""

from __future__ import annotations

from collections.abc import Sequence

from triagemq.coordinator.access.tokens import Caller, Role
from triagemq.coordinator.intents.asked import PublisherIntent, SubscriberIntent
from triagemq.coordinator.intents.json_text import kind_of
from triagemq.coordinator.intents.records import Key, Record
from triagemq.coordinator.intents.registry import Registry
from triagemq.coordinator.refusals import ConflictError, ForbiddenError, RequestError

__all__ = ["check_limits", "check_once", "check_rights"]


def check_rights(
    caller: Caller, intent: PublisherIntent | SubscriberIntent, port_names: Sequence[str]
) -> None:
    """The caller's role, the name, the topics, and a port that is there."""
    caller.require(Role(kind_of(intent)))
    caller.require_name(intent.name)
    if isinstance(intent, PublisherIntent):
        caller.require_publish(each.topic for each in intent.publications)
        return
    caller.require_subscribe(each.topic_filter for each in intent.subscriptions)
    if intent.port is not None and intent.port not in port_names:
        known = ", ".join(port_names[:10])
        raise RequestError(f"there is no output port {intent.port!r}; there are {known}")


def check_limits(
    registry: Registry, caller: Caller, records: Sequence[Record], withdraw: Sequence[Key]
) -> None:
    """What the caller's token allows in all, counting what it has already."""
    if caller.most_subscriptions is None and caller.most_publications_per_second is None:
        return
    own = [record for record in records if record.owner == caller.owner]
    leaving = [*(record.key for record in own), *withdraw]
    totals = registry.totals(caller.owner, leaving, own)
    if caller.most_subscriptions is not None and totals.subscriptions > caller.most_subscriptions:
        raise ForbiddenError(
            f"this token allows {caller.most_subscriptions} subscriptions in all; "
            f"this would make {totals.subscriptions}"
        )
    most = caller.most_publications_per_second
    if most is not None and totals.publications_per_second > most:
        raise ForbiddenError(
            f"this token allows {most:g} publications a second in all; "
            f"this would make {totals.publications_per_second:g}"
        )


def check_once(keys: Sequence[Key]) -> None:
    """No name twice in one request."""
    seen: set[Key] = set()
    for key in keys:
        if key in seen:
            raise ConflictError(f"the {key[0]} {key[1]!r} is named twice in one request")
        seen.add(key)
