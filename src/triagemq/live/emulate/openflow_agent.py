"""The controller of the box's switches: `python -m triagemq.live.emulate.openflow_agent CONFIG.json`.

It follows the gateway and keeps rules on the switches; queues and drops are the kernel's, which somebody else sees to.
Killed at any moment, it leaves the rules where they are; started again, it reads them and changes what differs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from triagemq.child import run_child, say_ready
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.gateway.binder import FlowBinder
from triagemq.coordinator.gateway.follower import Follower
from triagemq.live.emulate.copying import idle_instructions
from triagemq.network.openflow import OpenFlowSwitches, SwitchCounters
from triagemq.waiting import end, is_set_within

_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The gateway's control socket, where switches meet the controller, their numbers, and the gateways' addresses.

    `applied` is a file for the generation of which all flows have their rules on the switches; 0 while some have none.
    `ports` says at which switch and interface each output port is. What an idle port takes is measured at one of
    `idle_bps`. `limited` is a file for how many packets meters have cut, by address.
    """

    control: str
    listen: str
    switches: list[int]
    sources: list[str]
    applied: str
    ports: dict[str, tuple[int, str]] = field(default_factory=dict)
    idle_bps: float | None = None
    limited: str | None = None


async def _run(config: AgentConfig, ended: asyncio.Event) -> None:
    switches = await asyncio.to_thread(
        lambda: OpenFlowSwitches(
            config.switches,
            listen=[config.listen],
            sources=config.sources,
            ports=config.ports,
            keep_rules=True,
        )
    )
    try:
        await asyncio.to_thread(switches.wait_until_ready)
        if config.idle_bps is not None:
            await asyncio.to_thread(switches.apply, idle_instructions(config.idle_bps))
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
        if config.limited is not None:
            counted = await asyncio.to_thread(switches.counters)
            Path(config.limited).write_text(json.dumps(_limited(counted)))
    finally:
        await asyncio.to_thread(switches.close)


def _limited(counted: Mapping[int, SwitchCounters]) -> dict[str, int]:
    """By address, what meters have cut where it enters."""
    found: Counter[str] = Counter()
    for switch in counted.values():
        for key, flow in switch.flows.items():
            found[str(key)] += flow.limited
    return {address: packets for address, packets in found.items() if packets}


def main() -> int:
    """Run until told to end; the exit code."""
    return run_child("triagemq.live.emulate.openflow_agent", AgentConfig, _run)


if __name__ == "__main__":
    sys.exit(main())
