"""The coordinator learns which clients nobody has announced, where they are and what they subscribe to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinator.managed import ManagedProcess
from tests.gateway.real import Mosquitto, SnClient, ended

from triagemq.broker.process import find_mosquitto
from triagemq.channel.messages import Measured, ObservedClient
from triagemq.gateway import observed as module
from triagemq.gateway.observed import MOST_FILTERS, ObservedClients


def client(client_id: str, *filters: str) -> ObservedClient:
    return ObservedClient(client_id, "192.0.2.7", "", dict.fromkeys(filters, ""))


CHANGES = st.tuples(
    st.sampled_from("abcdef"), st.sets(st.sampled_from(["x", "y/#"]), max_size=2), st.booleans()
)


@given(st.lists(CHANGES, max_size=60), st.integers(1, 4), st.integers(1, 5))
def test_a_reader_of_changes_knows_what_a_reader_of_everything_knows(
    changes: list[tuple[str, set[str], bool]], most: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_CLIENTS", most)
        patch.setattr(module, "_CHARACTERS_AT_ONCE", at_once)
        here, known, step = ObservedClients(), dict[str, ObservedClient](), 0

        def read() -> int:
            change, reached = here.since(step)
            if change.whole:
                known.clear()
            for name, each in change.clients.items():
                known.pop(name, None)
                if each is not None:
                    known[name] = each
            return reached

        for name, filters, reads in changes:
            here.put(client(name, *sorted(filters)))
            if reads:
                step = read()
        while (reached := read()) != step:
            step = reached
        patch.setattr(module, "_CHARACTERS_AT_ONCE", 1_000)
        expected = {name: each for name, each in here.since(0)[0].clients.items() if each is not None}
        assert known == expected
        assert len(known) <= most


def test_what_is_too_much_is_counted_and_not_reported() -> None:
    here = ObservedClients()
    here.put(client("greedy", *(f"topic/{number}" for number in range(MOST_FILTERS + 7))))
    here.put(client("long", "x" * 60_000, "y" * 60_000))
    change, _ = here.since(0)
    assert [len(each.subscriptions) for each in change.clients.values() if each] == [MOST_FILTERS, 1]
    assert here.omitted == 8


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_a_gateway_reports_plain_clients_with_their_filters_until_they_are_gone(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker")
    gateway = ManagedProcess(tmp_path / "gateway", broker.url)
    plain, announced = SnClient(gateway.port, "panel 1"), SnClient(gateway.port, "ff-7~0")

    def measured(after: str = "") -> Measured:
        return gateway.ask(lambda link: link.measure(flows=False, after=after))

    with ended(plain, announced, gateway, broker):
        announced.connect().subscribe("smoke")
        plain.connect(clean=True)
        assert measured().observed.clients == {}, "it receives nothing yet"
        plain.subscribe("hall/smoke")
        plain.subscribe("attic/#")
        first = measured()
        assert first.observed.whole
        expected = ObservedClient("panel 1", "127.0.0.1", "", {"hall/smoke": "", "attic/#": ""})
        assert first.observed.clients == {"panel 1": expected}
        second = measured(first.mark)
        assert (second.observed.whole, second.observed.clients) == (False, {})
        plain.connect(clean=True)
        third = measured(second.mark)
        assert (third.observed.whole, third.observed.clients) == (False, {"panel 1": None})
