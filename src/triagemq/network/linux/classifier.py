"""The classifier: an eBPF program that puts each packet of a port into a queue, limits flows, and counts.

Attached with direct action to the HTB queueing discipline of a port (see queues.py). For each packet:

* Control is what the exchange itself sends so that it works: MQTT-SN messages of a flow other than PUBLISH, handshakes
  of DTLS and everything marked DSCP CS6, if they come from the gateway; TCP from and to the coordinator's REST; and
  what the network needs (ARP and other protocols than IP, IPv6 neighbour discovery). It goes to the control queue,
  up to the port's bound (flow_table.py); what exceeds that goes last.
* A PUBLISH of no flow that comes from the gateway and bears the mark of a class goes to the queue of that class,
  for any client.
* A PUBLISH of a flow goes to the queue of its class. So does application data of DTLS, whose
  content is hidden, without the mark of control.
* What goes to a multicast address that has a flow at this port, of its own or by a prefix of topics' codes (the longest
  holds), is an event, whatever it looks like: it goes to the queue of its class here, and is never control. If the flow
  has a source, what others send there is foreign: it is counted, and unmanaged.
* What goes to the address of a topic's code that has no flow here is discarded and counted, as soon as there is any
  prefix at all.
* Before all this a flow's limiter, if it has one, cuts what exceeds its terms; control is none of its business.
* A PUBLISH of a flow that is managed at another port (further along its path) keeps its class, and is not limited here.
* Everything else goes to the queue for unmanaged packets, which is served last: also what strangers mark CS6, and what
  they send to the address of a flow.

The gateway and the coordinator are known by the addresses they listen on (`FlowTable.trust`); before any is named,
every sender may send to a flow, and a mark is believed there only.

Flows are known by destination address and UDP port, over IPv4 and IPv6, with and without an 802.1Q tag. Fragments other
than the first have no UDP port: they share the fate of the first, queue or limit, which is remembered by addresses and
identification. An IPv6 extension header other than that of fragments hides the port: such packets are unmanaged.
"""

from __future__ import annotations

from triagemq.network.linux.bpf import Assembler, Register
from triagemq.network.linux.headers import (
    CLASS_SHIFT,
    IS_CONTROL,
    Stack,
    find_listener,
    look_up,
    network_order,
    read_ethernet,
    read_ipv4,
    read_ipv6,
    read_tcp,
    read_udp,
)
from triagemq.network.linux.records import (
    BEYOND_BOUND,
    BOUNDS,
    CLASSES,
    CONTROL,
    COPY_BITS,
    DISCARDED,
    LIMITED,
    MISMATCHED,
    PASSED,
    QUEUE_COUNTER,
    QUEUE_MINOR,
    SOURCE_PLACE,
    UNMANAGED,
    UNMANAGED_CONTROL,
    UNTRUSTED_CS6,
    WINDOW_SETTINGS,
    WINDOW_STATE,
    ClassifierMaps,
)
from triagemq.plan import LIMITER_PACKETS
from triagemq.topic_codes.address import CODES

_UPDATE, _TIME = 2, 5
_SKB_LENGTH, _SKB_CLASS = 0, 72
SKB_PRIORITY, SKB_INDEX = 32, 44
"""Where a packet carries when and into which queue it was put, if its port is timed (queue_times.py)."""
STAMP_SHIFT = 6
"""That time is in steps of 64 ns, so that its 32 bits last for 274 s."""
_PASS, _DROP = 0, 2
# In a FLOW_POLICY: where its two policies are, and the parts of one.
_BEFORE, _AFTER = 8, 40
_PORT, _QUEUE, _COUNTER, _LIMITER, _SOURCE = 0, 4, 8, 12, 16
# In the record of a limiter: its settings, its state, and the packets that have passed.
_MOST, _WINDOW, _JITTER, _PASSED_BYTES, _PASSED_PACKETS = range(0, 40, 8)
_RING = WINDOW_SETTINGS.size + WINDOW_STATE.size
_AGAIN, _UP_TO = _RING, _RING + 8
# Where beside the generation it says whether there are prefixes.
_ARE_PREFIXES = 8
_ADDRESS_BITS = 48
"""Of the place of a source: the Ethernet address, below the interface."""
_SILENT_SECONDS = 60
"""After this time a source may be found at another place."""
# The parts of a COUNTER.
_CAME, _PASSED, _BY_LIMITER, _FOREIGN = 0, 8, 16, 24


def classifier_program(maps: ClassifierMaps, *, timed: bool = False) -> bytes:
    """The program for all ports: where it is attached says which one a packet leaves by (`attach_classifier`).

    Where ports are `timed`, packets carry along when they were queued.

    Register 6 holds the packet, 7 the place reached in it and later the policy, 8 its marks, 9 the queue.
    """
    a = Assembler()
    a.copy(6, 1)
    a.load(4, 1, 6, _SKB_CLASS)
    a.compute(1, "+", 1)
    a.store(8, 10, Stack.PORT, 1)
    a.set(8, 0)
    a.store_number(8, 10, Stack.IS_FIRST, 0)
    for half in (0, 8):
        a.store_number(8, 10, Stack.VERDICT + half, 0)
    read_ethernet(a)
    read_ipv4(a)
    read_ipv6(a)
    read_tcp(a, maps)
    read_udp(a)
    _find_policy(a, maps)
    _follow_policy(a, maps)
    _follow_first_fragment(a, maps)
    _discard_codes(a, maps)
    _of_no_flow(a, maps)
    _bound(a, maps)
    _enqueue(a, maps, timed)
    return a.program()


def _find_policy(a: Assembler, maps: ClassifierMaps) -> None:
    """Register 7 gets the policy that holds in the present generation, if the packet is the exchange's own."""
    a.label("look up")
    a.copy(1, 8)
    a.compute(1, "&", IS_CONTROL)
    a.compute_by(9, "|", 1)
    # A flow's key has nothing where a listener's has the protocol.
    a.store_number(2, 10, Stack.KEY + 18, 0)
    # Addresses of IPv4 that are multicast begin with 1110, those of IPv6 with 11111111.
    a.load(1, 1, 10, Stack.KEY)
    a.jump_if(1, "==", 0xFF, "multicast")
    a.load(1, 2, 10, Stack.KEY + 12)
    a.compute(2, "&", 0xF0)
    a.jump_if(2, "!=", 0xE0, "unicast")
    a.load(2, 2, 10, Stack.KEY + 10)
    a.jump_if(2, "!=", 0xFFFF, "unicast")
    a.jump_if(1, "!=", 0, "unicast")
    a.label("multicast")
    a.load(2, 1, 10, Stack.PORT)
    a.store(2, 10, Stack.KEY + 18, 1)
    a.store_number(4, 10, Stack.COPY, COPY_BITS + 128)
    a.store(2, 10, Stack.COPY + 4, 1)
    a.load(2, 1, 10, Stack.KEY + 16)
    a.store(2, 10, Stack.COPY + 6, 1)
    for half in (0, 8):
        a.load(8, 1, 10, Stack.KEY + half)
        a.store(8, 10, Stack.COPY + 8 + half, 1)
    look_up(a, maps.copies, Stack.COPY)
    a.jump_if(0, "!=", 0, "of a flow or copy")
    a.jump("of no flow")
    a.label("unicast")
    look_up(a, maps.flows, Stack.KEY)
    a.jump_if(0, "==", 0, "of no flow")
    a.label("of a flow or copy")
    a.load_value(1, maps.generation)
    a.load(4, 1, 1, 0)
    a.load(4, 2, 0, 0)
    a.copy(7, 0)
    a.compute(7, "+", _BEFORE)
    a.jump_if_by(2, ">", 1, "chosen")
    a.compute(7, "+", _AFTER - _BEFORE)
    a.label("chosen")
    a.load(4, 1, 7, _PORT)
    a.jump_if(1, "==", 0, "of no flow")
    a.load(2, 1, 10, Stack.KEY + 18)
    a.jump_if(1, "==", 0, "of one subscriber")
    a.set(9, 0)
    a.load(8, 1, 7, _SOURCE)
    a.load(8, 2, 7, _SOURCE + 8)
    a.copy(3, 1)
    a.compute_by(3, "|", 2)
    a.jump_if(3, "==", 0, "trusted")
    a.load(8, 3, 10, Stack.SOURCE)
    a.jump_if_by(1, "!=", 3, "foreign")
    a.load(8, 3, 10, Stack.SOURCE + 8)
    a.jump_if_by(2, "==", 3, "source address")
    a.label("foreign")
    a.load(4, 1, 7, _COUNTER)
    a.store(4, 10, Stack.NUMBER, 1)
    look_up(a, maps.counters, Stack.NUMBER)
    a.jump_if(0, "==", 0, "unmanaged")
    a.set(1, 1)
    a.count_alone(0, _FOREIGN, 1, 2)
    a.jump("unmanaged")
    _check_place(a, maps)
    a.label("of one subscriber")
    a.load_value(1, maps.generation)
    a.load(4, 1, 1, 4)
    a.jump_if(1, "==", 0, "trusted")
    find_listener(a, maps, Stack.SOURCE, "flow from listener")
    a.jump_if(0, "==", 0, "unmanaged")
    a.label("trusted")


def _check_place(a: Assembler, maps: ClassifierMaps) -> None:
    """The source is where it first sent from: it may move to another interface, or change its device, but not both, as
    long as it is heard of. What claims its address elsewhere is foreign."""
    a.label("source address")
    a.load(8, 1, 10, Stack.PLACE)
    a.compute(1, ">>", _ADDRESS_BITS)
    a.jump_if(1, "==", 0, "own source")
    a.load(4, 1, 7, _COUNTER)
    a.store(4, 10, Stack.NUMBER, 1)
    a.call(_TIME)
    a.store(8, 10, Stack.TIME, 0)
    look_up(a, maps.counters, Stack.NUMBER)
    a.jump_if(0, "==", 0, "unmanaged")
    a.load(8, 4, 10, Stack.PLACE)
    a.load(8, 1, 0, SOURCE_PLACE)
    a.jump_if(1, "==", 0, "in its place")
    for operation, bits in ((">>", _ADDRESS_BITS), ("<<", 64 - _ADDRESS_BITS)):
        a.copy(2, 1)
        a.compute(2, operation, bits)  # type: ignore[arg-type]
        a.copy(3, 4)
        a.compute(3, operation, bits)  # type: ignore[arg-type]
        a.jump_if_by(2, "==", 3, "in its place")
    a.load(8, 1, 0, SOURCE_PLACE + 8)
    a.load(8, 2, 10, Stack.TIME)
    a.compute_by(2, "-", 1)
    a.set(3, _SILENT_SECONDS)
    a.compute(3, "*", 1_000_000_000)
    a.jump_if_by(2, ">", 3, "in its place")
    a.jump("foreign")
    a.label("in its place")
    a.store(8, 0, SOURCE_PLACE, 4)
    a.load(8, 1, 10, Stack.TIME)
    a.store(8, 0, SOURCE_PLACE + 8, 1)
    a.label("own source")
    a.jump("trusted")


def _go_by_mark(a: Assembler, maps: ClassifierMaps) -> None:
    """Events of the gateway say their class; classes that a port does not have go to its last one."""
    a.jump_if(9, "!=", 0, "without class")
    a.copy(1, 8)
    a.compute(1, ">>", CLASS_SHIFT)
    a.jump_if(1, "==", 0, "without class")
    find_listener(a, maps, Stack.SOURCE, "marked by listener")
    a.jump_if(0, "==", 0, "without class")
    a.copy(9, 8)
    a.compute(9, ">>", CLASS_SHIFT)
    look_up(a, maps.queues, Stack.PORT)
    a.jump_if(0, "==", 0, "unmanaged")
    a.load(4, 1, 0, CLASSES)
    a.jump_if_by(9, "<=", 1, "enqueue")
    a.copy(9, 1)
    a.jump("enqueue")
    a.label("without class")


def _follow_policy(a: Assembler, maps: ClassifierMaps) -> None:
    a.copy(8, 9)
    a.set(9, CONTROL)
    a.jump_if(8, "!=", 0, "control")
    a.load(4, 9, 7, _QUEUE)
    a.load(4, 1, 7, _PORT)
    a.load(4, 2, 10, Stack.PORT)
    a.jump_if_by(1, "!=", 2, "enqueue")
    a.load(4, 1, 7, _COUNTER)
    a.store(4, 10, Stack.NUMBER, 1)
    a.compute(1, "+", 1)
    a.store(4, 10, Stack.VERDICT + 4, 1)
    look_up(a, maps.counters, Stack.NUMBER)
    a.jump_if(0, "==", 0, "enqueue")
    a.copy(8, 0)
    a.set(1, 1)
    a.count_alone(8, _CAME, 1, 2)
    a.load(4, 1, 7, _LIMITER)
    a.store(4, 10, Stack.VERDICT + 8, 1)
    _limit(a, maps)
    a.load(4, 1, 6, _SKB_LENGTH)
    a.count_alone(8, _PASSED, 1, 2)
    a.jump("enqueue")


def _limit(a: Assembler, maps: ClassifierMaps) -> None:
    """Cut the packet if its flow's window has no room. Register 8 holds the flow's counter, the stack the limiter.

    The steps are those of embedded/window.py: an octet takes the place of the one that passed as many octets before it
    as a message has. The packet that brought that one is looked for in halves, from the oldest that is remembered on.
    As with the bounds, one processor at a time is here; who changes a limiter meanwhile writes its settings only: one
    packet may see some of the old and some of the new.
    """
    a.label("limit")
    a.load(4, 1, 10, Stack.VERDICT + 8)
    a.jump_if(1, "==", 0, "within terms")
    a.store(4, 10, Stack.NUMBER, 1)
    a.call(_TIME)
    a.store(8, 10, Stack.TIME, 0)
    look_up(a, maps.limiters, Stack.NUMBER)
    a.jump_if(0, "==", 0, "within terms")
    a.load(8, 1, 10, Stack.TIME)
    a.load(8, 4, 0, _MOST)
    a.load(4, 5, 6, _SKB_LENGTH)
    a.jump_if_by(5, ">", 4, "beyond terms")
    a.load(8, 2, 0, _PASSED_BYTES)
    a.compute_by(5, "+", 2)
    a.jump_if_by(5, "<=", 4, "has its place")
    a.compute_by(5, "-", 4)
    a.load(8, 2, 0, _PASSED_PACKETS)
    half = LIMITER_PACKETS // 2
    while half:
        a.copy(3, 2)
        a.compute(3, "+", half - 1)
        _remembered(a, 3)
        a.load(8, 4, 3, _UP_TO)
        a.jump_if_by(4, ">=", 5, f"within {half}")
        a.compute(2, "+", half)
        a.label(f"within {half}")
        half //= 2
    _remembered(a, 2)
    a.load(8, 4, 2, _AGAIN)
    a.load(8, 3, 0, _JITTER)
    a.compute_by(3, "+", 1)
    a.jump_if_by(4, ">", 3, "beyond terms")
    a.jump_if_by(4, "<=", 1, "has its place")
    a.copy(1, 4)
    a.label("has its place")
    a.load(8, 4, 0, _WINDOW)
    a.compute_by(1, "+", 4)
    a.load(8, 5, 0, _PASSED_BYTES)
    a.load(4, 4, 6, _SKB_LENGTH)
    a.compute_by(5, "+", 4)
    a.store(8, 0, _PASSED_BYTES, 5)
    a.load(8, 2, 0, _PASSED_PACKETS)
    a.copy(3, 2)
    a.compute(3, "+", 1)
    a.store(8, 0, _PASSED_PACKETS, 3)
    _remembered(a, 2)
    a.store(8, 2, _AGAIN, 1)
    a.store(8, 2, _UP_TO, 5)
    a.jump("within terms")
    a.label("beyond terms")
    a.store_number(4, 10, Stack.VERDICT, LIMITED)
    _remember(a, maps, "cut")
    a.label("cut")
    a.set(1, 1)
    a.count_alone(8, _BY_LIMITER, 1, 2)
    a.set(0, _DROP)
    a.exit()
    a.label("within terms")


def _remembered(a: Assembler, place: Register) -> None:
    """From the number of a packet that has passed the limiter in register 0 to where that is remembered."""
    a.compute(place, "&", LIMITER_PACKETS - 1)
    a.compute(place, "*", PASSED.size)
    a.compute_by(place, "+", 0)


def _fragment_key(a: Assembler) -> None:
    """Complete the key of a fragment, which has its identification already."""
    for place, key in ((0, Stack.SOURCE), (16, Stack.KEY)):
        for half in (0, 8):
            a.load(8, 1, 10, key + half)
            a.store(8, 10, Stack.FRAGMENT + place + half, 1)
    a.load(4, 1, 10, Stack.PORT)
    a.store(4, 10, Stack.FRAGMENT + 36, 1)


def _remember(a: Assembler, maps: ClassifierMaps, then: str) -> None:
    """Keep the verdict on a first fragment for those that follow it."""
    a.load(8, 1, 10, Stack.IS_FIRST)
    a.jump_if(1, "==", 0, then)
    _fragment_key(a)
    a.load_map(1, maps.fragments)
    a.copy(2, 10)
    a.compute(2, "+", Stack.FRAGMENT)
    a.copy(3, 10)
    a.compute(3, "+", Stack.VERDICT)
    a.set(4, 0)
    a.call(_UPDATE)


def _follow_first_fragment(a: Assembler, maps: ClassifierMaps) -> None:
    """Later fragments count as packets of their flow, go where the first went, and are dropped if it was.

    Each takes its own share of its flow's limiter.
    """
    a.label("later fragment")
    _fragment_key(a)
    look_up(a, maps.fragments, Stack.FRAGMENT)
    a.jump_if(0, "==", 0, "unmanaged")
    a.load(4, 9, 0, 0)
    a.load(4, 1, 0, 4)
    a.jump_if(1, "!=", 0, "of a flow")
    a.jump_if(9, "==", CONTROL, "control")
    a.jump_if(9, "==", DISCARDED, "discarded")
    a.jump("enqueue")
    a.label("of a flow")
    a.load(4, 2, 0, 8)
    a.store(4, 10, Stack.VERDICT + 8, 2)
    a.compute(1, "+", -1)
    a.store(4, 10, Stack.NUMBER, 1)
    look_up(a, maps.counters, Stack.NUMBER)
    a.jump_if(0, "==", 0, "unmanaged")
    a.copy(8, 0)
    a.set(1, 1)
    a.count_alone(8, _CAME, 1, 2)
    a.jump_if(9, "==", LIMITED, "cut")
    a.jump("limit")


def _discard_codes(a: Assembler, maps: ClassifierMaps) -> None:
    """Events of topics for which there is no flow at this port, if events leave by prefix at all."""
    a.label("of no flow")
    _go_by_mark(a, maps)
    a.load(2, 1, 10, Stack.KEY)
    a.jump_if(1, "!=", network_order(CODES), "without a code")
    a.load_value(1, maps.generation)
    a.load(4, 1, 1, _ARE_PREFIXES)
    a.jump_if(1, "==", 0, "without a code")
    a.store_number(4, 10, Stack.VERDICT, DISCARDED)
    _remember(a, maps, "discarded")
    a.label("discarded")
    look_up(a, maps.queues, Stack.PORT)
    a.jump_if(0, "==", 0, "gone")
    a.set(1, 1)
    a.count_alone(0, MISMATCHED * QUEUE_COUNTER.size, 1, 2)
    a.load(4, 1, 6, _SKB_LENGTH)
    a.count_alone(0, MISMATCHED * QUEUE_COUNTER.size + 8, 1, 2)
    a.label("gone")
    a.set(0, _DROP)
    a.exit()


def _of_no_flow(a: Assembler, maps: ClassifierMaps) -> None:
    """UDP to a key without a flow, in register 9 whether it claims to be control, and all that was not understood."""
    a.label("without a code")
    a.jump_if(9, "==", 0, "unmanaged")
    find_listener(a, maps, Stack.SOURCE, "of no flow from listener")
    a.jump_if(0, "!=", 0, "own control")
    a.label("unmanaged")
    a.set(9, UNMANAGED)
    a.compute(8, "&", IS_CONTROL)
    a.jump_if(8, "==", 0, "enqueue")
    a.set(9, UNTRUSTED_CS6)
    a.jump("enqueue")
    a.label("own control")
    a.set(9, UNMANAGED_CONTROL)


def _bound(a: Assembler, maps: ClassifierMaps) -> None:
    """Control packets pass while what passed before has not used up the burst; then they go last.

    Only one processor at a time puts packets into a queueing discipline: plain loads and stores will do.
    """
    a.label("control")
    a.set(8, BOUNDS[0])
    a.jump("bounded")
    a.label("network control")
    a.set(9, UNMANAGED_CONTROL)
    a.set(8, BOUNDS[1])
    a.label("bounded")
    look_up(a, maps.queues, Stack.PORT)
    a.jump_if(0, "==", 0, "enqueue")
    a.copy(7, 0)
    a.compute_by(7, "+", 8)
    a.call(_TIME)
    a.load(8, 1, 7, 0)
    a.jump_if_by(1, ">=", 0, "used")
    a.copy(1, 0)
    a.label("used")
    a.load(8, 2, 7, 16)
    a.compute_by(0, "+", 2)
    a.jump_if_by(1, ">", 0, "beyond bound")
    a.load(4, 2, 6, _SKB_LENGTH)
    a.load(8, 3, 7, 8)
    a.compute_by(2, "*", 3)
    a.compute(2, ">>", 16)
    a.compute_by(1, "+", 2)
    a.store(8, 7, 0, 1)
    a.jump("enqueue")
    a.label("beyond bound")
    a.set(9, BEYOND_BOUND)


def _enqueue(a: Assembler, maps: ClassifierMaps, timed: bool) -> None:
    """Count the packet in the record of its kind, and name the class of its queue."""
    a.label("enqueue")
    a.compute(9, "&", 0x0F)
    look_up(a, maps.queues, Stack.PORT)
    a.jump_if(0, "==", 0, "counted")
    a.copy(1, 9)
    a.compute(1, "<<", 4)
    a.compute_by(0, "+", 1)
    a.set(1, 1)
    a.count_alone(0, 0, 1, 2)
    a.load(4, 1, 6, _SKB_LENGTH)
    a.count_alone(0, 8, 1, 2)
    a.label("counted")
    a.jump_if(9, "<=", UNMANAGED, "named")
    a.copy(1, 9)
    a.set(9, CONTROL)
    a.jump_if(1, "==", UNMANAGED_CONTROL, "named")
    a.set(9, UNMANAGED)
    a.label("named")
    # What goes last does so without being remembered: strangers shall not crowd out the others.
    a.jump_if(9, "==", UNMANAGED, "remembered")
    a.store(4, 10, Stack.VERDICT, 9)
    _remember(a, maps, "remembered")
    a.label("remembered")
    a.compute(9, "+", QUEUE_MINOR)
    a.store(4, 6, _SKB_CLASS, 9)
    if timed:
        a.store(4, 6, SKB_INDEX, 9)
        a.call(_TIME)
        a.compute(0, ">>", STAMP_SHIFT)
        a.store(4, 6, SKB_PRIORITY, 0)
    a.set(0, _PASS)
    a.exit()
