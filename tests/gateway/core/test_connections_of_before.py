"""Subscribers that had several connections: what waits for those comes over the one by which they subscribe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway.virtual import VirtualGateway

from triagemq.gateway.core.sessions import own_name
from triagemq.gateway.core.state import Gone, Present
from triagemq.mqttsn import Connect, Disconnect, Publish, PubRec


def identify(client_id: str) -> tuple[str, int]:
    name, mark, slot = client_id.rpartition("~")
    return (name, int(slot)) if mark else (client_id, 0)


def gateway(store: Path | None = None, **settings: Any) -> VirtualGateway:
    return VirtualGateway(store=store, identify=identify, **settings)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waited_for_another_connection_comes_over_the_first_after_an_upgrade(
    tmp_path: Path, qos: int
) -> None:
    # To the gateway of before they looked like this: `s~1` is given what `s~0` subscribed to.
    here = VirtualGateway(store=tmp_path, identify=own_name, in_flight_messages=2)
    first, second = (here.client(number + 1).connect(f"s~{number}") for number in range(2))
    second.subscribe("a", qos)
    second.answers = False
    for number in range(4):
        here.publish("a", b"%d" % number, qos)
    sent = second.take(Publish)
    if qos == 2:
        # This one has arrived.
        second.send(PubRec(sent[0].message_id))
    here._identify = identify
    here.kill()
    here.wait(1.0)
    assert first.payloads() == [b"%d" % number for number in range(qos - 1, 4)]
    second.send(Disconnect())
    first.send(Disconnect())
    here.kill()
    first.send(Connect("s~0", 0, clean_session=False))
    assert first.payloads() == []


def test_another_connection_of_a_client_of_before_is_idle() -> None:
    here = gateway()
    zero, one = (here.client(number + 1).connect(f"s~{number}") for number in range(2))
    zero.subscribe("a")
    here.publish("a", b"x")
    assert (zero.payloads(), one.payloads()) == ([b"x"], [])


def test_whoever_binds_flows_hears_where_clients_are(tmp_path: Path) -> None:
    here = gateway(tmp_path)
    news: list[Present | Gone] = []
    act = here._act

    def listening(action: Any) -> None:
        if isinstance(action, Present | Gone):
            news.append(action)
        act(action)

    here._act = listening  # type: ignore[method-assign]
    client = here.client(1).connect("s~0")
    assert news == [Present("s~0", ("10.0.0.1", 1), False)]
    client.subscribe("a")
    client.subscribe("b")
    assert news[1:] == [Present("s~0", ("10.0.0.1", 1), True)] * 2
    news.clear()
    here.client(2).connect("s~0")
    here.kill()
    assert news == [Present("s~0", ("10.0.0.1", 2), True)] * 2
    news.clear()
    here.client(2).send(Disconnect())
    assert news == [Gone("s~0")]
