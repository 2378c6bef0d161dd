// eBPF programs of a port: one that puts each packet into a queue, limits flows and counts; one that times queues.
//
// programs.o is what `make programs` compiles of it, and what bpf.py loads. Layouts and numbers are those of records.py.
//
// Attached with direct action to the HTB queueing discipline of a port (see queues.py). For each packet:
//
// * Control is what the exchange itself sends so that it works: MQTT-SN messages of a flow other than PUBLISH,
//   handshakes of DTLS and everything marked DSCP CS6, if they come from the gateway; TCP from and to the coordinator's
//   REST; and what the network needs (ARP and other protocols than IP, IPv6 neighbour discovery). It goes to the control
//   queue, up to the port's bound (flow_table.py); what exceeds that goes last.
// * A PUBLISH of no flow that comes from the gateway and bears the mark of a class goes to the queue of that class,
//   for any client.
// * A PUBLISH of a flow goes to the queue of its class. So does application data of DTLS, whose content is hidden,
//   without the mark of control.
// * What goes to a multicast address that has a flow at this port, of its own or by a prefix of topics' codes (the
//   longest holds), is an event, whatever it looks like: it goes to the queue of its class here, and is never control.
//   If the flow has a source, what others send there is foreign: it is counted, and unmanaged.
// * What goes to the address of a topic's code that has no flow here is discarded and counted, as soon as there is any
//   prefix at all.
// * Before all this a flow's limiter, if it has one, cuts what exceeds its terms; control is none of its business.
// * A PUBLISH of a flow that is managed at another port (further along its path) keeps its class, and is not limited.
// * Everything else goes to the queue for unmanaged packets, which is served last: also what others mark CS6, and what
//   they send to the address of a flow.
//
// The gateway and the coordinator are known by the addresses they listen on (`FlowTable.trust`); before any is named,
// every sender may send to a flow, and a mark is believed there only.
//
// Flows are known by destination address and UDP port, over IPv4 and IPv6, with and without an 802.1Q tag. Fragments
// other than the first have no UDP port: they share the fate of the first, queue or limit, which is remembered by
// addresses and identification. An IPv6 extension header other than that of fragments hides the port: such packets are
// unmanaged.
//
// One processor at a time puts packets into a queueing discipline: counters need no atomic additions.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define BIG_ENDIAN_16(number) __builtin_bswap16(number)

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static __u64 (*clock_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*load_bytes)(const void *skb, __u32 offset, void *to, __u32 length) = (void *)BPF_FUNC_skb_load_bytes;
static long (*ring_output)(void *ring, void *record, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_output;

// Maps: the loader fills in their file descriptors. `port_number` stands for a number, which it fills in too.
extern char generation[], flows[], copies[], counters[], ports[], listeners[], fragments[], limiters[];
extern char ring[], missed[], port_number[];

enum {
    CONTROL = 0,
    UNMANAGED = 8,
    // Kinds of packets that are counted apart, and share one of these two queues.
    UNMANAGED_CONTROL = 9,
    BEYOND_BOUND = 10,
    UNTRUSTED_CS6 = 11,
    // What becomes of packets that go to no queue; later fragments share it with the first.
    DISCARDED = 13,
    LIMITED = 14,
    QUEUE_MINOR = 0x10,
    COPY_BITS = 32,
    LIMITER_PACKETS = 256,
    // Of the marks that the gateway sets, that of control; those of classes are in `queue_of_mark`.
    CONTROL_DSCP = 48,
    // What addresses of topics' codes begin with.
    CODES = 0xFF1E,
    // The time that packets carry is in steps of 64 ns, so that its 32 bits last for 274 s.
    STAMP_SHIFT = 6,
    BEGINNING_BYTES = 104,
};

// After this time a source may be found at another place.
#define SILENT_NS 60000000000ULL

// Of MQTT-SN, and of DTLS 1.2 and 1.0 records: MQTT-SN has no such octets, because in the envelope that the second would
// announce all but two bits of the third are zero.
enum { PUBLISH = 0x0C, ENCAPSULATED = 0xFE, DTLS_1_2 = 0xFD, DTLS_1_0 = 0xFF, APPLICATION_DATA = 23 };

struct address {
    __u64 half[2];
};

struct endpoint {
    union {
        struct address address;
        __u8 octet[16];
        __u16 word[8];
        __u32 quarter[4];
    };
    __u16 port;
    // 0 in the key of a flow.
    __u16 protocol;
};

struct copy_key {
    __u32 bits;
    __u16 port;
    __u16 udp_port;
    struct address address;
};

struct now {
    __u32 generation;
    __u32 knows_listeners;
    __u32 has_prefixes;
    __u32 unused;
};

struct policy {
    __u32 port;
    __u32 queue;
    __u32 counter;
    __u32 limiter;
    struct address source;
};

struct flow {
    __u32 generation;
    __u32 unused;
    struct policy before;
    struct policy after;
};

struct counter {
    __u64 packets;
    __u64 passed_bytes;
    __u64 limited;
    __u64 foreign;
    __u64 place;
    __u64 seen_ns;
};

struct passed {
    __u64 again_ns;
    __u64 up_to_bytes;
};

struct limiter {
    __u64 most_bytes;
    __u64 window_ns;
    __u64 jitter_ns;
    __u64 passed_bytes;
    __u64 passed_packets;
    __u64 unused[3];
    struct passed passed[LIMITER_PACKETS];
};

struct count {
    __u64 packets;
    __u64 bytes;
};

struct bound {
    __u64 used_until_ns;
    __u64 ns_per_byte;
    __u64 burst_ns;
    __u64 unused;
};

struct port {
    union {
        struct count count[32];
        struct {
            struct count queues[12];
            struct bound own;
            struct bound network;
            struct count discarded;
            __u32 classes;
        };
    };
};

struct fragment_key {
    struct address source;
    struct address destination;
    __u32 identification;
    __u32 port;
};

struct verdict {
    __u32 queue;
    // One more than the number of the flow's counter, or 0.
    __u32 counter;
    __u32 limiter;
    __u32 unused;
};

// What is known of a packet. `source` and `destination` are keys of maps.
struct packet {
    struct __sk_buff *skb;
    struct endpoint source;
    struct endpoint destination;
    struct verdict verdict;
    // The interface where it came in (0 for this host's own), and behind it the device's Ethernet address.
    __u64 place;
    __u32 port;
    __u32 identification;
    __u32 offset;
    __u8 mark;
    __u8 is_first_fragment;
};

enum kind { OTHER, NETWORK_CONTROL, OWN_CONTROL, LATER_FRAGMENT, EVENT, MESSAGE };

INLINE void *value_of(void *map, __u32 number)
{
    return map_lookup(map, &number);
}

INLINE struct port *record_of(struct packet *p)
{
    return value_of(ports, p->port);
}

// Whether the exchange listens there, at this address or at any.
INLINE int is_listener(const struct endpoint *end)
{
    struct endpoint any = {.port = end->port, .protocol = end->protocol};

    return map_lookup(listeners, end) || map_lookup(listeners, &any);
}

// The queue of the class whose mark a packet has; 0 for none.
INLINE __u32 queue_of_mark(__u8 mark)
{
    switch (mark) {
    case 46:
        return 1;
    case 40:
        return 2;
    case 32:
        return 3;
    case 24:
        return 4;
    case 16:
        return 5;
    case 8:
        return 6;
    case 1:
        return 7;
    }
    return 0;
}

INLINE void map_ipv4(struct endpoint *end, __u32 address)
{
    end->address.half[0] = 0;
    end->word[4] = 0;
    end->word[5] = 0xFFFF;
    end->quarter[3] = address;
}

// The ports, and whether the datagram is a PUBLISH: its type follows a length of one octet or (01) of three.
INLINE enum kind read_udp(struct packet *p)
{
    struct {
        __u16 source, destination, length, checksum;
        // Of the message: what is too short to have flags behind its type is no PUBLISH.
        __u8 begins[4];
    } datagram = {};
    __u8 *message = datagram.begins;
    int is_short = load_bytes(p->skb, p->offset, &datagram, 8 + 3);

    if (is_short && load_bytes(p->skb, p->offset, &datagram, 8))
        return OTHER;
    p->source.port = datagram.source;
    p->destination.port = datagram.destination;
    if (is_short)
        return MESSAGE;
    p->offset += 8;
    if (message[1] == ENCAPSULATED) {
        if (message[2] == DTLS_1_2 || message[2] == DTLS_1_0)
            return message[0] == APPLICATION_DATA ? EVENT : MESSAGE;
        // A forwarder's envelope has a length of one octet, and the message follows it.
        p->offset += message[0];
        if (load_bytes(p->skb, p->offset, message, 3))
            return MESSAGE;
    }
    if (message[0] == 1 && load_bytes(p->skb, p->offset + 2, message, 3))
        return MESSAGE;
    return message[1] == PUBLISH ? EVENT : MESSAGE;
}

INLINE enum kind read_transport(struct packet *p, __u8 protocol)
{
    __u16 ends[2];

    p->source.protocol = p->destination.protocol = protocol;
    if (protocol == IPPROTO_UDP)
        return read_udp(p);
    if (protocol != IPPROTO_TCP || load_bytes(p->skb, p->offset, ends, sizeof(ends)))
        return OTHER;
    p->source.port = ends[0];
    p->destination.port = ends[1];
    return is_listener(&p->source) || is_listener(&p->destination) ? OWN_CONTROL : OTHER;
}

INLINE enum kind read_ipv4(struct packet *p, const struct iphdr *ip)
{
    p->mark = ip->tos >> 2;
    map_ipv4(&p->source, ip->saddr);
    map_ipv4(&p->destination, ip->daddr);
    p->offset += ip->ihl * 4;
    p->identification = ip->id;
    if (ip->frag_off & BIG_ENDIAN_16(0x1FFF))
        return LATER_FRAGMENT;
    p->is_first_fragment = !!(ip->frag_off & BIG_ENDIAN_16(0x2000));
    return read_transport(p, ip->protocol);
}

INLINE enum kind read_ipv6(struct packet *p)
{
    struct {
        __u8 begins[8];
        struct address source, destination;
    } ip;
    struct {
        __u8 next, unused;
        __u16 offset;
        __u32 identification;
    } fragment;
    __u8 next, type;

    if (load_bytes(p->skb, p->offset, &ip, sizeof(ip)))
        return OTHER;
    // The traffic class lies across the first two octets.
    p->mark = (ip.begins[0] & 0x0F) << 2 | ip.begins[1] >> 6;
    p->source.address = ip.source;
    p->destination.address = ip.destination;
    p->offset += sizeof(ip);
    next = ip.begins[6];
    if (next == IPPROTO_FRAGMENT) {
        if (load_bytes(p->skb, p->offset, &fragment, sizeof(fragment)))
            return OTHER;
        p->offset += sizeof(fragment);
        next = fragment.next;
        p->identification = fragment.identification;
        if (fragment.offset & BIG_ENDIAN_16(0xFFF8))
            return LATER_FRAGMENT;
        p->is_first_fragment = !!(fragment.offset & BIG_ENDIAN_16(0x0001));
    }
    if (next != IPPROTO_ICMPV6)
        return read_transport(p, next);
    // Neighbour discovery.
    if (load_bytes(p->skb, p->offset, &type, 1))
        return OTHER;
    return type >= 133 && type <= 137 ? NETWORK_CONTROL : OTHER;
}

INLINE enum kind read_packet(struct packet *p)
{
    struct {
        __u16 aligns_addresses;
        struct ethhdr ethernet;
        struct iphdr ip;
    } frame;
    struct {
        __u16 control, type;
    } tag;
    __u16 type;
    // Each read costs a call into the kernel: most packets take two.
    int is_short = load_bytes(p->skb, 0, &frame.ethernet, ETH_HLEN + sizeof(frame.ip));

    if (is_short && load_bytes(p->skb, 0, &frame.ethernet, ETH_HLEN))
        return OTHER;
    p->place = (__u64)p->skb->ingress_ifindex << 48;
    __builtin_memcpy(&p->place, frame.ethernet.h_source, ETH_ALEN);
    p->offset = ETH_HLEN;
    type = frame.ethernet.h_proto;
    if (type == BIG_ENDIAN_16(ETH_P_IP))
        return is_short ? OTHER : read_ipv4(p, &frame.ip);
    if (type == BIG_ENDIAN_16(ETH_P_8021Q) || type == BIG_ENDIAN_16(ETH_P_8021AD)) {
        if (load_bytes(p->skb, p->offset, &tag, sizeof(tag)))
            return OTHER;
        p->offset += sizeof(tag);
        type = tag.type;
    }
    if (type == BIG_ENDIAN_16(ETH_P_IPV6))
        return read_ipv6(p);
    if (type != BIG_ENDIAN_16(ETH_P_IP))
        return NETWORK_CONTROL;
    if (load_bytes(p->skb, p->offset, &frame.ip, sizeof(frame.ip)))
        return OTHER;
    return read_ipv4(p, &frame.ip);
}

INLINE int is_multicast(const struct endpoint *end)
{
    // ff00::/8, and 224.0.0.0/4 mapped into IPv6.
    return end->octet[0] == 0xFF || (end->octet[0] == 0 && end->word[5] == 0xFFFF && (end->octet[12] & 0xF0) == 0xE0);
}

INLINE void make_fragment_key(const struct packet *p, struct fragment_key *key)
{
    key->source = p->source.address;
    key->destination = p->destination.address;
    key->identification = p->identification;
    key->port = p->port;
}

// Keep the verdict on a first fragment for those that follow it.
INLINE void remember(struct packet *p, __u32 queue)
{
    struct fragment_key key;

    if (!p->is_first_fragment)
        return;
    make_fragment_key(p, &key);
    p->verdict.queue = queue;
    map_update(fragments, &key, &p->verdict, BPF_ANY);
}

INLINE __u32 unmanaged_queue(const struct packet *p)
{
    return p->mark == CONTROL_DSCP ? UNTRUSTED_CS6 : UNMANAGED;
}

// Control packets pass while what passed before has not used up the burst; then they go last.
INLINE __u32 control_queue(struct packet *p, __u32 queue, int is_own)
{
    struct port *record = record_of(p);
    struct bound *bound;
    __u64 now_ns, until_ns;

    if (!record)
        return queue;
    bound = is_own ? &record->own : &record->network;
    now_ns = clock_ns();
    until_ns = bound->used_until_ns;
    if (until_ns < now_ns)
        until_ns = now_ns;
    if (until_ns > now_ns + bound->burst_ns)
        return BEYOND_BOUND;
    bound->used_until_ns = until_ns + (p->skb->len * bound->ns_per_byte >> 16);
    return queue;
}

// Whether a flow's window has room for the packet.
//
// The steps are those of embedded/output_port.py: an octet takes the place of the one that passed as many octets before
// it as a message has. The packet that brought that one is looked for in halves, from the oldest that is remembered on.
// Who changes a limiter meanwhile writes its settings only: one packet may see some of the old and some of the new.
INLINE int takes_place(struct packet *p, __u32 number)
{
    struct limiter *limiter;
    struct passed *place;
    __u64 now_ns, due_ns, needed, most, packets;
    __u32 bytes = p->skb->len;

    if (!number)
        return 1;
    now_ns = due_ns = clock_ns();
    limiter = value_of(limiters, number);
    if (!limiter)
        return 1;
    most = limiter->most_bytes;
    if (bytes > most)
        return 0;
    needed = limiter->passed_bytes + bytes;
    if (needed > most) {
        needed -= most;
        packets = limiter->passed_packets;
#pragma unroll
        for (int half = LIMITER_PACKETS / 2; half; half /= 2)
            if (limiter->passed[(packets + half - 1) % LIMITER_PACKETS].up_to_bytes < needed)
                packets += half;
        place = &limiter->passed[packets % LIMITER_PACKETS];
        if (place->again_ns > now_ns + limiter->jitter_ns)
            return 0;
        if (place->again_ns > now_ns)
            due_ns = place->again_ns;
    }
    limiter->passed_bytes += bytes;
    place = &limiter->passed[limiter->passed_packets++ % LIMITER_PACKETS];
    place->again_ns = due_ns + limiter->window_ns;
    place->up_to_bytes = limiter->passed_bytes;
    return 1;
}

// Count a flow's packet, and let it pass its limiter.
INLINE __u32 limit(struct packet *p, __u32 queue)
{
    struct counter *counter = value_of(counters, p->verdict.counter - 1);

    if (!counter)
        return unmanaged_queue(p);
    counter->packets++;
    if (queue != LIMITED && takes_place(p, p->verdict.limiter)) {
        counter->passed_bytes += p->skb->len;
        return queue;
    }
    counter->limited++;
    return LIMITED;
}

// Later fragments count as packets of their flow, go where the first went, and are dropped if it was.
// Each takes its own share of its flow's limiter.
INLINE __u32 follow_first_fragment(struct packet *p)
{
    struct fragment_key key;
    struct verdict *first;

    make_fragment_key(p, &key);
    first = map_lookup(fragments, &key);
    if (!first)
        return unmanaged_queue(p);
    p->verdict = *first;
    if (first->counter)
        return limit(p, first->queue);
    return first->queue == CONTROL ? control_queue(p, CONTROL, 1) : first->queue;
}

// UDP to a key without a flow. Events of the gateway say their class; classes that a port does not have go to its last.
INLINE __u32 queue_without_flow(struct packet *p, int is_message)
{
    __u32 queue = is_message ? 0 : queue_of_mark(p->mark);
    struct now *now = value_of(generation, 0);
    struct port *record = record_of(p);

    if (queue && record && is_listener(&p->source))
        return queue > record->classes ? record->classes : queue;
    if (p->destination.word[0] == BIG_ENDIAN_16(CODES) && now && now->has_prefixes)
        return DISCARDED;
    if (is_message && is_listener(&p->source))
        return control_queue(p, UNMANAGED_CONTROL, 1);
    return unmanaged_queue(p);
}

// Whether a source is where it first sent from: it may move to another interface, or change its device, but not both,
// as long as it is heard of. What claims its address elsewhere is foreign.
INLINE int is_in_its_place(struct packet *p, struct counter *counter)
{
    __u64 now_ns = clock_ns(), known = counter->place;

    if (!(p->place >> 48))
        return 1;
    if (known && known >> 48 != p->place >> 48 && known << 16 != p->place << 16 && now_ns - counter->seen_ns <= SILENT_NS)
        return 0;
    counter->place = p->place;
    counter->seen_ns = now_ns;
    return 1;
}

// Whether a multicast flow's source, if it has one, has sent the packet.
INLINE int is_of_source(struct packet *p, struct policy *policy)
{
    struct counter *counter;

    if (!(policy->source.half[0] | policy->source.half[1]))
        return 1;
    counter = value_of(counters, policy->counter);
    if (!counter)
        return 0;
    if (policy->source.half[0] == p->source.address.half[0] && policy->source.half[1] == p->source.address.half[1] &&
        is_in_its_place(p, counter))
        return 1;
    counter->foreign++;
    return 0;
}

INLINE __u32 queue_of_datagram(struct packet *p, int is_message)
{
    int is_copy = is_multicast(&p->destination);
    struct now *now = value_of(generation, 0);
    struct flow *flow;
    struct policy *policy;

    if (p->mark == CONTROL_DSCP)
        is_message = 1;
    p->destination.protocol = 0;
    if (is_copy) {
        struct copy_key key = {COPY_BITS + 128, p->port, p->destination.port, p->destination.address};

        flow = map_lookup(copies, &key);
    } else {
        flow = map_lookup(flows, &p->destination);
    }
    if (!flow || !now)
        return queue_without_flow(p, is_message);
    policy = flow->generation > now->generation ? &flow->before : &flow->after;
    if (!policy->port)
        return queue_without_flow(p, is_message);
    if (is_copy ? !is_of_source(p, policy) : now->knows_listeners && !is_listener(&p->source))
        return unmanaged_queue(p);
    if (is_message && !is_copy)
        return control_queue(p, CONTROL, 1);
    if (policy->port != p->port)
        return policy->queue;
    p->verdict.counter = policy->counter + 1;
    p->verdict.limiter = policy->limiter;
    return limit(p, policy->queue);
}

INLINE __u32 queue_of(struct packet *p)
{
    enum kind kind = read_packet(p);

    switch (kind) {
    case EVENT:
    case MESSAGE:
        return queue_of_datagram(p, kind == MESSAGE);
    case LATER_FRAGMENT:
        return follow_first_fragment(p);
    case NETWORK_CONTROL:
    case OWN_CONTROL:
        return control_queue(p, UNMANAGED_CONTROL, kind == OWN_CONTROL);
    default:
        return unmanaged_queue(p);
    }
}

// Count the packet in the record of its kind, and name the class of its queue, or drop it.
INLINE int enqueue(struct packet *p, __u32 queue, int timed)
{
    struct port *record = record_of(p);

    queue &= 0x0F;
    if (record && queue != LIMITED) {
        struct count *count = queue == DISCARDED ? &record->discarded : &record->count[queue];

        count->packets++;
        count->bytes += p->skb->len;
    }
    if (queue == UNMANAGED_CONTROL)
        queue = CONTROL;
    // What goes last does so without being remembered: untrusted senders must not crowd out the others.
    if (queue < UNMANAGED || queue >= DISCARDED)
        remember(p, queue);
    if (queue >= DISCARDED)
        return TC_ACT_SHOT;
    if (queue > UNMANAGED)
        queue = UNMANAGED;
    queue += QUEUE_MINOR;
    p->skb->tc_classid = queue;
    if (timed) {
        p->skb->tc_index = queue;
        p->skb->priority = clock_ns() >> STAMP_SHIFT;
    }
    return TC_ACT_OK;
}

INLINE int classify(struct __sk_buff *skb, int timed)
{
    // Where the program is attached says by which port a packet leaves (`attach_classifier`).
    struct packet p = {.skb = skb, .port = (skb->tc_classid + 1) & 0xFFFF};

    return enqueue(&p, queue_of(&p), timed);
}

SECTION("tc/classifier") int classifier(struct __sk_buff *skb)
{
    return classify(skb, 0);
}

// The same where ports are timed: packets carry when and into which queue they were put.
SECTION("tc/timed_classifier") int timed_classifier(struct __sk_buff *skb)
{
    return classify(skb, 1);
}

struct record {
    __u64 left_ns;
    __u32 waited;
    __u16 port;
    __u16 minor;
    __u8 beginning[BEGINNING_BYTES];
};

// What a timed port lets go, for queue_times.py; no packet is copied to the socket.
SECTION("socket/tap") int tap(struct __sk_buff *skb)
{
    struct record record = {};
    __u32 minor = skb->tc_index, length = skb->len;
    __u64 *lost;

    if (skb->pkt_type != 4 /* PACKET_OUTGOING */ || length < ETH_HLEN)
        return 0;
    if (minor <= QUEUE_MINOR + CONTROL || minor >= QUEUE_MINOR + UNMANAGED)
        return 0;
    record.left_ns = clock_ns();
    record.waited = (record.left_ns >> STAMP_SHIFT) - skb->priority;
    record.port = (__u64)port_number;
    record.minor = minor;
    if (length > BEGINNING_BYTES)
        length = BEGINNING_BYTES;
    load_bytes(skb, 0, record.beginning, length);
    if (ring_output(ring, &record, sizeof(record), BPF_RB_NO_WAKEUP)) {
        lost = value_of(missed, 0);
        if (lost)
            __sync_fetch_and_add(lost, 1);
    }
    return 0;
}
