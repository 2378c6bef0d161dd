"""What unprivileged classifying tells nftables: a hook per port, a map from flows to chains, a chain per policy."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from triagemq.mqttsn.codes import MessageType
from triagemq.network.linux import nftables as nft
from triagemq.network.linux.netlink import Link, Netlink, attribute, text_attribute
from triagemq.network.linux.queues import OUR_HANDLE
from triagemq.network.linux.records import CONTROL, FLOW_KEY, IPV4_MAPPED, QUEUE_MINOR

__all__ = [
    "NftablesPort",
    "delete_table",
    "element",
    "flow_chain",
    "new_counter",
    "new_map",
    "new_table",
]

_STEPS = 1000
_UDP, _ICMPV6 = b"\x11", b"\x3a"
_PUBLISH = bytes([MessageType.PUBLISH])
_PROTOCOLS = {4: b"\x08\x00", 6: b"\x86\xdd"}
_ADDRESSES = {4: (16, 4), 6: (24, 16)}


@dataclass(frozen=True, slots=True)
class NftablesPort:
    """The rules of one port; `attach` hooks them into its interface."""

    number: int
    socket: nft.Nftables
    table: str

    def set_bandwidth(self, bandwidth_bps: float) -> None:
        """Control packets have no bound here."""

    def attach(self, netlink: Netlink, link: Link) -> None:
        chain = f"port{self.number}"
        control = nft.end_with_priority(_priority(CONTROL))
        hook = nft.nested(4, nft.number(1, 1), nft.number(2, 0), text_attribute(3, link.name))
        steps = [
            nft.message(
                nft.NEW_CHAIN,
                *(text_attribute(1, self.table), text_attribute(3, chain), hook),
                *(nft.number(5, 1), text_attribute(7, "filter")),
            ),
            nft.rule(
                self.table,
                chain,
                nft.load_meta(nft.META_PROTOCOL),
                nft.compare(nft.EQUAL, b"\x08\x06"),
                control,
            ),
        ]
        marks = {4: (1, 1, b"\xfc", b"\xc0"), 6: (0, 2, b"\x0f\xc0", b"\x0c\x00")}
        for version, (offset, length, bits, cs6) in marks.items():
            protocol = nft.load_meta(nft.META_PROTOCOL) + nft.compare(nft.EQUAL, _PROTOCOLS[version])
            marked = (
                nft.load_header(nft.NETWORK, offset, length) + nft.mask(bits) + nft.compare(nft.EQUAL, cs6)
            )
            steps.append(nft.rule(self.table, chain, protocol, marked, control))
            if version == 6:
                neighbours = nft.load_meta(nft.META_TRANSPORT) + nft.compare(nft.EQUAL, _ICMPV6)
                steps.append(nft.rule(self.table, chain, protocol, neighbours, control))
            udp = nft.load_meta(nft.META_TRANSPORT) + nft.compare(nft.EQUAL, _UDP)
            address = nft.load_header(nft.NETWORK, *_ADDRESSES[version])
            # The key of a map lies in registers of four octets, one after the other.
            udp_port = nft.load_header(nft.TRANSPORT, 2, 2, 8 + _ADDRESSES[version][1] // 4)
            steps.append(
                nft.rule(
                    self.table,
                    chain,
                    protocol,
                    udp,
                    address,
                    udp_port,
                    nft.look_up(_map(self.number, version)),
                )
            )
        self.socket.transact(steps)

    def close(self) -> None:
        """The hook goes with the port; what flows had is removed with their last policy."""
        chain = (text_attribute(1, self.table), text_attribute(3, f"port{self.number}"))
        try:
            self.socket.transact([nft.message(nft.DELETE_CHAIN, *chain)])
        except OSError:
            # It was never attached, or its interface has gone and taken it along.
            return


def _priority(queue: int) -> int:
    return OUR_HANDLE | QUEUE_MINOR + queue


def _map(port: int, version: int) -> str:
    return f"flows{port}v{version}"


def new_table(name: str) -> tuple[int, bytes]:
    return nft.message(nft.NEW_TABLE, text_attribute(1, name))


def delete_table(name: str) -> tuple[int, bytes]:
    return nft.message(nft.DELETE_TABLE, text_attribute(1, name))


def new_map(table: str, port: int, version: int) -> tuple[int, bytes]:
    return nft.message(
        nft.NEW_SET,
        *(text_attribute(1, table), text_attribute(2, _map(port, version))),
        # A map (8) from keys of this length to verdicts; its own number is for this transaction only.
        *(nft.number(3, 8), nft.number(4, 0), nft.number(5, _ADDRESSES[version][1] + 4)),
        *(nft.number(6, 0xFFFFFF00), nft.number(10, version)),
    )


def new_counter(table: str, name: str) -> tuple[int, bytes]:
    return nft.message(
        nft.NEW_OBJECT, text_attribute(1, table), text_attribute(2, name), nft.number(3, 1), nft.nested(4)
    )


def element(kind: int, table: str, port: int, packed: bytes, chain: str | None) -> tuple[int, bytes]:
    address, udp_port, _ = FLOW_KEY.unpack(packed)
    version = 4 if address.startswith(IPV4_MAPPED) else 6
    key = (address[12:] if version == 4 else address) + struct.pack("=HH", udp_port, 0)
    content = nft.nested(1, attribute(1, key))
    if chain is not None:
        content += nft.nested(2, nft.nested(2, nft.number(1, nft.GOTO), text_attribute(2, chain)))
    return nft.message(
        kind,
        *(text_attribute(1, table), text_attribute(2, _map(port, version))),
        nft.nested(3, nft.nested(1, content)),
    )


def flow_chain(table: str, chain: str, counter: int, queue: int, threshold: int) -> list[tuple[int, bytes]]:
    """Control messages, by the type after a length of one octet or three, pass; PUBLISH is counted and may drop out."""

    def octet(place: int, how: int, value: bytes) -> bytes:
        return nft.load_header(nft.TRANSPORT, 8 + place, 1) + nft.compare(how, value)

    control = nft.end_with_priority(_priority(CONTROL))
    steps = [
        nft.message(nft.NEW_CHAIN, text_attribute(1, table), text_attribute(3, chain)),
        nft.rule(table, chain, octet(0, nft.EQUAL, b"\1"), octet(3, nft.NOT_EQUAL, _PUBLISH), control),
        nft.rule(table, chain, octet(0, nft.NOT_EQUAL, b"\1"), octet(1, nft.NOT_EQUAL, _PUBLISH), control),
        nft.rule(table, chain, nft.count_in(f"c{counter}")),
    ]
    dropped = round(threshold / 2**32 * _STEPS)
    if dropped:
        chance = nft.load_random(_STEPS) + nft.compare(nft.LESS, struct.pack("!I", dropped))
        steps.append(nft.rule(table, chain, chance, nft.count_in(f"d{counter}"), nft.drop()))
    steps.append(nft.rule(table, chain, nft.end_with_priority(_priority(queue))))
    return steps
