"""Run as a program: switches that copy topics to given ports, until it is killed.

    controller_process.py PLACE SWITCH/PORT,SWITCH/PORT,... HOST,HOST,... GROUP UDP_PORT,UDP_PORT,...

Prints a line of JSON when the hosts are known and the plan is applied, then one whenever it is asked by a line.
"""

from __future__ import annotations

import json
import sys
import time

from triagemq.network.openflow import OpenFlowSwitches
from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort


def main(place: str, ports: str, hosts: str, group: str, udp_ports: str) -> None:
    places = {each: (int(each.partition("/")[0]), each.partition("/")[2]) for each in ports.split(",")}
    plane = OpenFlowSwitches({switch for switch, _ in places.values()}, listen=[place], ports=places)
    keys = [FlowKey(group, int(port)) for port in udp_ports.split(",")]
    flows = [SetFlow(key, name, number, number, 0.0) for number, key in enumerate(keys) for name in places]
    plane.apply([*(SetPort(name, 1e6, 100, 7) for name in places), *flows])
    while not set(hosts.split(",")) <= plane.network.hosts.keys():
        time.sleep(0.02)
    # The network is known a moment before the switches have their rules for it; a change comes after those.
    plane.apply([])
    while True:
        print(json.dumps(dict(plane.changes)), flush=True)
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
