"""A data plane behind a real gateway carries out every stage of a change, and none is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.coordinator.coordinating import running
from tests.coordinator.managed import ManagedProcess
from tests.coordinator.promising import publisher, subscriber, ward
from tests.gateway.real import Mosquitto, ended
from tests.network.recorded import RecordedDataPlane

from triagemq.broker.process import find_mosquitto
from triagemq.channel.link import GatewayLink
from triagemq.gateway.binder import Follower
from triagemq.intents import PublisherIntent
from triagemq.plan.dataplane import Instruction
from triagemq.waiting import end

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


class Remembering(RecordedDataPlane):
    """Knows which promised flows there were after each change."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[dict[str, int]] = [{}]

    def apply(self, instructions: Sequence[Instruction]) -> None:
        super().apply(instructions)
        now = {f"{key} {port}": flow.priority_class for (key, port), flow in self.state.flows.items()}
        if now != self.history[-1]:
            self.history.append(now)


def test_stages_reach_a_follower_one_by_one(tmp_path: Path) -> None:
    intents = (
        publisher("ecg", "pulse"),
        subscriber("nurse", "pulse", 0.02),
        publisher("alarm", "fire"),
        subscriber("doctor", "fire", 0.0064),
    )

    async def scene(gateway: ManagedProcess) -> None:
        plane = Remembering()
        link = GatewayLink(gateway.socket)
        link.start()
        follower = Follower(link, plane)
        following = asyncio.get_running_loop().create_task(follower.run())
        try:
            async with running(tmp_path, gateway=gateway.socket, network=ward()) as here:
                await here.until(lambda: follower.applied > 0)
                wanted: list[dict[str, int]] = [{}]
                for intent in intents:
                    kind = "publishers" if isinstance(intent, PublisherIntent) else "subscribers"
                    await here.client.put(f"/v1/{kind}/{intent.name}", json=intent.as_json())
                    await here.settled()
                    decided = here.coordinator.runtime.decided
                    assert decided is not None
                    for stage in decided.stages:
                        levels = {name: copy.priority_class for name, copy in stage.copies.items()}
                        if levels != wanted[-1]:
                            wanted.append(levels)
                await here.until(lambda: follower.applied == here.coordinator.runtime.generation)
                assert len(wanted) >= 6
                assert plane.history == wanted
        finally:
            await end(following)
            await link.close()

    broker = Mosquitto(tmp_path / "broker")
    with ended(broker):
        gateway = ManagedProcess(tmp_path / "gateway", broker.url, dataplane="reported")
        with ended(gateway):
            asyncio.run(scene(gateway))
