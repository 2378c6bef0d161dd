"""The controller of the box's switches: `python -m triagemq.live.emulate.openflow_agent CONFIG.json`.

It follows the gateway and keeps rules on the switches; queues and drops are the kernel's, which somebody else sees to.
Killed at any moment, it leaves the rules where they are; started again, it reads them and changes what differs.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from triagemq.child import run_child, say_ready
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.gateway.binder import FlowBinder
from triagemq.coordinator.gateway.follower import Follower
from triagemq.network.openflow import OpenFlowSwitches
from triagemq.waiting import end, is_set_within

_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The gateway's control socket, where switches meet the controller, their numbers, and the gateways' addresses.

    `applied` is a file for the generation of which all flows have their rules on the switches; 0 while some have none.
    """

    control: str
    listen: str
    switches: list[int]
    sources: list[str]
    applied: str


async def _run(config: AgentConfig, ended: asyncio.Event) -> None:
    switches = await asyncio.to_thread(
        lambda: OpenFlowSwitches(
            config.switches, listen=[config.listen], sources=config.sources, keep_rules=True
        )
    )
    try:
        await asyncio.to_thread(switches.wait_until_ready)
        link = GatewayLink(config.control)
        link.start()
        follower = Follower(link, FlowBinder(switches), name="switches", in_thread=True)
        following = asyncio.get_running_loop().create_task(follower.run())
        say_ready(switches=sorted(switches.connected))
        while not await is_set_within(ended, _LOOK_SECONDS):
            # A subscriber that no switch has seen has no rules yet.
            Path(config.applied).write_text("0" if switches.unplaced else str(follower.complete))
        await end(following)
        await link.close()
    finally:
        await asyncio.to_thread(switches.close)


def main() -> int:
    """Run until told to end; the exit code."""
    return run_child("triagemq.live.emulate.openflow_agent", AgentConfig, _run)


if __name__ == "__main__":
    sys.exit(main())
