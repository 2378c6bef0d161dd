"""Run as a program: switches that follow given flows, until it is killed.

    controller_process.py PLACE SWITCH,SWITCH,... SOURCE ADDRESS PORT,PORT,...

Prints a line of JSON when hosts are known and the plan is applied, then one whenever it is asked by a line.
"""

from __future__ import annotations

import json
import sys
import time

from triagemq.network.openflow import OpenFlowSwitches
from triagemq.plan import FlowKey, SetFlow, SetPort


def main(place: str, switches: str, source: str, address: str, ports: str) -> None:
    plane = OpenFlowSwitches([int(each) for each in switches.split(",")], listen=[place], sources=[source])
    keys = [FlowKey(address, int(port)) for port in ports.split(",")]
    flows = [SetFlow(key, "radio", number, number, 0.0) for number, key in enumerate(keys)]
    plane.apply([SetPort("radio", 1e6, 100, 7), *flows])
    while source not in plane.network.hosts or address not in plane.network.hosts:
        time.sleep(0.02)
    # The network is known a moment before the switches have their rules for it; a change comes after those.
    plane.apply([])
    while True:
        print(json.dumps(dict(plane.changes)), flush=True)
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
