"""The gateway's sockets: one address, two send buffers, and nobody else there."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from triagemq.errors import GatewayError
from triagemq.exchange.listening import bind_udp, control_socket, received


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_control_leaves_from_the_same_address_and_everything_comes_to_the_first_socket(host: str) -> None:
    with closing(bind_udp(host, 0)) as first:
        second = control_socket(first)
        assert second is not None
        port = first.getsockname()[1]
        with second, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(20.0)
            client.bind(("127.0.0.1", 0))
            there = client.getsockname()
            second.sendto(b"control", there if host == "127.0.0.1" else (f"::ffff:{there[0]}", there[1]))
            assert client.recvfrom(100) == (b"control", ("127.0.0.1", port))
            # From many ports: without a choice the kernel would spread them over both sockets.
            for _ in range(100):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                    stranger.sendto(b"x", ("127.0.0.1", port))
            assert len(list(received(first))) == 100
            with pytest.raises(BlockingIOError):
                second.recv(1)


def test_a_second_gateway_is_refused_the_address() -> None:
    with closing(bind_udp("127.0.0.1", 0)) as first:
        second = control_socket(first)
        assert second is not None
        with second, pytest.raises(GatewayError, match="in use"):
            bind_udp("127.0.0.1", first.getsockname()[1])
