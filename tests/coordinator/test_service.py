"""Announcing while the store fails and calls overlap: what is acknowledged stays, what is not does not come back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from triagemq.coordinator.access.rights import TokenWatch
from triagemq.coordinator.access.tokens import ANYONE
from triagemq.coordinator.intents.registry import Key, Record, Registry
from triagemq.coordinator.loop.health import Check
from triagemq.coordinator.refusals import MissingError, StoreError
from triagemq.coordinator.service import Service
from triagemq.intents import SUBSCRIBER, SubscriberIntent, SubscriptionIntent
from triagemq.plan import Decision


class Disk:
    """A store in a dictionary. Each write waits until the test lets it succeed, fail, or fail after it was stored."""

    def __init__(self) -> None:
        self.writing = Check()
        self.kept: dict[str, str] = {}
        self.waiting: list[tuple[Any, asyncio.Future[None]]] = []

    async def write(self, change: Any, *arguments: Any) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((lambda connection: change(connection, *arguments), done))
        await done

    async def probe(self) -> None:
        await self.write(lambda connection: None)

    def execute(self, statement: Any, rows: Sequence[dict[str, Any]] = ()) -> None:
        """What store_changes does to a connection."""
        for row in rows:
            if statement.is_delete:
                self.kept.pop(row["named"], None)
            else:
                self.kept[row["name"]] = row["intent"]

    def next(self, outcome: str) -> None:
        change, done = self.waiting.pop(0)
        if outcome != "fails":
            change(self)
        if outcome == "succeeds":
            self.writing.worked()
            done.set_result(None)
        else:
            self.writing.failed(outcome)
            done.set_exception(StoreError(outcome))


class Planner:
    """The intents that it was told."""

    port_names: Sequence[str] = ()

    def __init__(self) -> None:
        self.known: dict[Key, Record] = {}
        self.gateways = self

    async def until_returned(self) -> None:
        pass

    def intents_changed(self, announced: Sequence[Record], withdrawn: Sequence[Key], reason: str) -> None:
        self.known |= {record.key: record for record in announced}
        for key in withdrawn:
            del self.known[key]

    def note(self, decisions: Sequence[Decision]) -> None:
        pass

    def rights_changed(self) -> None:
        pass

    async def rights_in_force(self) -> bool:
        return True


def wanting(name: str, topic: str) -> SubscriberIntent:
    return SubscriberIntent((SubscriptionIntent(topic),), lease_seconds=600.0, name=name)


def topics(records: dict[Key, Record]) -> dict[str, str]:
    found = {}
    for (_, name), record in records.items():
        assert isinstance(record.intent, SubscriberIntent)
        found[name] = record.intent.subscriptions[0].topic
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("announce"), st.sets(st.sampled_from("ab"), min_size=1)),
        st.tuples(st.just("withdraw"), st.sampled_from("ab")),
        st.tuples(st.just("store"), st.sampled_from(["succeeds", "fails", "fails after all was stored"])),
        st.tuples(st.just("lease ends"), st.sampled_from("ab")),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
@example(
    [("announce", {"a"}), ("store", "succeeds"), ("announce", {"a"}), ("withdraw", "a")]
    + [("store", "fails")] * 2
)
def test_however_calls_and_failures_overlap_what_is_acknowledged_is_what_holds(
    steps: list[tuple[str, Any]],
) -> None:
    async def run() -> None:
        disk, planner = Disk(), Planner()
        service = Service(disk, Registry(), TokenWatch(disk), planner, access=False)  # type: ignore[arg-type]
        service.begin()
        acknowledged: dict[str, str] = {}
        tasks = []

        async def announce(names: set[str], topic: str) -> None:
            try:
                await service.change(ANYONE, [wanting(name, topic) for name in sorted(names)])
            except StoreError:
                pass
            else:
                acknowledged.update(dict.fromkeys(names, topic))

        async def withdraw(name: str) -> None:
            try:
                await service.change(ANYONE, withdraw=[(SUBSCRIBER, name)])
            except (StoreError, MissingError):
                pass
            else:
                acknowledged.pop(name, None)

        async def end_lease(name: str) -> None:
            changing = service.is_changing((SUBSCRIBER, name))
            if not changing:
                acknowledged.pop(name, None)
            await service._withdraw([(SUBSCRIBER, name)], "lease ended", "")

        for number, (what, argument) in enumerate(steps):
            if what == "store":
                if disk.waiting:
                    disk.next(argument)
            elif what == "announce":
                tasks.append(asyncio.create_task(announce(argument, f"topic-{number}")))
            elif what == "withdraw":
                tasks.append(asyncio.create_task(withdraw(argument)))
            else:
                tasks.append(asyncio.create_task(end_lease(argument)))
            for _ in range(10):
                await asyncio.sleep(0)
        while disk.waiting:
            disk.next("succeeds")
            for _ in range(10):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert topics({record.key: record for record in service.registry}) == acknowledged
        assert topics(planner.known) == acknowledged
        assert len(service._leases) == len(acknowledged)
        # What failed may be on the disk all the same: it is put right by itself.
        writing = asyncio.create_task(service._write_again())
        for _ in range(10):
            await asyncio.sleep(0)
            while disk.waiting:
                disk.next("succeeds")
        await writing
        assert disk.kept.keys() == acknowledged.keys()
        assert all(acknowledged[name] in intent for name, intent in disk.kept.items())

    asyncio.run(run())
