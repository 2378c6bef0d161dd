// Lets a share of the packets that arrive over a link go, and keeps the beginning of each: see losing.py.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#define KEPT_BYTES 64

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*map_push)(void *map, const void *value, __u64 flags) = (void *)BPF_FUNC_map_push_elem;
static __u32 (*random_number)(void) = (void *)BPF_FUNC_get_prandom_u32;
static long (*load_bytes)(const void *skb, __u32 offset, void *to, __u32 length) = (void *)BPF_FUNC_skb_load_bytes;

// Maps: the loader fills in their file descriptors.
extern char share[], lost[];

__attribute__((section("tc/lose"), used)) int lose(struct __sk_buff *skb)
{
    __u8 beginning[KEPT_BYTES] __attribute__((aligned(8))) = {};
    __u32 first = 0, length = skb->len;
    __u64 *lost_of_2_32 = map_lookup(share, &first);

    if (!lost_of_2_32 || random_number() >= *lost_of_2_32)
        return TC_ACT_OK;
    if (length >= ETH_HLEN) {
        load_bytes(skb, 0, beginning, length < KEPT_BYTES ? length : KEPT_BYTES);
        // Where there is no room for more, the oldest goes.
        map_push(lost, beginning, BPF_EXIST);
    }
    return TC_ACT_SHOT;
}
