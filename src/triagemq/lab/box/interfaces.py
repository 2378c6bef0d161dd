"""The interfaces of a box: commands of iproute2 that make and change them, many at a time, and what they need."""

from __future__ import annotations

import array
import fcntl
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Collection, Iterable
from typing import Any, Literal

from triagemq.errors import NetworkError
from triagemq.lab.box.layout import ETHERNET_MTU, End
from triagemq.processes import dying_with_parent
from triagemq.programs import search_path

Program = Literal["ip", "bridge", "tc"]

_LLDP = 1 << 14
"""Bit of the bridge's mask for 01:80:c2:00:00:0e: LLDP passes, so that a controller finds links through it."""
_MOMENT, _HOUR = 10, 360_000
"""In hundredths of a second. Members read less than ten as none, and wait for ten seconds."""
_FIFO_BYTES = 4 * 1024 * 1024
_FRAME_BYTES = 1600

_MOST_SECONDS = 30.0

_ETHTOOL = 0x8946
_SEND_CHECKSUM, _SEGMENTATION, _GENERIC_SEGMENTATION, _GENERIC_RECEIVE = 0x17, 0x1F, 0x24, 0x2C


def run_commands(
    namespace: str, program: Program, commands: Iterable[str], *, harmless: Collection[str] = ()
) -> None:
    """Carry out commands in order, by one process; NetworkError names the first that fails, and ends it.

    A command that fails with one of the `harmless` reasons has nothing to do any more.
    """
    lines = list(commands)
    if not lines:
        return
    done = _run(namespace, program, "-batch", "-", text="\n".join(lines) + "\n")
    if done.returncode and not any(reason in done.stderr for reason in harmless):
        *reasons, place = done.stderr.strip().splitlines() or [""]
        number = place.rpartition(":")[2]
        command = lines[int(number) - 1] if number.isdecimal() else lines[0]
        raise NetworkError(f"{program} {command}: {' '.join(reasons) or place}")


def _run(namespace: str, program: Program, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [program, "-netns", namespace, *words],
            input=text,
            env={**os.environ, "PATH": search_path()},
            capture_output=True,
            text=True,
            check=False,
            # Ctrl-C while a box is built takes effect afterwards.
            start_new_session=True,
            # What it makes after a kill nothing would remove.
            preexec_fn=dying_with_parent(),
        )
    except FileNotFoundError:
        raise NetworkError(
            f"{program} is not on this machine; install it with: apt install iproute2"
        ) from None


def add_bridge(name: str, index: int, mac: str, *, passes_lldp: bool, knows_groups: bool = False) -> str:
    """One that `knows_groups` sends what is for a multicast group to its members alone."""
    command = f"link add name {name} index {index} address {mac} up type bridge stp_state 0 ageing_time 0"
    command += f" mcast_snooping {int(knows_groups)}"
    if knows_groups:
        command += f" mcast_router 0 mcast_query_interval {_HOUR} mcast_query_response_interval {_MOMENT}"
    return f"{command} group_fwd_mask {_LLDP}" if passes_lldp else command


def go_by_groups(name: str) -> str:
    """A bridge follows its groups only where a querier is present: itself."""
    return f"link set dev {name} type bridge mcast_querier 1"


def add_veth(near: End, far: End, *, far_namespace: str | None = None, mtu_bytes: int = ETHERNET_MTU) -> str:
    """A pair of interfaces; the far one in another namespace, if given."""

    def described(end: End) -> str:
        return f"name {end.interface} index {end.index} address {end.mac} mtu {mtu_bytes}"

    command = f"link add {described(near)} type veth peer {described(far)}"
    return command if far_namespace is None else f"{command} netns {far_namespace}"


def set_link(name: str, *, up: bool, master: str | None = None) -> str:
    command = f"link set dev {name} {'up' if up else 'down'}"
    return command if master is None else f"{command} master {master}"


def set_member(name: str, *, floods_unknown: bool, floods_broadcast: bool, knows_groups: bool = False) -> str:
    """How a bridge treats a member: it never learns from it, and floods to it what it is allowed to."""
    flags = {
        "learning": False,
        "flood": floods_unknown,
        "mcast_flood": floods_broadcast and not knows_groups,
        "bcast_flood": floods_broadcast,
    }
    settings = " ".join(f"{flag} {'on' if value else 'off'}" for flag, value in flags.items())
    return f"link set dev {name} type bridge_slave {settings}{' mcast_router 0' if knows_groups else ''}"


def add_address(name: str, address: str, prefix: int) -> str:
    return f"address add {address}/{prefix} dev {name}{' nodad' if ':' in address else ''}"


def neighbour(name: str, address: str, mac: str) -> str:
    """Who has an address, for good: no ARP on the wire, and so no lost answer."""
    return f"neighbour replace {address} lladdr {mac} dev {name} nud permanent"


def add_fifo(name: str, bandwidth_bps: float, lateness_seconds: float = 0.0) -> str:
    """A token bucket of one frame before a long FIFO: what an unmanaged switch does to its traffic.

    Timers ring late: the bucket holds what is sent in `lateness_seconds` more, which makes up for it.
    """
    rate = max(1, round(bandwidth_bps / 8))
    burst = _FRAME_BYTES + round(rate * lateness_seconds)
    return f"qdisc add dev {name} root handle 1: tbf rate {8 * rate}bit burst {burst}b limit {_FIFO_BYTES}b"


def await_links(namespace: str, members: Collection[str], others: Collection[str]) -> None:
    """Until bridges forward to their members, and the other interfaces are up.

    The kernel notices some time after the call that both ends of a link are up.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    while True:
        links = {each["ifname"]: each for each in _links(namespace)}
        slow = [name for name in members if _member_state(links[name]) != "forwarding"]
        slow += [name for name in (*members, *others) if links[name]["operstate"] != "UP"]
        if not slow:
            return
        if time.monotonic() > deadline:
            raise NetworkError(f"the link of {slow[0]} did not come up in {_MOST_SECONDS:g} seconds")
        time.sleep(0.005)


def _links(namespace: str) -> list[dict[str, Any]]:
    shown = _run(namespace, "ip", "-json", "-details", "link", "show")
    if shown.returncode:
        raise NetworkError(f"the links of {namespace} cannot be seen: {shown.stderr.strip()}")
    found: list[dict[str, Any]] = json.loads(shown.stdout)
    return found


def _member_state(link: dict[str, Any]) -> str | None:
    state: str | None = link.get("linkinfo", {}).get("info_slave_data", {}).get("state")
    return state


def switch_offloads_off(interface: str) -> None:
    """Switch off, at an interface of the present namespace, what virtual links only pretend to do for the kernel.

    A frame without its checksum, or one of 64 kB that stands for forty, is fine between two kernels; Open vSwitch drops
    the former, and queues that count packets would be wrong by the latter.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        for offload in (_SEND_CHECKSUM, _SEGMENTATION, _GENERIC_SEGMENTATION, _GENERIC_RECEIVE):
            value = array.array("I", [offload, 0])
            request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
            try:
                fcntl.ioctl(channel.fileno(), _ETHTOOL, request)
            except OSError as error:
                raise NetworkError(f"the offloads of {interface} cannot be set: {error.strerror}") from None
