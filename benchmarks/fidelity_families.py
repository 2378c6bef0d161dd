"""Families of random scenarios, each a kind of situation that a forecast may get wrong.

A family draws one scenario file and one choice of planner from a random stream. Files are drawn as documents (what a
user writes), so that a scenario that is found to be off can be saved, shown and planned like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FAMILIES", "Drawn", "Family"]

Document = dict[str, Any]
Random = np.random.Generator


@dataclass(frozen=True, slots=True)
class Drawn:
    """A scenario file, and how it is planned."""

    document: Document
    planner: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """How its scenarios are drawn; whether every stream is Poisson; what share of it may be flagged."""

    title: str
    draw: Callable[[Random], Drawn]
    poisson: bool = True
    most_flagged: float = 0.15


def basic(
    random: Random,
    *,
    load: tuple[float, float] = (0.3, 0.9),
    topics: tuple[int, int] = (3, 16),
    subscribers: tuple[int, int] = (2, 9),
    ports: tuple[int, int] = (1, 3),
    rates: float = 0.5,
    sizes: float = 0.5,
    kind: str | None = None,
    wanted: tuple[float, float] = (0.3, 0.9),
    bandwidth: tuple[float, float] = (1e5, 1e6),
    classes: tuple[int, int] = (1, 8),
) -> Document:
    """One broker, one switch, and ports of which each is offered a load drawn from `load`.

    `rates` and `sizes` are the spreads of a lognormal law around 1 and 200 bytes. A port's bandwidth is drawn, and
    the rates of all publications are scaled so that the most loaded port has its load; the others follow.
    """
    constant = kind or str(random.choice(["exponential", "constant", "mixed"]))
    count = int(random.integers(*topics, endpoint=True))
    names = [f"topic-{number:02d}" for number in range(count)]
    published = {
        name: {
            "rate_per_second": float(random.lognormal(0.0, rates)),
            "size_bytes": round(float(200 * random.lognormal(0.0, sizes))) + 1,
            "sizes": constant if constant != "mixed" else str(random.choice(["exponential", "constant"])),
        }
        for name in names
    }
    port_names = [f"port-{number}" for number in range(int(random.integers(*ports, endpoint=True)))]
    share = random.uniform(*wanted)
    members = {}
    for number in range(max(int(random.integers(*subscribers, endpoint=True)), len(port_names))):
        chosen = [name for name in names if random.random() < share] or [str(random.choice(names))]
        members[f"subscriber-{number:03d}"] = {
            "port": port_names[number % len(port_names)],
            "subscribes": {name: f"log:{float(random.lognormal(0.0, 1.0)):.4f}" for name in chosen},
        }
    document: Document = {
        "overhead_bytes": int(random.choice([0, 28, 49])),
        "planning": {"priority_classes": int(random.integers(*classes, endpoint=True))},
        "brokers": {"broker": {}},
        "switches": {"switch": {}},
        "ports": {name: {"switch": "switch", "bandwidth_bps": 1.0} for name in port_names},
        "publishers": {"publisher": {"publishes": published}},
        "subscribers": members,
    }
    load_ports(document, random, load, bandwidth)
    return document


def publications(document: Document) -> Iterable[tuple[str, Document]]:
    for publisher in document["publishers"].values():
        yield from publisher["publishes"].items()


def offered(document: Document) -> dict[str, float]:
    """Bits per second that every port is offered, ports above others included."""
    per_topic: dict[str, float] = {}
    overhead, payload = document["overhead_bytes"], np.inf
    if document.get("fragmentation"):
        payload = document["mtu_bytes"] - overhead
    for topic, entry in publications(document):
        packets = max(1.0, entry["size_bytes"] / payload)
        octets = entry["size_bytes"] + packets * overhead
        per_topic[topic] = per_topic.get(topic, 0.0) + 8 * entry["rate_per_second"] * octets
    above = {name: entry.get("fed_by") for name, entry in document["switches"].items()}
    total = dict.fromkeys(document["ports"], 0.0)
    for subscriber in document["subscribers"].values():
        port: str | None = subscriber["port"]
        while port is not None:
            total[port] += sum(per_topic[topic] for topic in subscriber["subscribes"])
            port = above[document["ports"][port]["switch"]]
    return total


def load_ports(
    document: Document, random: Random, load: tuple[float, float], bandwidth: tuple[float, float]
) -> None:
    """Draw bandwidths for a first port and loads for all; the other bandwidths and all rates follow."""
    first = next(iter(document["ports"]))
    bits = float(np.exp(random.uniform(*np.log(bandwidth))))
    factor = random.uniform(*load) * bits / offered(document)[first]
    for _, entry in publications(document):
        entry["rate_per_second"] *= factor
    for name, wanted in offered(document).items():
        document["ports"][name]["bandwidth_bps"] = (
            bits if name == first else max(wanted, 1.0) / random.uniform(*load)
        )


def planned(document: Document, **planner: Any) -> Drawn:
    return Drawn(document, {"priorities": "greedy", "drops": "none", **planner})


def loaded(random: Random) -> Drawn:
    return planned(basic(random))


def light(random: Random) -> Drawn:
    return planned(basic(random, load=(0.01, 0.25)))


def unequal_sizes(random: Random) -> Drawn:
    return planned(basic(random, sizes=1.5, load=(0.1, 0.9)))


def unequal_rates(random: Random) -> Drawn:
    return planned(basic(random, rates=2.0, load=(0.1, 0.9)))


def fast_ports(random: Random) -> Drawn:
    """Ports whose transmissions take about as long as the million lookups a second that a switch does by default."""
    return planned(basic(random, bandwidth=(5e7, 3e9), load=(0.02, 0.8), ports=(1, 1)))


def wide_fan_out(random: Random) -> Drawn:
    most = int(np.exp(random.uniform(np.log(20), np.log(500))))
    return planned(
        basic(
            random,
            topics=(1, 4),
            subscribers=(most, most),
            wanted=(0.4, 1.0),
            load=(0.05, 0.85),
            ports=(1, 2),
        )
    )


def lossy_fragments(random: Random) -> Drawn:
    """Events of up to a dozen packets over links that lose some of them."""
    document = basic(random, load=(0.1, 0.85), subscribers=(2, 6))
    document |= {"mtu_bytes": int(random.choice([200, 400, 800])), "fragmentation": True}
    load_ports(document, random, (0.1, 0.85), (1e5, 1e6))
    document["publishers"]["publisher"]["error_rate"] = float(random.uniform(0.0, 0.08))
    for subscriber in document["subscribers"].values():
        subscriber["error_rate"] = float(random.uniform(0.0, 0.1))
    return planned(document)


def errors_and_propagation(random: Random) -> Drawn:
    document = basic(random, load=(0.1, 0.9))
    publisher = document["publishers"]["publisher"]
    publisher |= {
        "error_rate": float(random.uniform(0, 0.2)),
        "propagation_seconds": float(random.uniform(0, 2e-3)),
    }
    for subscriber in document["subscribers"].values():
        subscriber["error_rate"] = float(random.uniform(0, 0.3))
        subscriber["propagation_seconds"] = float(random.uniform(0, 2e-3))
    return planned(document)


def drop_policies(random: Random) -> Drawn:
    """Ports that are offered up to twice what they carry, under every policy and way of prioritising."""
    document = basic(random, load=(0.6, 2.0), classes=(2, 8))
    return planned(
        document,
        drops=str(random.choice(["flat", "linear", "exponential", "optimal"])),
        priorities=str(random.choice(["greedy", "cluster", "info", "random"])),
    )


def two_brokers(random: Random) -> Drawn:
    """Publishers and subscribers of one topic at either broker, a link between them, ports that both feed."""
    document = basic(random, load=(0.1, 0.85))
    document["brokers"] = {"broker-a": {}, "broker-b": {}}
    link: Document = {
        "between": ["broker-a", "broker-b"],
        "propagation_seconds": float(random.choice([0, 1e-4, 5e-3])),
    }
    total = sum(
        8 * entry["rate_per_second"] * (entry["size_bytes"] + document["overhead_bytes"])
        for _, entry in publications(document)
    )
    if random.random() < 0.7:
        link["bandwidth_bps"] = total / random.uniform(0.02, 0.8)
    if random.random() < 0.5:
        link["error_rate"] = float(random.uniform(0, 0.1))
    document["broker_links"] = [link]
    document["publishers"]["publisher"]["broker"] = "broker-a"
    apart = random.random() < 0.3
    for number, subscriber in enumerate(document["subscribers"].values()):
        ports = len(document["ports"])
        at_b = number % ports == ports - 1 if apart and ports > 1 else random.random() < 0.5
        subscriber["broker"] = "broker-b" if at_b else "broker-a"
    return planned(document)


def trees(random: Random) -> Drawn:
    """Trunks above leaves, leaves at different depths, a trunk that also serves subscribers of its own."""
    document = basic(random, load=(0.1, 0.85), subscribers=(4, 12), ports=(1, 1))
    depth = int(random.integers(1, 3))
    ports, switches, leaves = document["ports"], document["switches"], ["port-0"]
    del ports["port-0"]
    ports["port-0"] = {"switch": "switch", "bandwidth_bps": 1.0}
    parent = "switch"
    for level in range(depth):
        trunk, switch = f"trunk-{level}", f"switch-{level}"
        ports[trunk] = {
            "switch": parent,
            "bandwidth_bps": 1.0,
            "propagation_seconds": float(random.choice([0.0, 1e-4, 1e-3])),
            "error_rate": float(random.choice([0.0, 0.0, 0.05])),
        }
        switches[switch] = {"fed_by": trunk}
        for leaf in range(int(random.integers(1, 4))):
            name = f"leaf-{level}-{leaf}"
            ports[name] = {"switch": switch, "bandwidth_bps": 1.0}
            leaves.append(name)
        parent = switch
    for subscriber in document["subscribers"].values():
        subscriber["port"] = str(random.choice(leaves))
    used = {subscriber["port"] for subscriber in document["subscribers"].values()}
    for name in [name for name in leaves if name not in used]:
        del ports[name]
    document["ports"] = dict(sorted(ports.items(), key=lambda pair: pair[0] not in used))
    load_ports(document, random, (0.1, 0.85), (1e5, 1e6))
    if random.random() < 0.6:
        # Trunks are usually faster than what hangs below them.
        for name, entry in ports.items():
            if name.startswith("trunk"):
                entry["bandwidth_bps"] *= float(random.uniform(1.0, 10.0))
    return planned(document)


def slow_brokers(random: Random) -> Drawn:
    """Matching, outbound queues and lookups that take a share of what a transmission takes."""
    document = basic(random, load=(0.1, 0.85))
    total = sum(entry["rate_per_second"] for _, entry in publications(document))
    copies = {
        name: sum(
            entry["rate_per_second"]
            for topic, entry in publications(document)
            if topic in subscriber["subscribes"]
        )
        for name, subscriber in document["subscribers"].items()
    }
    broker, switch = document["brokers"]["broker"], document["switches"]["switch"]
    broker["inbound_rate_per_second"] = float(total / random.uniform(0.05, 0.8))
    if random.random() < 0.5:
        broker["outbound_rate_per_second"] = float(max(copies.values()) / random.uniform(0.01, 0.6))
    if random.random() < 0.5:
        switch["inbound_rate_per_second"] = float(sum(copies.values()) / random.uniform(0.02, 0.8))
    return planned(document)


def finite_buffers(random: Random) -> Drawn:
    document = basic(random, load=(0.5, 1.6))
    for port in document["ports"].values():
        port["buffer_packets"] = int(np.exp(random.uniform(np.log(5), np.log(200))))
    return planned(document)


PROCESSES = ("periodic", "on_off", "pareto")


def give_arrivals(document: Document, random: Random) -> None:
    """Publications are periodic, bursty or heavy-tailed: all of them the same, or each its own, Poisson too."""
    only = str(random.choice([*PROCESSES, "mixed"]))
    for _, entry in publications(document):
        process = only if only != "mixed" else str(random.choice([*PROCESSES, "poisson"]))
        if process in ("periodic", "poisson"):
            entry["arrivals"] = process
        elif process == "pareto":
            entry["arrivals"] = {"process": "pareto", "shape": float(random.uniform(2.2, 4.0))}
        else:
            gap = 1 / entry["rate_per_second"]
            entry["arrivals"] = {
                "process": "on_off",
                "on_seconds": float(gap * random.uniform(0.5, 5)),
                "off_seconds": float(gap * random.uniform(0.5, 5)),
            }


def other_arrivals(random: Random) -> Drawn:
    document = basic(random, load=(0.2, 0.85))
    give_arrivals(document, random)
    return planned(document)


def topic_rates(document: Document, topics: Iterable[str]) -> float:
    wanted = set(topics)
    return float(sum(entry["rate_per_second"] for topic, entry in publications(document) if topic in wanted))


def bits_per_second(document: Document) -> float:
    return float(
        sum(
            8 * entry["rate_per_second"] * (entry["size_bytes"] + document["overhead_bytes"])
            for _, entry in publications(document)
        )
    )


def slow_matching(document: Document, load: float) -> None:
    wanted = {topic for each in document["subscribers"].values() for topic in each["subscribes"]}
    every = [topic for topic, _ in publications(document)]
    for topic in set(every) - wanted:
        next(iter(document["subscribers"].values()))["subscribes"][topic] = "log:1"
    document["brokers"]["broker"]["inbound_rate_per_second"] = topic_rates(document, every) / load


def slow_outbound(document: Document, load: float) -> None:
    busiest = max(topic_rates(document, each["subscribes"]) for each in document["subscribers"].values())
    document["brokers"]["broker"]["outbound_rate_per_second"] = busiest / load


def slow_lookup(document: Document, load: float) -> None:
    copies = sum(topic_rates(document, each["subscribes"]) for each in document["subscribers"].values())
    document["switches"]["switch"]["inbound_rate_per_second"] = copies / load


def slow_unmanaged_switch(document: Document, load: float) -> None:
    document["unmanaged_switches"] = {"before": {"bandwidth_bps": bits_per_second(document) / load}}
    document["publishers"]["publisher"]["switch"] = "before"


def slow_link(document: Document, load: float) -> None:
    link = {"between": ["broker", "broker-b"], "bandwidth_bps": bits_per_second(document) / load}
    document["brokers"]["broker-b"] = {}
    document["broker_links"] = [link]
    document["publishers"]["publisher"]["broker"] = "broker"
    for subscriber in document["subscribers"].values():
        subscriber["broker"] = "broker-b"


def small_buffers(document: Document, load: float) -> None:
    """Ports with room for a few packets, as fast as drawn; `load` says for how many."""
    for port in document["ports"].values():
        port["buffer_packets"] = int(5 + 200 * load**3)


SLOW: dict[str, tuple[str, Callable[[Document, float], None]]] = {
    "matching": ("a broker's matching", slow_matching),
    "outbound": ("a broker's outbound queues", slow_outbound),
    "link": ("a link between brokers", slow_link),
    "lookup": ("a switch's lookup", slow_lookup),
    "unmanaged": ("an unmanaged switch", slow_unmanaged_switch),
    "full": ("small buffers", small_buffers),
}


def irregular_at(slow: Callable[[Document, float], None]) -> Callable[[Random], Drawn]:
    """Publications that are not Poisson, and one kind of queue that they wait in, before ports of any load."""

    def draw(random: Random) -> Drawn:
        document = basic(random, load=(0.05, 0.7))
        slow(document, float(random.uniform(0.2, 0.85)))
        give_arrivals(document, random)
        return planned(document)

    return draw


def irregular_brokers(random: Random) -> Drawn:
    """Publications that are not Poisson at two brokers whose queues take their time, and a link between them."""
    drawn = two_brokers(random)
    document = drawn.document
    total = topic_rates(document, [topic for topic, _ in publications(document)])
    for broker in document["brokers"].values():
        if random.random() < 0.7:
            broker["inbound_rate_per_second"] = total / random.uniform(0.05, 0.8)
        if random.random() < 0.4:
            broker["outbound_rate_per_second"] = total / random.uniform(0.05, 0.6)
    give_arrivals(document, random)
    return drawn


def tandems(random: Random) -> Drawn:
    """Queues of like speed in a row: an unmanaged switch, a link or a trunk before a port that is about as fast."""
    document = basic(random, load=(0.3, 0.85), ports=(1, 1), subscribers=(1, 3))
    octets = {
        topic: entry["size_bytes"] + document["overhead_bytes"] for topic, entry in publications(document)
    }
    total = sum(8 * entry["rate_per_second"] * octets[topic] for topic, entry in publications(document))
    port = document["ports"]["port-0"]
    like = float(max(port["bandwidth_bps"] * random.uniform(0.8, 1.25), total / 0.9))
    kind = str(random.choice(["unmanaged", "link", "trunk"]))
    if kind == "unmanaged":
        document["unmanaged_switches"] = {"before": {"bandwidth_bps": like}}
        document["publishers"]["publisher"]["switch"] = "before"
    elif kind == "link":
        document["brokers"] = {"broker-a": {}, "broker-b": {}}
        document["broker_links"] = [{"between": ["broker-a", "broker-b"], "bandwidth_bps": like}]
        document["publishers"]["publisher"]["broker"] = "broker-a"
        for subscriber in document["subscribers"].values():
            subscriber["broker"] = "broker-b"
    else:
        trunk = float(
            max(port["bandwidth_bps"] * random.uniform(0.8, 1.25), offered(document)["port-0"] / 0.9)
        )
        document["ports"]["trunk"] = {"switch": "switch", "bandwidth_bps": trunk}
        document["switches"]["leaf"] = {"fed_by": "trunk"}
        port["switch"] = "leaf"
    return planned(document)


def state(document: Document, random: Random, share: float = 0.67, **terms: Callable[[str], Any]) -> None:
    """Give a share of the subscriptions terms, each a function of the topic."""
    for subscriber in document["subscribers"].values():
        for topic, utility in subscriber["subscribes"].items():
            if random.random() < share:
                stated = {name: term(topic) for name, term in terms.items()}
                subscriber["subscribes"][topic] = {"utility": utility, **stated}


def minima(random: Random) -> Drawn:
    """Minimum shares, which may not fit together, on ports that are offered up to twice what they carry."""
    document = basic(random, load=(0.6, 2.0), classes=(2, 8))
    state(document, random, min_share=lambda topic: round(float(random.uniform(0.05, 0.9)), 3))
    return planned(document, drops=str(random.choice(["flat", "linear", "exponential", "optimal"])))


def thinned(random: Random) -> Drawn:
    """Topics that come up to ten times as often as they are taken, on loaded ports."""
    document = basic(random, load=(0.4, 1.2))
    rates = {topic: entry["rate_per_second"] for topic, entry in publications(document)}

    def most(topic: str) -> float:
        return float(rates[topic] / np.exp(random.uniform(np.log(0.5), np.log(10))))

    state(document, random, max_rate_per_second=most)
    return planned(document, drops=str(random.choice(["none", "optimal"])))


def newest(random: Random) -> Drawn:
    """Newer events that take the place of those that wait; on overloaded ports, of all: no queue grows without end."""
    all_of_them = random.random() < 0.5
    document = basic(random, load=(0.4, 1.5 if all_of_them else 0.9))
    state(document, random, 1.0 if all_of_them else 0.67, newest_only=lambda topic: True)
    return planned(document)


def expiring(random: Random) -> Drawn:
    """Events that expire after some to many transmissions; on overloaded ports, all: no queue grows without end."""
    all_of_them = random.random() < 0.5
    document = basic(random, load=(0.4, 1.5 if all_of_them else 0.9))
    slowest = min(port["bandwidth_bps"] for port in document["ports"].values())
    sizes = [entry["size_bytes"] + document["overhead_bytes"] for _, entry in publications(document)]
    transmission = 8 * float(np.mean(sizes)) / slowest

    def expires(topic: str) -> float:
        return float(transmission * np.exp(random.uniform(0.7, 5.0)))

    state(document, random, 1.0 if all_of_them else 0.67, expires_seconds=expires)
    return planned(document)


FAMILIES: dict[str, Family] = {
    "loaded": Family("loaded ports", loaded),
    "light": Family("light loads", light),
    "sizes": Family("unequal sizes", unequal_sizes),
    "rates": Family("unequal rates", unequal_rates),
    "fast": Family("fast ports", fast_ports),
    "fan-out": Family("fan-out to 500", wide_fan_out),
    "fragments": Family("fragments over lossy links", lossy_fragments),
    "errors": Family("errors and propagation", errors_and_propagation),
    "policies": Family("drop policies", drop_policies),
    "brokers": Family("two brokers", two_brokers),
    "trees": Family("trees", trees),
    "slow": Family("slow brokers and lookups", slow_brokers),
    "buffers": Family("finite buffers", finite_buffers, poisson=False, most_flagged=0.4),
    "arrivals": Family("arrivals that are not Poisson", other_arrivals, poisson=False, most_flagged=0.4),
    "tandems": Family("tandems of equal service", tandems, most_flagged=0.4),
    **{
        f"irregular-{name}": Family(
            f"arrivals that are not Poisson at {title}", irregular_at(slow), poisson=False, most_flagged=0.4
        )
        for name, (title, slow) in SLOW.items()
    },
    "irregular-brokers": Family(
        "arrivals that are not Poisson at two brokers", irregular_brokers, poisson=False, most_flagged=0.4
    ),
    "minima": Family("minimum shares", minima),
    "thinned": Family("topics thinned to a rate", thinned, poisson=False, most_flagged=0.4),
    "newest": Family("the newest only", newest, poisson=False, most_flagged=0.4),
    "expiring": Family("events that expire", expiring, poisson=False, most_flagged=0.4),
}
