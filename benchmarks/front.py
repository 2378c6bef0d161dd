"""The same Paho subscribers at Mosquitto and at the front of a gateway: what arrives, when, and what it costs.

The building fire of benchmarks/peers.py in namespaces with shaped links, in one run with the same events: the utility
captured, success and latency of the critical class, and the processors' time of all processes for each delivery. The
copies of MQTT-SN subscribers, by TriageMQ in the gateway, stand beside them. Needs root, Mosquitto and Paho.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import finish, machine, options
from peer_programs.contenders import CONTENDERS, INSTALL
from peers import DRAINING_SECONDS, SECONDS_OF, Comparison
from triagemq.errors import TriageError
from triagemq.lab.emulate.boxed import require_machine
from triagemq.plain import plain

COMPARED = ("mosquitto-qos0", "front-qos0", "mosquitto-qos1", "front-qos1", "triage-embedded")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", choices=COMPARED, help="one of them; may be repeated")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    chosen = arguments.only or list(COMPARED)
    missing = sorted({each for name in chosen for each in CONTENDERS[name].missing})
    if missing:
        sys.exit(f"error: no {', '.join(missing)}; to install: {INSTALL}")
    rows: dict[str, dict[str, Any]] = {}
    try:
        require_machine("linux")
        with tempfile.TemporaryDirectory(prefix="front-") as folder:
            comparison = Comparison(
                SECONDS_OF[arguments.quick], DRAINING_SECONDS[arguments.quick], Path(folder)
            )
            for name in chosen:
                print(f"{CONTENDERS[name].title} ...", file=sys.stderr, flush=True)
                row = rows[name] = comparison.run(name)
                seconds = row["processors"] * comparison.facts["seconds"]
                row["processor_seconds_per_delivery"] = seconds / max(1, row["delivered"])
    except (TriageError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing was left behind")
    found = {"machine": machine("triagemq", "paho-mqtt"), **comparison.facts, "contenders": rows}
    finish(plain(found), described(found), as_json=arguments.json)


def described(found: dict[str, Any]) -> list[str]:
    """A line for each."""
    lines = [
        f"{found['scenario']}: {found['seconds']:g} s, {found['events']} events, the same for all",
        f"{'':30}{'utility':>9}{'critical':>10}{'p50':>10}{'p95':>10}{'lowest':>9}{'CPU/delivery':>15}",
    ]
    for row in found["contenders"].values():
        first, last = row["classes"][0], row["classes"][-1]
        p50, p95 = (_milliseconds(first[f"{each}_seconds"]) for each in ("p50", "p95"))
        lines.append(
            f"{row['title']:30}{row['utility']['rate']:9.1%}{first['success_rate']:10.1%}{p50:>10}{p95:>10}"
            f"{last['success_rate']:9.1%}{1e6 * row['processor_seconds_per_delivery']:12.0f} us"
        )
    return lines


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    main()
