"""DTLS associations without sockets: strangers cost nothing, hostile records change nothing, nobody inherits."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from triagemq.certificates import own_certificate
from triagemq.dtls import RECORD_BYTES, Association, ClientSecurity, ServerSecurity, no_association_alert
from triagemq.gateway.associations import AssociationLimits, Associations
from triagemq.mqttsn import ConnAck, Connect, PingResp, Publish, ReturnCode, TopicIdType, encode

HERE = ("127.0.0.1", 10_001)
ACCEPTED = encode(ConnAck(ReturnCode.ACCEPTED))
EVENT = encode(Publish(TopicIdType.NORMAL, 1, b"for whom it is"))


class Site:
    """A gateway's associations, and clients that trust its certificate."""

    def __init__(self, directory: Path, **limits: float) -> None:
        certificate, key = own_certificate(directory)
        self.counted: Counter[str] = Counter()
        self.begun: list[tuple[tuple[str, int], bool]] = []
        self.trust = ClientSecurity(authority=certificate)
        self.now = 0.0
        self.known: set[tuple[str, int]] = set()
        self.side = Associations(
            ServerSecurity(certificate, key),
            counted=self.counted,
            established=self._established,
            is_known=self.known.__contains__,
            limits=AssociationLimits(**limits),  # type: ignore[arg-type]
        )

    def _established(self, address: tuple[str, int], resumed: bool) -> None:
        self.begun.append((address, resumed))
        self.known.discard(address)

    def client(self) -> Association:
        return self.trust.association("127.0.0.1", 10_000)

    def give(self, datagram: bytes, address: tuple[str, int] = HERE) -> list[bytes]:
        """Messages inside of a datagram to the gateway."""
        return self.side.receive(address, datagram, self.now)

    def answers(self) -> list[bytes]:
        outgoing, self.side.outgoing = self.side.outgoing, []
        return [datagram for _, datagram in outgoing]

    def shake_hands(self, client: Association, address: tuple[str, int] = HERE) -> Association:
        flight = client.begin()
        while flight:
            for datagram in flight:
                self.give(datagram, address)
            for datagram in self.answers():
                client.receive(datagram)
            flight = client.take()
        assert client.is_established
        return client

    def admitted(self, address: tuple[str, int] = HERE) -> Association:
        """A client that has been let in."""
        client = self.shake_hands(self.client(), address)
        self.known.add(address)
        self.side.seal(address, ACCEPTED)
        return client


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_messages_pass_both_ways_and_a_record_adds_what_is_accounted_for(site: Site) -> None:
    client = site.admitted()
    assert site.give(client.seal(b"up")) == [b"up"]
    sealed = site.side.seal(HERE, EVENT)
    assert sealed is not None
    assert len(sealed) == len(EVENT) + RECORD_BYTES
    assert client.receive(sealed) == [EVENT]
    assert site.begun == [(HERE, False)]


def test_a_second_association_of_the_same_client_is_resumed(site: Site) -> None:
    first = site.shake_hands(site.client())
    site.trust.remember("127.0.0.1", 10_000, first)
    second = site.shake_hands(site.client(), ("127.0.0.1", 10_002))
    assert second.was_resumed
    assert [resumed for _, resumed in site.begun] == [False, True]


def test_a_stranger_gets_a_cookie_and_nothing_is_kept_of_him(site: Site) -> None:
    for number in range(1_000):
        (hello,) = site.client().begin()
        site.give(hello, ("10.0.0.1", 1 + number))
    answers = site.answers()
    assert len(answers) == 1_000
    assert max(map(len, answers)) < len(hello)
    assert (len(site.side), site.side.unfinished) == (0, 0)


def test_a_cookie_is_good_for_its_address_only(site: Site) -> None:
    client = site.client()
    (hello,) = client.begin()
    site.give(hello)
    client.receive(site.answers()[0])
    (with_cookie,) = client.take()
    site.give(with_cookie, ("10.0.0.1", 5))
    assert site.counted["dtls_wrong_cookie"] == 1
    assert site.side.unfinished == 0
    site.give(with_cookie)
    assert site.side.unfinished == 1


def test_replayed_and_forged_records_are_dropped_and_counted(site: Site) -> None:
    client = site.admitted()
    record = client.seal(b"once")
    assert site.give(record) == [b"once"]
    assert site.give(record) == []
    assert site.give(record[:-1] + bytes([record[-1] ^ 1])) == []
    assert site.counted["dtls_nothing_inside"] == 2
    assert site.give(client.seal(b"still here")) == [b"still here"]


def test_a_datagram_in_clear_is_counted_and_not_answered(site: Site) -> None:
    assert site.give(encode(Connect("client", 60))) == []
    assert site.answers() == []
    assert site.counted == {"dtls_no_record": 1}


def test_a_record_without_an_association_is_answered_with_less(site: Site) -> None:
    client = site.shake_hands(site.client())
    record = client.seal(b"ping")
    assert site.give(record, ("127.0.0.1", 10_009)) == []
    (answer,) = site.answers()
    assert answer == no_association_alert()
    assert len(answer) < len(record)
    assert site.give(answer, ("127.0.0.1", 10_009)) == []
    assert site.answers() == []


def test_hostile_octets_neither_crash_nor_disturb(site: Site) -> None:
    client = site.admitted()
    draw = random.Random(11)
    hellos = site.client().begin()
    for number in range(3_000):
        template = draw.choice(
            [*hellos, client.seal(b"x"), bytes([draw.choice((20, 21, 22, 23)), 0xFE, 0xFD])]
        )
        octets = bytearray(template + draw.randbytes(draw.randrange(40)))
        for _ in range(draw.randrange(1, 6)):
            octets[draw.randrange(len(octets))] = draw.randrange(256)
        address = HERE if number % 2 else ("10.1.2.3", draw.randrange(1, 50))
        site.give(bytes(octets[: draw.randrange(1, len(octets) + 1)]), address)
    assert site.side.unfinished == 0
    assert len(site.side) == 1
    assert site.counted.total() > 2_000
    assert site.give(client.seal(b"still here")) == [b"still here"]


@pytest.mark.parametrize("resumed", [False, True])
def test_lost_flights_are_sent_again(site: Site, resumed: bool) -> None:
    """Every datagram of a handshake is lost once; the client sends again what it sent last."""
    if resumed:
        first = site.shake_hands(site.client(), ("127.0.0.1", 10_002))
        site.trust.remember("127.0.0.1", 10_000, first)
    client = site.client()
    lost: set[bytes] = set()
    flight = client.begin()
    for _ in range(20):
        for datagram in flight:
            if datagram in lost:
                site.give(datagram)
            lost.add(datagram)
        for datagram in site.answers():
            if datagram in lost:
                client.receive(datagram)
            lost.add(datagram)
        if client.is_established:
            break
        client.repeat()
        flight = client.take()
    assert client.was_resumed is resumed
    # In a short handshake the last datagram is the client's; it learns from the answer to what follows that it is lost.
    inside = site.give(client.seal(b"inside"))
    for _ in range(3):
        for datagram in site.answers():
            client.receive(datagram)
        for datagram in client.take():
            inside += site.give(datagram)
    assert inside == [b"inside"]


def test_a_hello_that_is_sent_twice_does_not_spoil_the_handshake(site: Site) -> None:
    """As by a client that waited for longer than its timer: the copy goes out beside the one with the cookie."""
    client = site.client()
    (hello,) = client.begin()
    time.sleep(1.1)
    site.give(hello)
    client.receive(site.answers()[0])
    flight = client.take()
    assert len(flight) == 2
    while flight:
        for datagram in flight:
            site.give(datagram)
        for datagram in site.answers():
            client.receive(datagram)
        flight = client.take()
    assert client.is_established


def test_handshakes_and_associations_are_bounded_overall_and_by_host(tmp_path: Path) -> None:
    site = Site(tmp_path, associations=4, associations_per_host=3, unfinished=3, unfinished_per_host=2)

    def half(address: tuple[str, int]) -> None:
        client = site.client()
        (hello,) = client.begin()
        site.give(hello, address)
        for answer in site.answers():
            client.receive(answer)
        for datagram in client.take():
            site.give(datagram, address)
        site.answers()

    for number in range(5):
        half(("10.0.0.1", 1 + number))
    assert site.side.unfinished == 2
    for number in range(5):
        half((f"10.0.1.{number}", 1))
    assert site.side.unfinished == 3
    assert site.counted["dtls_too_many_handshakes"] > 0
    for number in range(3):
        site.admitted(("10.0.2.1", 1 + number))
    (hello,) = site.client().begin()
    site.give(hello, ("10.0.2.1", 9))
    assert site.answers() == []
    site.admitted(("10.0.2.2", 1))
    site.give(hello, ("10.0.2.3", 9))
    assert site.answers() == []
    assert site.counted["dtls_too_many_associations"] == 2
    assert len(site.side) == 4
    # Those who are there may begin again.
    site.shake_hands(site.client(), ("10.0.2.1", 1))
    site.now = 11.0
    site.side.tick(site.now, set)
    assert site.side.unfinished == 0


def test_associations_in_which_nobody_connects_are_few(tmp_path: Path) -> None:
    site = Site(tmp_path, unfinished=20, unfinished_per_host=5)
    connected = site.admitted()
    for number in range(30):
        site.shake_hands(site.client(), ("10.0.0.1", 1 + number))
    assert len(site.side) == 1 + 5
    for number in range(30):
        site.shake_hands(site.client(), (f"10.0.1.{number}", 1))
    assert len(site.side) == 1 + 20
    assert site.counted["dtls_never_connected"] == 25 + 15
    assert site.give(connected.seal(b"still here")) == [b"still here"]


def test_idle_associations_end_unless_a_session_needs_them(tmp_path: Path) -> None:
    site = Site(tmp_path, idle_seconds=60)
    idle, asleep = site.shake_hands(site.client()), site.shake_hands(site.client(), ("10.0.0.1", 1))
    site.now = 61.0
    site.side.tick(site.now, lambda: {("10.0.0.1", 1)})
    assert len(site.side) == 1
    (farewell,) = site.answers()
    idle.receive(farewell)
    assert idle.is_closed
    assert site.give(asleep.seal(b"awake"), ("10.0.0.1", 1)) == [b"awake"]


def test_a_new_handshake_replaces_an_association_only_when_it_is_complete(site: Site) -> None:
    first = site.admitted()
    second = site.client()
    (hello,) = second.begin()
    site.give(hello)
    second.receive(site.answers()[0])
    for datagram in second.take():
        site.give(datagram)
    answers = site.answers()
    # A copy of the first datagrams, from anyone who heard them, changes nothing for the one who is there.
    assert site.give(first.seal(b"still me")) == [b"still me"]
    sealed = site.side.seal(HERE, EVENT)
    assert sealed is not None
    assert first.receive(sealed) == [EVENT]
    for datagram in answers:
        second.receive(datagram)
    for datagram in second.take():
        site.give(datagram)
    for datagram in site.answers():
        second.receive(datagram)
    assert len(site.begun) == 2
    assert site.give(first.seal(b"no more")) == []
    assert site.give(second.seal(b"it is me now")) == [b"it is me now"]


def test_who_has_not_connected_inside_gets_nothing_of_the_session_that_was_there(site: Site) -> None:
    site.admitted()
    stranger = site.shake_hands(site.client())
    assert site.side.seal(HERE, EVENT) is None
    assert site.side.seal(HERE, encode(PingResp())) is None
    refused = site.side.seal(HERE, encode(ConnAck(ReturnCode.REJECTED_NOT_SUPPORTED)))
    assert refused is not None
    assert site.side.seal(HERE, EVENT) is None
    site.known.add(HERE)
    assert site.side.seal(HERE, ACCEPTED) is not None
    sealed = site.side.seal(HERE, EVENT)
    assert sealed is not None
    assert stranger.receive(sealed) == [EVENT]


def test_a_renewed_certificate_is_for_those_who_come_later(tmp_path: Path) -> None:
    site = Site(tmp_path / "one")
    before = site.admitted()
    new, new_key = own_certificate(tmp_path / "two")
    files = own_certificate(tmp_path / "one")
    for old, newer in zip(files, (new, new_key), strict=True):
        newer.replace(old)
    site.side._security.load()
    assert site.give(before.seal(b"as before")) == [b"as before"]
    distrusting = site.client()
    with pytest.raises(AssertionError):
        site.shake_hands(distrusting, ("10.0.0.1", 1))
    assert "self-signed" in distrusting.distrust
    site.trust = ClientSecurity(authority=files[0])
    site.shake_hands(site.client(), ("10.0.0.1", 2))
    files[0].write_text("nothing of the kind")
    with pytest.raises(Exception, match="cannot be used"):
        site.side._security.load()
    site.shake_hands(site.trust.association("127.0.0.1", 10_000), ("10.0.0.1", 3))
