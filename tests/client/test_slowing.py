"""Publishers that are asked to slow down: they wait, leave out or go on, and are told when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.client.fake_coordinator import FakeCoordinator
from tests.client.loopback import QUICK, gateway_with_broker, until

from triagemq.broker.process import find_mosquitto
from triagemq.client import Publisher
from triagemq.client.publisher import TopicRates
from triagemq.errors import ParameterError


def test_events_wait_for_their_turn_in_the_order_in_which_they_came() -> None:
    async def scene() -> None:
        rates, went = TopicRates("wait", None), list[tuple[int, float]]()
        loop = asyncio.get_running_loop()

        async def publish(number: int) -> None:
            assert await rates.turn("smoke")
            went.append((number, loop.time()))

        rates.request({"smoke": 50.0})
        await asyncio.gather(*map(publish, range(6)))
        assert [number for number, _ in went] == [*range(6)]
        # Six events have five gaps between them, and one may come early.
        assert went[-1][1] - went[0][1] >= 4 / 50
        assert await rates.turn("other")
        assert rates.skipped == 0

    asyncio.run(scene())


def test_who_waits_goes_on_at_once_when_the_request_is_taken_back() -> None:
    async def scene() -> None:
        rates = TopicRates("wait", None)
        rates.request({"smoke": 1e-3})
        assert await rates.turn("smoke")
        waiting = asyncio.ensure_future(rates.turn("smoke"))
        await asyncio.sleep(0)
        assert not waiting.done()
        rates.request({})
        assert await waiting

    asyncio.run(scene())


def test_what_comes_too_early_is_left_out_or_goes_all_the_same() -> None:
    async def scene() -> None:
        skipping, ignoring = TopicRates("skip", None), TopicRates("ignore", None)
        for rates in (skipping, ignoring):
            rates.request({"smoke": 1e-3})
        assert [await skipping.turn("smoke") for _ in range(5)] == [True, False, False, False, False]
        assert skipping.skipped == 4
        assert all([await ignoring.turn("smoke") for _ in range(5)])
        assert ignoring.skipped == 0

    asyncio.run(scene())
    with pytest.raises(ParameterError, match="slow_down: is 'later'; it is one of wait, skip, ignore"):
        TopicRates("later", None)


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_a_publisher_hears_with_its_heartbeats_what_it_is_to_publish_less_often(tmp_path: Path) -> None:
    heard: list[Mapping[str, float]] = []

    def hear(rates: Mapping[str, float]) -> None:
        heard.append(rates)
        raise RuntimeError("a mistake in a callback is nobody else's")

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with (
            gateway_with_broker(tmp_path) as gateway,
            FakeCoordinator("{}:{}".format(*gateway.address)) as coordinator,
            Publisher(
                coordinator.url, name="pump", settings=QUICK, on_slow_down=hear, slow_down="skip"
            ) as publisher,
        ):
            assert await publisher.publish("floor/1", b"as it comes")
            coordinator.slow_down = {"floor/1": 1e-3}
            await until(lambda: heard == [{"floor/1": 1e-3}])
            assert publisher.requested_rates == {"floor/1": 1e-3}
            assert await publisher.publish("floor/1", b"the first has its turn", qos=1)
            assert not await publisher.publish("floor/1", b"too early", qos=1)
            assert await publisher.publish("floor/2", b"another topic", qos=1)
            assert (publisher.skipped, publisher.counters.published) == (1, 3)
            coordinator.slow_down = {}
            await until(lambda: heard[1:] == [{}])
            assert await publisher.publish("floor/1", b"as it comes", qos=1)

    asyncio.run(scene())
