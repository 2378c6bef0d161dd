"""The policy and the phase in force: stored with their authors, recorded as decisions, planned by at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from triagemq.coordinator import store as tables
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.loop.runtime import Runtime
from triagemq.coordinator.policy.files import parse_policy
from triagemq.coordinator.policy.record import NO_POLICY, OperatorPolicy
from triagemq.coordinator.refusals import RequestError
from triagemq.coordinator.store import OperatorDecision, Store
from triagemq.errors import ScenarioError
from triagemq.plan import Decision
from triagemq.scenario.conditions import USUAL_PROFILE

_LOG = logging.getLogger("triagemq.coordinator")

POLICY, PHASE = "policy", "phase"


def check_ports(policy: OperatorPolicy, port_names: tuple[str, ...]) -> None:
    """RequestError if a client is to be behind an output port that there is not."""
    for rule in policy.clients:
        if rule.port is not None and rule.port not in port_names:
            known = ", ".join(port_names[:10])
            raise RequestError(
                f"clients {rule.client_id}: there is no output port {rule.port!r}; there are {known}"
            )


class PolicyInForce:
    """`decided` is the policy as it was given, `phase` the name of the phase: that of the store, or none."""

    def __init__(self, store: Store, runtime: Runtime, network: Network) -> None:
        self._store, self._runtime = store, runtime
        self._port_names = network.port_names
        self._profiles = network.phases
        self.decided = store.by_operator(POLICY)
        self.decided_phase = store.by_operator(PHASE)
        self.policy = stored_policy(store)
        runtime.change_policy(self.policy, self.factors, "the coordinator started")

    @property
    def phases(self) -> Mapping[str, Mapping[str, float]]:
        """All by name: the usual one, the worth profiles of the scenario, and those of the policy."""
        return {USUAL_PROFILE: {}, **self._profiles, **self.policy.phases}

    @property
    def phase(self) -> str:
        """The phase of now."""
        return self.decided_phase.value if self.decided_phase.value in self.phases else USUAL_PROFILE

    @property
    def factors(self) -> Mapping[str, float]:
        """Of the phase of now, by topic or filter."""
        return self.phases[self.phase]

    async def set_policy(self, text: str, author: str, why: str) -> None:
        """Another policy; ScenarioError or RequestError says what is wrong with it, and changes nothing."""
        policy = parse_policy(text, POLICY)
        check_ports(policy, self._port_names)
        before, phase = self.policy, self.phase
        self.decided = await self._decide(POLICY, text, author)
        self.policy = policy
        news = [Decision("policy", "all clients", in_words(before), in_words(policy), why)]
        if self.phase != phase:
            news.append(
                Decision("phase", "all topics", phase, self.phase, f"the policy has no phase {phase}")
            )
        self._runtime.note(news)
        self._runtime.change_policy(policy, self.factors, "another policy")

    async def set_phase(self, name: str, author: str, why: str) -> None:
        """Switch to a phase of the policy or of the scenario."""
        if name not in self.phases:
            raise RequestError(f"there is no phase {name!r}; there are {', '.join(self.phases)}")
        before = self.phase
        self.decided_phase = await self._decide(PHASE, name, author)
        self._runtime.note([Decision("phase", "all topics", before, name, why)])
        self._runtime.change_policy(self.policy, self.factors, f"phase {name}")

    async def _decide(self, what: str, value: str, author: str) -> OperatorDecision:
        decided = OperatorDecision(value, author, time.time_ns())
        await self._store.write(tables.set_by_operator, what, value, author, decided.decided_ns)
        return decided


def stored_policy(store: Store) -> OperatorPolicy:
    """The policy in a database; none if this version does not take it any more."""
    text = store.by_operator(POLICY).value
    try:
        return parse_policy(text, POLICY) if text else NO_POLICY
    except ScenarioError as error:
        _LOG.warning("the stored policy is not valid any more, and not in force: %s", error)
        return NO_POLICY


def replace_stored(store: Store, text: str, author: str) -> str:
    """Store a policy in place of another one, before a coordinator starts; in words what it replaces, if anything."""
    before = store.by_operator(POLICY)
    if before.value == text:
        return ""
    now_ns = time.time_ns()
    store.write_now(tables.set_by_operator, POLICY, text, author, now_ns)
    was = f"the policy of {before.author}" if before.author else "none"
    news = [Decision("policy", "all clients", was, in_words(parse_policy(text, POLICY)), f"by {author}")]
    store.write_now(tables.decide, now_ns, 0, news)
    return (
        f"the policy takes the place of the stored one, which was that of {before.author}"
        if before.author
        else ""
    )


def in_words(policy: OperatorPolicy) -> str:
    """What a policy has, for a decision.

    >>> in_words(NO_POLICY)
    'none'
    """
    if policy == NO_POLICY:
        return "none"
    counts = {"roles": policy.roles, "entries of clients": policy.clients, "phases": policy.phases}
    return ", ".join(f"{len(several)} {what}" for what, several in counts.items())
