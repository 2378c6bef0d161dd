"""A smart building on fire, after the use case of PrioDeX (2021) section 2.1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError
from triagemq.scenario.kinds import ArrivalProcess, SizeDistribution, UtilityShape
from triagemq.scenario.model import (
    Brokers,
    OutputPorts,
    PlanningSettings,
    Publications,
    Publishers,
    Scenario,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
    UnmanagedSwitches,
    filled,
)

OVERHEAD_BYTES = 49
"""Around every event: MQTT-SN PUBLISH 7, UDP and IP 28, Ethernet 14."""

SENSOR_NETWORK_BPS = 100e6
"""The building's wired network, on which nothing waits."""

PORTS = ("building-wifi", "crew-radio")
WIFI, RADIO = range(len(PORTS))

# The linux and openflow data planes have seven classes and one for control packets: a plan for this
# building runs on all of them.
PLANNING = PlanningSettings(flows_per_subscriber=7, priority_classes=7, rho_tolerance=0.1)


class Signal(NamedTuple):
    """What is published under the topics that end in one word; the rate is the mean, pauses included."""

    rate_per_second: float
    size_bytes: float
    size_distribution: SizeDistribution = SizeDistribution.CONSTANT
    arrival_process: ArrivalProcess = ArrivalProcess.PERIODIC
    on_seconds: float = 0.0
    off_seconds: float = 0.0


# Instruments sample by the clock and send a fixed record; detections come when something happens; people
# write texts of any length; a camera sends while something moves.
SIGNALS = {
    "smoke": Signal(2.0, 40, arrival_process=ArrivalProcess.POISSON),
    "carbon-monoxide": Signal(1.0, 24),
    "temperature": Signal(1.0, 24),
    "occupancy": Signal(0.5, 32, arrival_process=ArrivalProcess.POISSON),
    "water-pressure": Signal(1.0, 24),
    # One datagram a picture: the encoder's quality follows its target size.
    "video-thumbnail": Signal(
        1.0, 1100, arrival_process=ArrivalProcess.ON_OFF, on_seconds=2.0, off_seconds=3.0
    ),
    "evacuation": Signal(0.5, 160, SizeDistribution.EXPONENTIAL, ArrivalProcess.POISSON),
    "location": Signal(4.0, 48),
    "air-pressure": Signal(1.0, 16),
    "heart-rate": Signal(1.0, 16),
    "orders": Signal(0.5, 120, SizeDistribution.EXPONENTIAL, ArrivalProcess.POISSON),
}
ROOM_SIGNALS = ("smoke", "carbon-monoxide", "temperature", "occupancy")
CREW_SIGNALS = ("location", "air-pressure", "heart-rate")

FIRE_FLOOR_SMOKE_RATE, FIRE_FLOOR_SMOKE_WEIGHT = 2.0, 3.0
"""Where it burns, detectors report more often; knowing it there is worth more still."""

ROOM_RATE_VARIATION = 0.1
"""No two sensor nodes tick alike; equal periods would also keep one phase for ever."""


class Wish(NamedTuple):
    """What a signal is worth to a role."""

    weight: float
    shape: UtilityShape = UtilityShape.LOG
    threshold: float = 0.0
    freshness_seconds: float = np.inf


# Most readings repeat themselves, so the first share that arrives is worth the most: logarithmic. Someone who
# moves is soon elsewhere: locations lose their worth with age. Every order differs, so each one lost is a
# full loss: linear. Announcements are repeated, so half of them say everything; fewer may not: step.
WISHES = {
    "incident-commander": {
        "location": Wish(20.0, freshness_seconds=2.0),
        "smoke": Wish(6.0),
        "video-thumbnail": Wish(30.0),
        "air-pressure": Wish(4.0),
        "carbon-monoxide": Wish(3.0),
        "occupancy": Wish(3.0),
        "heart-rate": Wish(2.0),
        "temperature": Wish(1.0),
        "evacuation": Wish(1.0),
        "water-pressure": Wish(0.5),
    },
    # "Smoke" > "water pressure" for fire fighters (PrioDeX 6.1).
    "fire-fighter": {
        "orders": Wish(8.0, UtilityShape.LINEAR),
        "smoke": Wish(6.0),
        "location": Wish(9.0, freshness_seconds=1.0),
        "carbon-monoxide": Wish(4.0),
        "temperature": Wish(2.0),
        "water-pressure": Wish(0.3),
    },
    "occupant": {
        "evacuation": Wish(5.0, UtilityShape.STEP, threshold=0.5),
        "smoke": Wish(3.0),
    },
    "building-manager": {
        "water-pressure": Wish(2.0),
        "temperature": Wish(0.5),
        "occupancy": Wish(0.5, UtilityShape.LINEAR),
    },
}
EVERYWHERE = ("incident-commander", "building-manager")


@dataclass(frozen=True, slots=True)
class _Source:
    """One topic and the device that publishes it. Floor 0 is the whole building."""

    topic: str
    publisher: str
    floor: int = 0
    person: str = ""

    @property
    def signal(self) -> str:
        return self.topic.rsplit("/", maxsplit=1)[-1]


@dataclass(frozen=True, slots=True)
class _Person:
    name: str
    role: str
    port: int
    floor: int = 0

    def wants(self, source: _Source) -> bool:
        """Whether this signal concerns this role, at the place where this person is."""
        if source.signal not in WISHES[self.role] or source.person == self.name:
            return False
        if self.role in EVERYWHERE or source.floor == 0:
            return True
        # A colleague one floor away can be met on the stairs; smoke there is the commander's concern.
        return abs(source.floor - self.floor) <= (1 if source.person else 0)


def building(
    *,
    seed: int = 0,
    floors: int = 3,
    rooms_per_floor: int = 6,
    fire_fighters: int = 6,
    occupants: int = 12,
    overload: float = 1.7,
    buffer_packets: float = 200,
) -> Scenario:
    """A fire on the middle floor: sensors, crew, occupants, and too little radio for all they want to know.

    Room nodes, cameras, the building management system, the crew's wearables and the commander's console
    publish to the broker `bms`. Fire fighters and the incident commander, whose post is outside, share the
    port `crew-radio`; occupants and the building manager share `building-wifi`. Either port has the bandwidth
    that makes its offered load `overload` times what it can carry. Fire fighters and occupants are spread
    evenly over the floors, from the fire upwards. The seed varies the rates of the rooms by up to a tenth.
    Links have neither errors nor delays of their own, as in PrioDeX 6.1: all loss and waiting is the ports'.

    >>> fire = building(floors=1, rooms_per_floor=1, fire_fighters=1, occupants=1)
    >>> fire.ports.name, fire.subscribers.name
    (('building-wifi', 'crew-radio'), ('building-manager', 'ff-01', 'incident-commander', 'occupant-01'))
    >>> fire.topics.name[1:3]
    ('building/floor-1/evacuation', 'building/floor-1/room-01/carbon-monoxide')
    """
    floors, rooms = checked_count("floors", floors), checked_count("rooms_per_floor", rooms_per_floor)
    crew_names = numbered("ff", checked_count("fire_fighters", fire_fighters))
    occupant_names = numbered("occupant", checked_count("occupants", occupants))
    fire_floor = (floors + 1) // 2
    from_the_fire_upwards = [*range(fire_floor, floors + 1), *range(1, fire_floor)]
    crew = [
        _Person(name, "fire-fighter", RADIO, floor)
        for name, floor in zip(crew_names, cycle(from_the_fire_upwards), strict=False)
    ]
    people = [
        *crew,
        _Person("incident-commander", "incident-commander", RADIO),
        _Person("building-manager", "building-manager", WIFI),
        *(
            _Person(name, "occupant", WIFI, floor)
            for name, floor in zip(occupant_names, cycle(from_the_fire_upwards), strict=False)
        ),
    ]
    sources = [*_building_sources(floors, rooms), *_crew_sources(crew)]
    publisher_names = tuple(dict.fromkeys(source.publisher for source in sources))
    smoky = np.array([source.signal == "smoke" and source.floor == fire_floor for source in sources])
    published = _publications(sources, publisher_names, smoky, seed)
    wanted = _subscriptions(people, sources, smoky)
    port = np.array([person.port for person in people])
    # A topic has one publication here, in the same row.
    bytes_per_second = (published.size_bytes + OVERHEAD_BYTES) * published.rate_per_second
    load = np.bincount(port[wanted.subscriber], bytes_per_second[wanted.topic], minlength=len(PORTS))
    return Scenario.of(
        name="building-fire",
        topics=Topics(tuple(source.topic for source in sources)),
        brokers=filled(Brokers, 1, name=("bms",)),
        unmanaged_switches=UnmanagedSwitches(("sensor-network",), np.array([SENSOR_NETWORK_BPS])),
        switches=filled(Switches, 1, name=("edge-switch",)),
        ports=filled(
            OutputPorts,
            len(PORTS),
            name=PORTS,
            switch=0,
            bandwidth_bps=load * 8 / checked_number("overload", overload),
            buffer_packets=checked_number("buffer_packets", buffer_packets, infinite=True),
        ),
        publishers=filled(
            Publishers, len(publisher_names), name=publisher_names, broker=0, unmanaged_switch=0
        ),
        publications=published,
        subscribers=filled(
            Subscribers, len(people), name=[person.name for person in people], broker=0, port=port
        ),
        subscriptions=wanted,
        planning=PLANNING,
        overhead_bytes=OVERHEAD_BYTES,
    )


def _building_sources(floors: int, rooms: int) -> Iterator[_Source]:
    for number, floor in enumerate(numbered("floor", floors, width=1), start=1):
        for room in numbered("room", rooms):
            for signal in ROOM_SIGNALS:
                yield _Source(f"building/{floor}/{room}/{signal}", f"{floor}-{room}-node", number)
        yield _Source(f"building/{floor}/corridor/video-thumbnail", f"{floor}-corridor-camera", number)
        for signal in ("water-pressure", "evacuation"):
            yield _Source(f"building/{floor}/{signal}", "building-management-system", number)


def _crew_sources(crew: Sequence[_Person]) -> Iterator[_Source]:
    for person in crew:
        for signal in CREW_SIGNALS:
            topic, wearable = f"crew/{person.name}/{signal}", f"{person.name}-wearable"
            yield _Source(topic, wearable, person.floor, person.name)
    yield _Source("command/orders", "incident-commander-console")


def _publications(
    sources: Sequence[_Source], publisher_names: Sequence[str], smoky: NDArray[np.bool_], seed: int
) -> Publications:
    signals = [SIGNALS[source.signal] for source in sources]
    rate = np.array([signal.rate_per_second for signal in signals])
    rate[smoky] *= FIRE_FLOOR_SMOKE_RATE
    in_room = np.array([source.signal in ROOM_SIGNALS for source in sources])
    (stream,) = random_streams(seed, 1)
    rate[in_room] *= stream.uniform(1 - ROOM_RATE_VARIATION, 1 + ROOM_RATE_VARIATION, in_room.sum())
    publisher_row = {name: row for row, name in enumerate(publisher_names)}
    return filled(
        Publications,
        len(sources),
        publisher=[publisher_row[source.publisher] for source in sources],
        topic=np.arange(len(sources)),
        rate_per_second=rate,
        size_bytes=[signal.size_bytes for signal in signals],
        size_distribution=[signal.size_distribution for signal in signals],
        arrival_process=[signal.arrival_process for signal in signals],
        on_seconds=[signal.on_seconds for signal in signals],
        off_seconds=[signal.off_seconds for signal in signals],
    )


def _subscriptions(
    people: Sequence[_Person], sources: Sequence[_Source], smoky: NDArray[np.bool_]
) -> Subscriptions:
    pairs = [
        (subscriber, topic)
        for subscriber, person in enumerate(people)
        for topic, source in enumerate(sources)
        if person.wants(source)
    ]
    subscriber, topic = np.array(pairs).T
    wishes = [WISHES[people[row].role][sources[column].signal] for row, column in pairs]
    weight = np.array([wish.weight for wish in wishes])
    return filled(
        Subscriptions,
        len(pairs),
        subscriber=subscriber,
        topic=topic,
        utility_weight=weight * np.where(smoky[topic], FIRE_FLOOR_SMOKE_WEIGHT, 1.0),
        utility_shape=[wish.shape for wish in wishes],
        utility_threshold=[wish.threshold for wish in wishes],
        freshness_seconds=[wish.freshness_seconds for wish in wishes],
    )


def checked_count(parameter: str, value: object, minimum: int = 1) -> int:
    """A whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ParameterError(parameter, f"is {value!r}; write a whole number of at least {minimum}")
    return int(value)


def checked_number(
    parameter: str, value: float, *, zero: bool = False, infinite: bool = False, below: float = math.inf
) -> float:
    """A number above 0; `zero` and `infinite` also admit these, `below` is a bound it must not reach."""
    admitted = (value > 0 or (zero and value == 0)) and (value < below or (infinite and value == math.inf))
    if not admitted:  # NaN compares false with everything
        bound = "" if below == math.inf else f" below {below:g}"
        kind = "number" if infinite or bound else "finite number"
        raise ParameterError(
            parameter, f"is {value!r}; write a {kind} {'of at least' if zero else 'above'} 0{bound}"
        )
    return float(value)


def random_streams(seed: int, count: int) -> list[np.random.Generator]:
    """Independent generators, one per quantity, so that drawing more of one never changes another."""
    children = np.random.SeedSequence(checked_count("seed", seed, minimum=0)).spawn(count)
    return [np.random.Generator(np.random.PCG64(child)) for child in children]


def numbered(prefix: str, count: int, width: int = 2) -> tuple[str, ...]:
    """Names counted from 1, padded with zeros so that their order is that of their numbers.

    >>> numbered("port", 3)
    ('port-01', 'port-02', 'port-03')
    """
    width = max(width, len(str(count)))
    return tuple(f"{prefix}-{number:0{width}}" for number in range(1, count + 1))
