"""The controller of the box's switches: `python -m triagemq.live.emulate.openflow_agent CONFIG.json`.

It follows the gateway and keeps rules on the switches; queues and drops are the kernel's, which somebody else sees to.
Killed at any moment, it leaves the rules where they are; started again, it reads them and changes what differs.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.gateway.binder import FlowBinder
from triagemq.coordinator.gateway.follower import Follower
from triagemq.errors import TriageError
from triagemq.network.openflow import OpenFlowSwitches

__all__ = ["AgentConfig", "main"]


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The gateway's control socket, where switches meet the controller, their numbers, and the gateways' addresses.

    `applied` is a file for the generation whose rules are on the switches.
    """

    control: str
    listen: str
    switches: list[int]
    sources: list[str]
    applied: str


async def _run(config: AgentConfig) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    switches = await asyncio.to_thread(
        lambda: OpenFlowSwitches(
            config.switches, listen=[config.listen], sources=config.sources, keep_rules=True
        )
    )
    try:
        await asyncio.to_thread(switches.wait_until_ready)
        link = GatewayLink(config.control)
        link.start()
        follower = Follower(
            link, FlowBinder(switches), in_thread=True, on_applied=Path(config.applied).write_text
        )
        following = loop.create_task(follower.run())
        print(json.dumps({"ready": True, "switches": sorted(switches.connected)}), flush=True)
        await ended.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await link.close()
    finally:
        await asyncio.to_thread(switches.close)


def main() -> int:
    """Run until told to end; the exit code."""
    try:
        asyncio.run(_run(AgentConfig(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
    except TriageError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
