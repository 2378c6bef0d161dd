"""Direct topics through real switches: rules replicate the group to those who listen, and nobody else gets it."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.network.openflow.lab import Lab, eventually

from triagemq.client.direct import (
    BlockingDirectPublisher,
    BlockingDirectSubscriber,
    NetworkSettings,
)
from triagemq.network.linux.netlink import in_namespace

pytestmark = pytest.mark.needs_root("it makes network namespaces and switches")

PORT = 7400
MESSAGES = 100


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with contextlib.closing(Lab(tmp_path)) as made:
        yield made


def at(lab: Lab, host: str) -> NetworkSettings:
    def make_socket(family: int, kind: int, protocol: int) -> socket.socket:
        return in_namespace(f"{lab.name}-{host}", partial(socket.socket, family, kind, protocol))

    return NetworkSettings(interface="eth0", make_socket=make_socket)


@pytest.mark.parametrize(
    ("group", "match"),
    [("239.1.2.3", "udp,nw_dst=239.1.2.3"), ("ff15::1:3", "udp6,ipv6_dst=ff15::1:3")],
)
def test_two_switches_bring_every_message_to_all_who_listen(lab: Lab, group: str, match: str) -> None:
    hosts = ("pub", "near", "far", "other")
    ports = {
        name: lab.host(name, f"10.9.0.{number}/24", f"fd00:9::{number}/64")
        for number, name in enumerate(hosts, 1)
    }
    lab.link("x1", "x2")
    lab.switches.add_switch("s1", 1, [ports["pub"], ports["near"], "x1"])
    lab.switches.add_switch("s2", 2, [ports["far"], ports["other"], "x2"])
    for switch, outputs in (("s1", (2, 3)), ("s2", (1,))):
        buckets = ",".join(f"bucket=actions=output:{port}" for port in outputs)
        lab.switches.change_rules(switch, "add-group", f"group_id=1,type=all,{buckets}")
        lab.switches.change_rules(switch, "add-flow", f"{match},actions=group:1")
    address = f"[{group}]:{PORT}" if ":" in group else f"{group}:{PORT}"
    topic = f"ward/{secrets.token_hex(4)}"
    with contextlib.ExitStack() as open_until_the_end:
        listeners = {
            name: open_until_the_end.enter_context(
                BlockingDirectSubscriber(topic, address, network=at(lab, name))
            )
            for name in ("near", "far", "other")
        }
        sender = open_until_the_end.enter_context(
            BlockingDirectPublisher(topic, address, max_size_bytes=4_000, network=at(lab, "pub"))
        )

        def reaches_its_link() -> bool:
            sender.publish(b"")
            return not sender.problem

        eventually(reaches_its_link, "the kernel notices that the link of the publisher is up")
        first = sender.counters.published
        for number in range(first, first + MESSAGES):
            payload = secrets.token_bytes(40 * (number - first))
            if number > first:
                sender.publish(payload)
            for name in ("near", "far"):
                event = listeners[name].next(60)
                assert event is not None
                assert (event.value, event.number) == (payload, number)
        assert listeners["other"].next(0.05) is None
        assert listeners["far"].counters.rejected == {}
