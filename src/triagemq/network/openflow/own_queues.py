"""Queues of switches that have some of their own, made in the switch's database (OVSDB): nothing queues behind them.

A port gets a QoS of type linux-htb with nine queues, by number:

0     what nobody has ranked: packets for which no rule chooses a queue come here, and are served last
1     control, first of all; it may use a quarter of the bandwidth, because a mark is all that it is known by
2...  the priority classes, class c in queue 2 + c

`ovs-vsctl` writes all rows of a port in one transaction. They bear our mark: a new process finds those of one that was
killed and changes them in their place, and a QoS of somebody else is left alone. How many packets a queue holds is the
switch's business: OVSDB has no word for it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from os import environ

from triagemq.errors import PlanError
from triagemq.plan import SetPort
from triagemq.programs import search_path

FOREIGN_QUEUE, CONTROL_QUEUE = 0, 1
CONTROL_SHARE = 1 / 4
_CLASSES = 7
_MARK = "external_ids:triagemq"
_FASTEST_BPS = 1e11
_SECONDS = 20


def class_queue(priority_class: int) -> int:
    """The number of a class's queue.

    >>> class_queue(0), class_queue(6)
    (2, 8)
    """
    return 2 + priority_class


class OwnQueues:
    """`databases` has the address ("tcp:10.0.0.1:6640", "unix:/path") of each switch with queues, by datapath id."""

    def __init__(self, databases: Mapping[int, str], ports: Mapping[str, tuple[int, str]]) -> None:
        self._at = {
            name: (databases[switch], interface)
            for name, (switch, interface) in ports.items()
            if switch in databases
        }
        self._there: dict[str, SetPort] = {}

    def __contains__(self, port: object) -> bool:
        """Whether a port of the plan is at such a switch."""
        return port in self._at

    def set(self, port: SetPort, undo: list[Callable[[], None]]) -> None:
        """Make the queues of a port, or give them its bandwidth."""
        before = self._there.get(port.port)
        if before == port:
            return
        if port.widths_bps:
            raise PlanError(
                f"port {port.port!r} has queues with widths, and is at a switch with queues of its own, which serve by "
                "priority; write discipline: priority there"
            )
        undo.append(partial(self.remove, port.port) if before is None else partial(self.set, before, []))
        self._write(port)
        self._there[port.port] = port

    def remove(self, port: str) -> None:
        """Take the queues of a port away; what they hold is lost."""
        database, interface = self._at[port]
        qos, queues = self._rows(database, interface)
        if qos:
            words = ["clear", "Port", interface, "qos", "--", "destroy", "QoS", qos]
            for queue in queues:
                words += ["--", "destroy", "Queue", queue]
            _configure(database, *words)
        self._there.pop(port, None)

    def close(self) -> None:
        """Take all away."""
        for port in list(self._there):
            self.remove(port)

    def _write(self, port: SetPort) -> None:
        database, interface = self._at[port.port]
        rate = round(min(port.bandwidth_bps, _FASTEST_BPS))
        qos, queues = self._rows(database, interface)
        if qos:
            words = ["set", "QoS", qos, f"other_config:max-rate={rate}"]
            for number, queue in enumerate(queues):
                words += ["--", "set", "Queue", queue, f"other_config:max-rate={_most(number, rate)}"]
        else:
            named = _configure(database, "get", "Port", interface, "qos").strip()
            if named != "[]":
                raise PlanError(
                    f"port {interface} has a QoS that is not ours; take it away: ovs-vsctl clear port"
                )
            words = ["set", "Port", interface, "qos=@qos"]
            words += ["--", "--id=@qos", "create", "QoS", "type=linux-htb", f"{_MARK}={interface}"]
            words += [f"other_config:max-rate={rate}"]
            words += [f"queues:{number}=@queue{number}" for number in range(2 + _CLASSES)]
            for number in range(2 + _CLASSES):
                words += ["--", f"--id=@queue{number}", "create", "Queue", f"{_MARK}={interface}"]
                words += [f"other_config:priority={_priority(number)}"]
                words += [f"other_config:max-rate={_most(number, rate)}"]
        _configure(database, *words)

    def _rows(self, database: str, interface: str) -> tuple[str, list[str]]:
        """Our QoS of an interface ("" if there is none), and its queues by number."""
        qos = _configure(database, "--bare", "--columns=_uuid", "find", "QoS", f"{_MARK}={interface}").strip()
        if not qos:
            return "", []
        words = [
            word for number in range(2 + _CLASSES) for word in ("--", "get", "QoS", qos, f"queues:{number}")
        ]
        return qos, _configure(database, *words[1:]).split()


def _priority(queue: int) -> int:
    """Lower is served first; HTB has eight, so that the lowest class shares its with what nobody has ranked."""
    return _CLASSES if queue == FOREIGN_QUEUE else queue - 1


def _most(queue: int, rate: int) -> int:
    return max(1, round(rate * CONTROL_SHARE)) if queue == CONTROL_QUEUE else rate


def _configure(database: str, *words: str) -> str:
    command = ["ovs-vsctl", f"--db={database}", f"--timeout={_SECONDS}", *words]
    try:
        done = subprocess.run(
            command, env={**environ, "PATH": search_path()}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise PlanError(
            "a switch with queues of its own needs ovs-vsctl here; install it: apt install openvswitch-common"
        ) from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise PlanError(f"the queues were not made in the switch's database {database}: {said}")
    return done.stdout
