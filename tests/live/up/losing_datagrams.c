// Loses UDP over IPv4 at random: the share of it that stands, of 2^32, in a map.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u32 (*random_number)(void) = (void *)BPF_FUNC_get_prandom_u32;
static long (*load_bytes)(const void *skb, __u32 offset, void *to, __u32 length) = (void *)BPF_FUNC_skb_load_bytes;

extern char share[];

__attribute__((section("tc/lose"), used)) int lose(struct __sk_buff *skb)
{
    __u8 protocol;
    __u32 first = 0;
    __u64 *lost_of_2_32 = map_lookup(share, &first);

    if (load_bytes(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, protocol), &protocol, 1) || protocol != IPPROTO_UDP)
        return TC_ACT_OK;
    return lost_of_2_32 && random_number() < *lost_of_2_32 ? TC_ACT_SHOT : TC_ACT_OK;
}
