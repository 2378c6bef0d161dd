"""What each peer is set to for a building on fire: many small readings, few links that carry too little.

One rule for all: what its makers write for such a network, else what they ship. Where theirs left a choice, the one
that captured more was kept; docs/background/peers.md says which. Nobody but TriageMQ knows what an event is worth to
each of its subscribers; peers that have priorities get them by topic, from TriageMQ's own plan.
"""

from __future__ import annotations

from typing import Any

LIFESPAN_SECONDS = 5
"""How old an event of DDS may get: whoever fights a fire acts on what is so."""

RELIABLE_TOPICS = ("command/orders", "building/evacuation")
"""What is said once. Readings repeat themselves, and every maker who has the choice advises best effort for them: ROS 2
calls it the profile of sensor data, Zenoh's publishers drop by default, MQTT's QoS 0 is for what will come again."""

MOSQUITTO = """\
listener 1883 {address}
allow_anonymous true
persistence false
# mosquitto.conf(5): for brokers with many small messages, where latency matters more than the number of packets.
set_tcp_nodelay true
# As shipped: 20 in flight and 1000 waiting of QoS 1 per client; of QoS 0 what the socket's buffer and 1000 more hold.
max_inflight_messages 20
max_queued_messages 1000
log_type error
log_type warning
"""

NATS = """\
# As shipped: whoever reads too slowly for longer than write_deadline is cut off, and connects again.
# docs.nats.io, "Slow Consumers": core NATS protects the server and loses for the slow one; it has no priorities.
listen: "{address}:4222"
write_deadline: "10s"
"""

ZENOH: dict[str, Any] = {
    # DEFAULT_CONFIG.json5: priorities need this, and have it by default.
    "transport/unicast/qos/enabled": True,
    # Everybody knows the router: nothing is looked for on links that have no room for it.
    "scouting/multicast/enabled": False,
    "scouting/gossip/enabled": False,
}
ZENOH_PORT = 7447

ZENOH_SLOW_LINK: dict[str, Any] = {
    # As shipped a batch has 65,535 bytes, and each priority two of them: seconds of such a link, and on UDP fragments.
    "transport/link/tx/batch_size": 1400,
    # The system's own buffer comes behind the priorities, and would hold seconds more.
    "transport/link/tcp/so_sndbuf": 4096,
    # As ROS 2's Zenoh has it: whoever goes last on a full link says for long nothing that arrives, and is still there.
    "transport/link/tx/lease": 60_000,
}

ZENOH_MARKED: dict[str, Any] = {"transport/unicast/max_links": 8}
"""A link for each priority, marked with a DSCP of its own: how Zenoh's makers let a network know of priorities
(eclipse-zenoh/zenoh pull request 1937, ros2/rmw_zenoh issue 623)."""

DDS = """\
<CycloneDDS><Domain>
  <General>
    <Interfaces><NetworkInterface name="{interface}"/></Interfaces>
    <AllowMulticast>{multicast}</AllowMulticast>
  </General>
</Domain></CycloneDDS>
"""
"""Cyclone DDS restricts multicast to discovery (spdp) where it finds a wireless interface (its pull request 222), and
sends one packet to all on a wired one (true). This network has radio and wifi; virtual links look wired."""


def dscp_of(level: int) -> int:
    """The mark of a class, as an octet of the IP header: class selectors, CS7 for class 0 down to CS1 for class 6.

    >>> [hex(dscp_of(level)) for level in (0, 6)]
    ['0xe0', '0x20']
    """
    return (7 - level) << 5
