"""Run as a program: switches that follow a gateway, until it is killed.

switches_process.py LISTEN CONTROL PORTS-AS-JSON
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from triagemq.channel.link import GatewayLink
from triagemq.gateway.binder import Follower
from triagemq.network.openflow import OpenFlowSwitches


async def follow(listen: str, control: str, ports: str) -> None:
    where = {name: (switch, interface) for name, (switch, interface) in json.loads(ports).items()}
    numbers = sorted({switch for switch, _ in where.values()})
    switches = OpenFlowSwitches(numbers, listen=[listen], ports=where, keep_rules=True)
    await asyncio.to_thread(switches.wait_until_ready)
    link = GatewayLink(Path(control))
    link.start()
    print(json.dumps({"ready": True}), flush=True)
    await Follower(link, switches, name="switches", in_thread=True).run()


if __name__ == "__main__":
    asyncio.run(follow(*sys.argv[1:]))
