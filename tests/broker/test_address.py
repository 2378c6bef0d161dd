"""Addresses of brokers."""

from __future__ import annotations

import pytest

from triagemq.broker import BrokerAddress
from triagemq.errors import ParameterError


def test_addresses_say_what_is_wrong_with_them() -> None:
    assert str(BrokerAddress.parse("mqtt://u:p%40ss@host:77")) == "mqtt://host:77"
    assert BrokerAddress.parse("mqtt://u:p%40ss@host:77").password == "p@ss"
    for url in ("host:1883", "mqtt://", "mqtt://host/topic", "mqtt://host:x", "mqtts://host?colour=red"):
        with pytest.raises(ParameterError, match="broker"):
            BrokerAddress.parse(url)
    with pytest.raises(ParameterError, match="TLS cannot use /nowhere: No such file"):
        BrokerAddress.parse("mqtts://host?ca=/nowhere").ssl_context()
