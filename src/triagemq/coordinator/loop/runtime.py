"""The control loop at work: gathers reasons to plan, plans in a thread, stores, and has the gateway follow.

Two tasks that never end, planning and measuring; each goes on whatever happens to it, with the last plan in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import ControlError, Measured, PortConstraints
from triagemq.channel.orders import Orders, client_id_of
from triagemq.coordinator import store as tables
from triagemq.coordinator.decide.decide import Decided, PlannerSettings
from triagemq.coordinator.decide.network import Network, mean_error_rates
from triagemq.coordinator.decide.placement import ClientMove, ClusterBalance
from triagemq.coordinator.gateways.joined import Gateways
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.loop.assignments import Assignments
from triagemq.coordinator.loop.health import Check, Metrics
from triagemq.coordinator.loop.measuring import Measuring
from triagemq.coordinator.loop.replanning import Replanner
from triagemq.coordinator.policy.record import NO_POLICY, OperatorPolicy
from triagemq.coordinator.ports import PortWatch
from triagemq.coordinator.rates import RateWatch
from triagemq.coordinator.refusals import StoreError
from triagemq.coordinator.settings import Settings
from triagemq.coordinator.store import Store
from triagemq.errors import TriageError
from triagemq.plan import Decision
from triagemq.waiting import Tasks

_LOG = logging.getLogger("triagemq.coordinator")

GATHER_SECONDS, APART_SECONDS = 0.05, 0.5
"""How long reasons to plan are gathered after a quiet time, and how far plans are apart."""

FIRST_LOOK_SECONDS = 0.5
"""How long the first plan waits for what gateways have measured and observed."""

MOST_REASONS = 20
"""Reasons that a plan names; the others are counted."""

GRANTS_SECONDS = 2.0
"""How long an answer waits for the gateway to know of rights that came or went; it gets them in any case."""

APPLIED_SECONDS = 1.0
"""How long sending waits for queues and switches to carry a stage out; it is looked after again in any case."""

_APPLIED_LOOK_SECONDS = 0.01

LOOK_AFTER_SECONDS = 0.25
"""How often it is looked whether all gateways can serve their clients."""

_MOVE_STEPS, _MOVE_PAUSE_SECONDS = 10, 0.1
"""Many who move at once keep gateways from serving: they move in so many groups."""

_PLAIN_AGAIN_SECONDS = 10.0
"""How often plain clients are sent away from a gateway that cannot serve them: more may have come."""

PROBLEM_SECONDS = 1.0
LONGEST_PROBLEM_SECONDS = 60.0
"""How long after a mistake planning is tried again: the first time, and at most, twice as long each time between."""


class Runtime:
    """Planning and the gateway. All methods are called in the event loop."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        gateways: Gateways,
        network: Network,
        planner: PlannerSettings,
        on_second: Callable[[Measured, Measured], Awaitable[None]],
    ) -> None:
        self.gateways = gateways
        self.rates = RateWatch(store.measured())
        self.metrics = Metrics()
        self.assignments = Assignments()
        self.decided: Decided | None = None
        ports, stored = network.scenario.ports, store.bandwidths()
        self.bandwidths = {
            name: stored.get(name, bandwidth)
            for name, bandwidth in zip(ports.name, ports.bandwidth_bps.tolist(), strict=True)
        }
        """Of the output ports, as they are stated."""
        self.port_watch = PortWatch(
            self.bandwidths, mean_error_rates(network.scenario), restored=store.measured_ports()
        )
        self.planning = Check(words="the last plan failed; the one before is in force")
        self.planning_since: float | None = None
        """Since when a plan is being made, None while none is."""
        """Whether the last plan was made."""
        self._on_second = on_second
        self.port_names = network.port_names
        """The output ports that subscribers may be behind."""
        self._access = settings.access
        self._store = store
        self._orders = store.orders()
        self._replanner = Replanner(network, planner, self._orders, settings.most_worth)
        # Reasons to plan, and when that was begun last.
        self._reasons: dict[str, None] = {}
        self._requested = asyncio.Event()
        self._planned_at = -math.inf
        # What clients want: now, in the last plan, and in the orders in force.
        self._intents: dict[Key, Record] = {}
        self._planned_intents: Mapping[Key, Record] = {}
        self._intents_in_force: Mapping[Key, Record] = {}
        self._policy = NO_POLICY
        self._factors: Mapping[str, float] = {}
        self._problem_seconds = PROBLEM_SECONDS
        # Orders on the way to those that were decided: the first is the one that is sent. Those that hold nothing say
        # nothing: the gateway keeps those that it has until there is a plan.
        self._stages = deque([self._orders] if self._orders.ports or self._orders.topics else [])
        self._orders_stored = True
        self._changed_for: dict[str, None] = {}
        self._refusal_noted: str | None = None
        self._balancing = ClusterBalance(settings.balancing)
        # When plain clients of a gateway that cannot serve are sent away again.
        self._plain_again: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="planning")
        self._tasks = Tasks()
        self.measuring = Measuring(
            gateways, self.rates, self.port_watch, store, on_change=self._request, on_second=self._second
        )

    @property
    def stored_orders(self) -> Orders | None:
        """Those of before a restart."""
        return self._stages[0] if self._stages else None

    @property
    def generation(self) -> int:
        """Of the orders in force, as far as is known."""
        return self.assignments.orders.generation

    @property
    def planned_generation(self) -> int:
        return self._orders.generation

    def is_in_force(self, key: Key) -> bool:
        """Does the gateway follow orders that were made with the latest intent of this name?"""
        return self._intents_in_force.get(key) is self._intents.get(key)

    # From start to stop.

    def start(self, records: Sequence[Record]) -> None:
        """Plan for those who were there before, and go on for ever."""
        self.intents_changed(records, (), "the coordinator started")
        self._tasks.start(self._for_ever(self._plan_when_due))
        self._tasks.start(self._for_ever(self.measuring.one_second))
        self._tasks.start(self._for_ever(self._send_again))
        self._tasks.start(self._for_ever(self._look_after_gateways))

    async def stop(self) -> None:
        await self._tasks.close()
        await self.gateways.close()
        with contextlib.suppress(StoreError):
            await self.measuring.store()
        # A plan that is being made ends by itself; the end does not wait for it.
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _for_ever(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:
                # Whatever it is, the exchange goes on with the plan it has.
                if not isinstance(error, TriageError):
                    _LOG.exception("the control loop goes on after a mistake of its own")
                await asyncio.sleep(PROBLEM_SECONDS)

    # Reasons to plan.

    def intents_changed(self, announced: Sequence[Record], withdrawn: Sequence[Key], reason: str) -> None:
        for record in announced:
            self._intents[record.key] = record
            self.assignments.announced(record.key)
        for key in withdrawn:
            self._intents.pop(key, None)
            self.gateways.forget(key)
            self.assignments.forget(key)
        self._request(reason)
        self.rights_changed()

    def bandwidth_changed(self, port: str, bandwidth_bps: float) -> None:
        before = self.bandwidths[port]
        self.bandwidths[port] = bandwidth_bps
        self.port_watch.state(port, bandwidth_bps)
        self._request(f"bandwidth of port {port} from {before:g} to {bandwidth_bps:g} bit/s")

    def change_settings(self, settings: PlannerSettings, reason: str) -> None:
        """Plan with other algorithms from now on."""
        self._replanner.settings = settings
        self._request(reason)

    def change_policy(self, policy: OperatorPolicy, factors: Mapping[str, float], reason: str) -> None:
        """Plan by another policy, or with the factors of another phase, from now on."""
        self._policy, self._factors = policy, factors
        self._request(reason)

    def note(self, decisions: Sequence[Decision]) -> None:
        """Decisions that are no plan's: stored and written into the trace like the others."""
        self._tasks.start(self._record(decisions))

    def constrain(self, constraints: PortConstraints) -> None:
        """How long packets may wait at ports whose queue rates are controlled."""
        if self.gateways.want_constraints(constraints):
            self._tasks.start(self._send())

    def rights_changed(self) -> None:
        """A client may do more or less than before: the gateways get the grants."""
        if self._access:
            self.gateways.want_grants()
            self._tasks.start(self._send())

    async def rights_in_force(self) -> bool:
        """Wait a moment for the gateway to follow the rights of now; False if it does not yet."""
        if self._access and not self.gateways.grants_in_force:
            sending = asyncio.ensure_future(self._send())
            await asyncio.wait({sending}, timeout=GRANTS_SECONDS)
        return not self._access or self.gateways.grants_in_force

    def _request(self, reason: str) -> None:
        self._reasons[reason] = None
        self._requested.set()

    # Planning.

    async def _plan_when_due(self) -> None:
        """A storm of changes makes few plans, and a single one waits little."""
        await self._requested.wait()
        if not self.metrics.plans:
            await self._first_measurement()
        await asyncio.sleep(max(GATHER_SECONDS, self._planned_at + APART_SECONDS - time.monotonic()))
        self._requested.clear()
        self._planned_at = time.monotonic()
        why, self._reasons = list(self._reasons), {}
        if (unnamed := len(why) - MOST_REASONS) > 0:
            why[MOST_REASONS:] = [f"{unnamed} more changes"]
        self.planning_since = time.monotonic()
        try:
            await self._plan(why)
        except Exception as error:
            await self._refuse(why, error)
        finally:
            self.planning_since = None

    async def _first_measurement(self) -> None:
        """Wait a moment for it: after a restart it names the unannounced clients, which are served already."""
        end_at = time.monotonic() + FIRST_LOOK_SECONDS
        while self.measuring.latest is None and time.monotonic() < end_at:
            await asyncio.sleep(_APPLIED_LOOK_SECONDS)

    async def _plan(self, why: Sequence[str]) -> None:
        loop, intents = asyncio.get_running_loop(), {**self.gateways.observed.records(), **self._intents}
        declared, news, failed = await loop.run_in_executor(
            self._thread, self._replanner.take, intents, self._policy, self._factors
        )
        if news:
            await self._record(news)
        if declared is not None:
            self.rates.declare(declared)
        ports, begun = self.port_watch.now(), time.perf_counter()
        decided = await loop.run_in_executor(
            self._thread, self._replanner.plan, self.rates.rates(), dict(self.bandwidths), ports, why
        )
        self.metrics.plans += 1
        self.metrics.plan_seconds.observe(time.perf_counter() - begun)
        if failed:
            self._try_again(why, f"{len(failed)} intents could not be taken into the plan")
        else:
            self.planning.worked()
            self._problem_seconds = PROBLEM_SECONDS
        self._planned_intents = {key: intent for key, intent in intents.items() if key not in failed}
        self.port_watch.planned(decided.scenario, ports.survival)
        await self._take_over(decided)

    async def _refuse(self, why: Sequence[str], error: Exception) -> None:
        """The plan before stays in force."""
        self.metrics.plans_refused += 1
        reason = str(error)
        if isinstance(error, TriageError):
            self.planning.failed(reason)
        else:
            _LOG.exception("a plan failed; the one before stays", exc_info=error)
            reason = f"{type(error).__name__}: {error}"
            self._try_again(why, reason)
        generation = f"generation {self._orders.generation}"
        words = f"{'; '.join(why)}: {reason}"
        await self._record([Decision("refused", "plan", generation, generation, words)])

    def _try_again(self, why: Sequence[str], problem: str) -> None:
        """After a mistake of the coordinator's own: it may not be there the next time."""
        self.planning.failed(problem)
        delay, self._problem_seconds = (
            self._problem_seconds,
            min(2 * self._problem_seconds, LONGEST_PROBLEM_SECONDS),
        )

        async def later() -> None:
            await asyncio.sleep(delay)
            for reason in why:
                self._request(reason)

        self._tasks.start(later())

    async def _take_over(self, decided: Decided) -> None:
        self.metrics.plans_unchanged += not decided.changed
        self.decided, self._orders = decided, decided.orders
        self.gateways.placements.scenario = decided.scenario
        self.rates.listen(decided.subscribed_topics)
        self.metrics.count_decisions(decided.decisions)
        sent = self._stages[0] if self._stages else None
        if decided.changed:
            self._queue(decided.stages)
        await self._record(decided.decisions, self._stages[0] if self._stages[0] is not sent else None)
        self._changed_for |= dict.fromkeys(decided.changed_for)
        self.gateways.want_orders(self._stages[0])
        await self._send()

    def _queue(self, stages: Sequence[Orders]) -> None:
        """Orders that change nothing about promises take the place of those that wait; others come after them."""
        if self.gateways.refusal is not None:
            # What is refused must not be in the way: there is nothing to be gained by waiting for it.
            self._stages.clear()
        last = self._stages[-1] if self._stages else None
        if (
            last is not None
            and len(stages) == 1
            and (last.copies, last.limiters) == (stages[0].copies, stages[0].limiters)
        ):
            self._stages[-1] = stages[0]
        else:
            self._stages.extend(stages)

    async def _send(self) -> None:
        """Have the gateway follow what is wanted; if it is away or unwilling, that is repeated until it does.

        Of several stages the next is sent when one is confirmed, and stored before that: after a restart the
        coordinator finds what the gateways follow, or what they were to follow next.
        """
        await self.gateways.sync()
        while len(self._stages) > 1:
            stage = self._stages[0]
            # Several may wait for the same stage; one of them goes on.
            if not await self._is_applied(stage) or self._stages[0] is not stage or len(self._stages) == 1:
                break
            self._stages.popleft()
            await self._record((), self._stages[0])
            self.gateways.want_orders(self._stages[0])
            await self.gateways.sync()
        if self.gateways.follows(self._orders):
            self._in_force()
        refusal = self.gateways.refusal
        if refusal is not None and refusal != self._refusal_noted:
            generation = f"generation {self._orders.generation}"
            self.note([Decision("refused", "gateway", f"generation {self.generation}", generation, refusal)])
        self._refusal_noted = refusal

    async def _is_applied(self, stage: Orders) -> bool:
        """Do the gateway and all who carry its orders out elsewhere follow a stage? They have a moment for it."""
        end_at = time.monotonic() + APPLIED_SECONDS
        while self.gateways.follows(stage):
            try:
                measured = await self.gateways.measure(flows=False, topics=False)
            except ControlError:
                return False
            if measured.carried is None or measured.carried >= stage.generation:
                return True
            if time.monotonic() >= end_at:
                return False
            await asyncio.sleep(_APPLIED_LOOK_SECONDS)
        return False

    async def _send_again(self) -> None:
        await asyncio.sleep(self.gateways.pause_seconds)
        if any(each.reconciler.link.connected for each in self.gateways):
            await self._send()

    def _in_force(self) -> None:
        self._intents_in_force = self._planned_intents
        changed, self._changed_for = self._changed_for, {}
        self.assignments.put_in_force(self._orders, changed)

    async def gateway_connected(self, name: str) -> None:
        """A gateway is there (again): it says what it follows, and gets what it lacks."""
        self.metrics.gateway_connections[name] += 1
        await self.gateways.connected(name)
        await self._send()
        await self.gateways.trace_decisions()

    # Several gateways.

    async def gateway_joined(self, name: str, link: GatewayLink, host: str, *, is_here: bool) -> None:
        """A gateway has come by itself, from a host: it gets its part, and clients may be sent there."""
        led = await self.gateways.join(name, link, host, is_here=is_here)
        self.metrics.gateway_connections[name] += 1
        self.note([Decision("joined", f"gateway {name}", "", led.broker_shown, f"it has come from {host}")])
        await self._store_gateways()
        await self._send()

    async def _store_gateways(self) -> None:
        """After a restart clients come back to where their sessions are: the coordinator waits for these."""
        with contextlib.suppress(StoreError):
            await self._store.write(tables.set_gateways, self.gateways.joined)

    async def _look_after_gateways(self) -> None:
        """Clients of gateways that cannot serve any are sent elsewhere."""
        await asyncio.sleep(LOOK_AFTER_SECONDS)
        if gone := self.gateways.forget_gone():
            self.note(
                [Decision("left", f"gateway {name}", "", "forgotten", "it stays away") for name in gone]
            )
            await self._store_gateways()
        if not self.gateways.are_several:
            return
        sites = self.gateways.sites()
        problems = {site.name: site.problem for site in sites}
        moves = [
            ClientMove(
                key, self.gateways.home_of(key).name, target, problems[self.gateways.home_of(key).name]
            )
            for key, target in self.gateways.placements.evacuations(sites)
        ]
        if moves:
            await self.move(moves)
        now = time.monotonic()
        for site in sites:
            if site.problem and now >= self._plain_again.get(site.name, 0.0):
                self._plain_again[site.name] = now + _PLAIN_AGAIN_SECONDS
                if not all(each.problem for each in sites):
                    with contextlib.suppress(ControlError):
                        await self.send_plain_elsewhere(site.name, None, site.problem)

    async def send_plain_elsewhere(self, name: str, client_ids: Sequence[str] | None, why: str) -> int:
        """Have plain clients of a gateway look for another one, which is noted; how many there are."""
        sent = await self.gateways.send_plain_elsewhere(name, client_ids)
        if sent:
            noted = f"{sent} plain clients"
            self.note([Decision("sent away", noted, f"gateway {name}", "any other that they find", why)])
        return sent

    async def _balance(self) -> None:
        """Who is to go elsewhere because a broker has too much, by what was measured in the last second."""
        if self.decided is None:
            return
        placements, loads = dict(self.gateways.placements), self.gateways.loads()
        moves = self._balancing.moves(self.decided.scenario, placements, loads, time.monotonic())
        if moves:
            await self.move(moves)

    async def move(self, moves: Sequence[ClientMove]) -> None:
        """Send clients to other gateways: these know of them before the clients do.

        A gateway that is away brings nothing more: what is acknowledged meanwhile is stored where its clients go to.
        """
        for each in moves:
            self.gateways.move(each.key, each.target)
        await self.gateways.sync()
        expected: dict[str, dict[str, dict[str, int]]] = {}
        for each in moves:
            record = self.gateways.placements.clients.get(each.key)
            if record is None or not self.gateways.is_away(each.source):
                continue
            if stored := record.stored_filters:
                expected.setdefault(each.target, {})[client_id_of(record.client_id_base(self._access))] = (
                    stored
                )
        await asyncio.gather(*(self.gateways.expect(at, sessions) for at, sessions in expected.items()))
        self._tasks.start(self._wake_moved([each.key for each in moves]))
        self.note(
            [
                Decision(
                    "moved", " ".join(each.key), f"gateway {each.source}", f"gateway {each.target}", each.why
                )
                for each in moves
            ]
        )

    async def _wake_moved(self, keys: Sequence[Key]) -> None:
        """Have clients look where their gateway is, some at a time."""
        size = -(-len(keys) // _MOVE_STEPS)
        for first in range(0, len(keys), size):
            self.assignments.changed(keys[first : first + size], self._orders.generation)
            await asyncio.sleep(_MOVE_PAUSE_SECONDS)

    async def _record(self, decisions: Sequence[Decision], orders: Orders | None = None) -> None:
        """Store decisions and orders, then have the decisions written into the trace."""
        now_ns, generation = time.time_ns(), self._orders.generation
        try:
            await self._store.write(tables.decide, now_ns, generation, decisions, orders)
            self._orders_stored = self._orders_stored or orders is not None
        except StoreError:
            # The plan counts more than its record; health says that the store cannot be written.
            self._orders_stored = self._orders_stored and orders is None
        rows = [{"decided_ns": now_ns, **asdict(each)} for each in decisions]
        self._tasks.start(self.gateways.trace_decisions(rows))

    # Once a second.

    async def _second(self, before: Measured | None, now: Measured) -> None:
        if not self._orders_stored and self._store.writing.ok:
            self._tasks.start(self._record((), self._stages[0]))
        if self.gateways.are_several:
            await self._balance()
        if before is not None:
            await self._on_second(before, now)
