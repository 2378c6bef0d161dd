"""The controller of the box's switches: `python -m triagemq.lab.emulate.openflow_agent CONFIG.json`.

It follows the gateway and keeps rules on the switches; the kernel's queues are another process's.
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

from triagemq.channel.link import GatewayLink
from triagemq.child import run_child, say_ready
from triagemq.gateway.binder import Follower
from triagemq.lab.emulate.copying import idle_instructions
from triagemq.network.openflow import OpenFlowSwitches, SwitchCounters
from triagemq.waiting import end, is_set_within

_LOOK_SECONDS, _LOOKS_A_COUNT = 0.1, 5


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The gateway's control socket, where switches meet the controller, and their numbers.

    `applied` is a file for the generation of which all flows have their rules on the switches; 0 while some have none.
    `ports` says at which switch and interface each output port is; `reserved` are those that carry promised messages
    alone. What an idle port takes is measured at one of `idle_bps`. `limited` is a file for how many packets meters
    have cut, by address.
    """

    control: str
    listen: str
    switches: list[int]
    applied: str
    ports: dict[str, tuple[int, str]] = field(default_factory=dict)
    reserved: list[tuple[int, str]] = field(default_factory=list)
    idle_bps: float | None = None
    limited: str | None = None


async def _run(config: AgentConfig, ended: asyncio.Event) -> None:
    switches = await asyncio.to_thread(
        lambda: OpenFlowSwitches(
            config.switches,
            listen=[config.listen],
            ports=config.ports,
            reserved=[(switch, interface) for switch, interface in config.reserved],
            keep_rules=True,
        )
    )
    try:
        await asyncio.to_thread(switches.wait_until_ready)
        if config.idle_bps is not None:
            await asyncio.to_thread(switches.apply, idle_instructions(config.idle_bps))
        link = GatewayLink(config.control)
        link.start()
        follower = Follower(link, switches, name="switches", in_thread=True)
        following = asyncio.get_running_loop().create_task(follower.run())
        say_ready(switches=sorted(switches.connected))
        limited, looks = LimitedPackets(), 0
        while not await is_set_within(ended, _LOOK_SECONDS):
            Path(config.applied).write_text("0" if follower.problem else str(follower.applied))
            looks += 1
            if config.limited is not None and looks % _LOOKS_A_COUNT == 0:
                limited.add(_limited(await asyncio.to_thread(switches.counters)))
        await end(following)
        await link.close()
        if config.limited is not None:
            limited.add(_limited(await asyncio.to_thread(switches.counters)))
            Path(config.limited).write_text(json.dumps(limited.packets))
    finally:
        await asyncio.to_thread(switches.close)


class LimitedPackets:
    """What meters have cut since the start, by address: a meter's count goes with its rule, and so does a promise's
    rule when it ends.

    >>> limited = LimitedPackets()
    >>> for counted in ({"239.1.2.3:7400": 5}, {}, {"239.1.2.3:7400": 2}):
    ...     limited.add(counted)
    >>> limited.packets
    {'239.1.2.3:7400': 7}
    """

    def __init__(self) -> None:
        self._before: Counter[str] = Counter()
        self._last: Mapping[str, int] = {}

    def add(self, counted: Mapping[str, int]) -> None:
        """What the meters that are there have counted."""
        for address, packets in self._last.items():
            if counted.get(address, 0) < packets:
                self._before[address] += packets
        self._last = counted

    @property
    def packets(self) -> dict[str, int]:
        return dict(self._before + Counter(self._last))


def _limited(counted: Mapping[int, SwitchCounters]) -> dict[str, int]:
    """By address, what meters have cut where it enters."""
    found: Counter[str] = Counter()
    for switch in counted.values():
        for key, flow in switch.flows.items():
            found[str(key)] += flow.limited
    return {address: packets for address, packets in found.items() if packets}


def main() -> int:
    """Run until SIGTERM; the exit code."""
    return run_child("triagemq.lab.emulate.openflow_agent", AgentConfig, _run)


if __name__ == "__main__":
    sys.exit(main())
