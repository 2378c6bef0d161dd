"""The gateway's socket: its address is its own."""

from __future__ import annotations

from contextlib import closing

import pytest

from triagemq.errors import GatewayError
from triagemq.gateway.sockets import bind_udp


def test_a_second_gateway_is_refused_the_address() -> None:
    with closing(bind_udp("127.0.0.1", 0)) as first, pytest.raises(GatewayError, match="in use"):
        bind_udp("127.0.0.1", first.getsockname()[1])
