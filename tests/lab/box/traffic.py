"""Real datagrams between the hosts of a box."""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing
from pathlib import Path

from triagemq.lab.box import Host
from triagemq.network.linux.netlink import NAMESPACE_DIRECTORY, in_namespace

PORT = 7000


def udp_socket(host: Host, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    """A socket inside a host, bound to its address."""
    channel = in_namespace(host.namespace, lambda: socket.socket(family, socket.SOCK_DGRAM))
    channel.bind((host.ipv6 if family == socket.AF_INET6 else host.ipv4, PORT))
    channel.settimeout(20)
    return channel


def arrives(
    source: Host, target: Host, family: socket.AddressFamily = socket.AF_INET, wait: float = 20
) -> bool:
    """Whether one datagram, sent once, arrives."""
    with closing(udp_socket(source, family)) as sender, closing(udp_socket(target, family)) as receiver:
        receiver.settimeout(wait)
        content = os.urandom(100)
        sender.sendto(content, receiver.getsockname()[:2])
        try:
            return receiver.recv(200) == content
        except TimeoutError:
            return False


def traces_of(run: str) -> list[str]:
    """The namespaces of a run that are still there."""
    if not NAMESPACE_DIRECTORY.is_dir():
        return []
    return sorted(name for name in os.listdir(NAMESPACE_DIRECTORY) if name.startswith(f"tq{run}-"))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(check: object, seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return bool(check())  # type: ignore[operator]
