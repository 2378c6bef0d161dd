"""Rights at a gateway: grants by client id.

A client id without its slot (its base) is a capability when access is controlled: it holds a key that only its owner
and the coordinator know. A client without a grant is not let in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Strict

from triagemq.intents import TopicFilter
from triagemq.plan.dataplane import applied, difference


@dataclass(frozen=True, slots=True)
class Grant:
    """Topic patterns that the holder of a client id may publish and subscribe to.

    `name` is the publisher's or subscriber's name if the client id has more in it; orders and the trace use the name.
    """

    publish: tuple[TopicFilter, ...] = ()
    subscribe: tuple[TopicFilter, ...] = ()
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
