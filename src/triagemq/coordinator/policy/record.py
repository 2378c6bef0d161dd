"""Roles with their budgets, the clients that have them, and the phases of an incident. Pure: no I/O, no clock."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from triagemq.intents import SubscriptionIntent

UNNAMED = "client"
"""The role of everyone where there is no policy."""


@dataclass(frozen=True, slots=True)
class ClientRole:
    """What clients of a role may claim by themselves.

    `budget` is the most that all their claims are worth together, None: as much as the exchange gives everyone. Minima
    of a lower `rank` come first where not all fit. `may` are the filters that they may subscribe to, None: any. Those
    who `may_reserve` may claim what takes bandwidth whatever it is worth: a least share, a longest separation, a
    promise.
    """

    name: str = UNNAMED
    budget: float | None = None
    rank: int = 0
    may: tuple[str, ...] | None = None
    may_reserve: bool = False


EVERYONE = ClientRole(may_reserve=True)


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Who a client is, as far as that is known: its name or client id, its address, the user that the broker has let
    in, and the role that its token carries."""

    client_id: str
    address: str = ""
    user: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class ClientRule:
    """The clients that fit `client_id` (with * and ?), `address` (or a network) and `user`, and what holds for them.

    `subscriptions` are the operator's terms where a client states none itself.
    """

    role: str
    client_id: str = "*"
    address: str | None = None
    user: str | None = None
    port: str | None = None
    subscriptions: tuple[SubscriptionIntent, ...] = ()

    @property
    def fits_everyone(self) -> bool:
        return self.client_id == "*" and self.address is None and self.user is None

    def fits(self, client: ClientIdentity) -> bool:
        """
        >>> ClientRule("command", "panel-*", "192.0.2.0/24").fits(ClientIdentity("panel-1", "::ffff:192.0.2.7"))
        True
        """
        return (
            fnmatchcase(client.client_id, self.client_id)
            and (self.user is None or (client.user != "" and fnmatchcase(client.user, self.user)))
            and (self.address is None or _is_in(client.address, self.address))
        )


def _is_in(address: str, network: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found) in ipaddress.ip_network(network, strict=False)


@dataclass(frozen=True, slots=True)
class OperatorPolicy:
    """`clients` are rules, the first that fits counts; `phases` are factors on worth by topic or filter, by name.

    >>> crew = ClientRole("crew", 200.0, 1)
    >>> policy = OperatorPolicy({"crew": crew}, (ClientRule("crew", "ff-*"),))
    >>> policy.role_of(ClientIdentity("ff-7"))[0].budget, policy.role_of(ClientIdentity("other"))[0].budget
    (200.0, 0.0)
    """

    roles: Mapping[str, ClientRole] = field(default_factory=dict)
    clients: tuple[ClientRule, ...] = ()
    phases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def role_of(self, client: ClientIdentity) -> tuple[ClientRole, ClientRule | None]:
        """The role of a client, that of its token if the policy has it, and the rule that fits.

        Where there are roles, a client without one may claim nothing: a policy file has a rule that fits everyone.
        """
        rule = next((each for each in self.clients if each.fits(client)), None)
        if client.role in self.roles:
            return self.roles[client.role], rule
        if rule is not None and rule.role in self.roles:
            return self.roles[rule.role], rule
        if not self.roles:
            return EVERYONE, rule
        return ClientRole(rank=1 + max(role.rank for role in self.roles.values()), budget=0.0), rule


NO_POLICY = OperatorPolicy()
