/*
 * What is around the program when frames go through a device: `generate` makes frames of flows that are chosen at random, both ways, and sends them;
 * `reflect` and `drop` are the least that a program at the other end can do; `sink` counts what comes back.
 */
#include "../../bpf/turn.bpf.c"

/* As `flows.rs` has them. */
enum { PORTS = 50000, FIRST_PORT = 1024, LABEL = 0x4000, PAYLOAD = 160 };

const volatile u32 flows = 1;
const volatile u32 is_v6 = 0;
static volatile u64 random = 88172645463325252ULL;

struct sunk_array {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*max_entries)[1];
    u32 *key;
    u64 *value;
} sunk SEC(".maps");

INLINE u32 address4(u32 net, u32 last) { return 10 | net << 8 | last << 24; }

INLINE void address6(u64 *address, u32 net, u32 last) {
    address[0] = 0xfd | (u64)swap16(net) << 16;
    address[1] = (u64)last << 56;
}

SEC("xdp") int generate(struct xdp_md *ctx) {
    u64 x = random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    random = x;
    u32 flow = (x >> 32) * flows >> 32;
    u32 to_peer = x & 1;
    u16 port = swap16(FIRST_PORT + flow % PORTS);
    u32 last = flow / PORTS + 1;
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethernet *ethernet = data;
    struct udp *udp = data + sizeof(*ethernet) + (is_v6 ? sizeof(struct ipv6) : sizeof(struct ipv4));
    struct channel_data *head = (void *)(udp + 1);
    if ((void *)(head + 1) + PAYLOAD > end)
        return XDP_DROP;
    u32 len = sizeof(*udp) + sizeof(*head) + PAYLOAD;
    ethernet->to[0] = 2;
    ethernet->to[1] = 0;
    ethernet->to[2] = swap16(1);
    ethernet->from[0] = 2;
    ethernet->from[1] = 0;
    ethernet->from[2] = swap16(9);
    if (is_v6) {
        struct ipv6 *ip = (void *)(ethernet + 1);
        ethernet->type = IPV6;
        ip->version = 0x60;
        ip->len = swap16(len);
        ip->next = UDP;
        ip->hops = 64;
        address6(&ip->addresses[0], to_peer ? 1 : 2, to_peer ? last : 1);
        address6(&ip->addresses[2], to_peer ? 2 : 3, to_peer ? 1 : last);
    } else {
        struct ipv4 *ip = (void *)(ethernet + 1);
        ethernet->type = IPV4;
        ip->version = 0x45;
        ip->tos = 0;
        ip->len = swap16(sizeof(*ip) + len);
        ip->id = 0;
        ip->fragment = DONT_FRAGMENT;
        ip->ttl = 64;
        ip->protocol = UDP;
        ip->addresses[0] = to_peer ? address4(1, last) : address4(2, 1);
        ip->addresses[1] = to_peer ? address4(2, 1) : address4(3, last);
        ip->check = 0;
        ip->check = ~header_sum(ip);
    }
    udp->from = to_peer ? port : swap16(FIRST_PORT + 1);
    udp->to = to_peer ? swap16(FIRST_PORT) : port;
    udp->len = swap16(len);
    udp->check = 0x1234;
    head->channel = to_peer ? swap16(LABEL) : 0;
    head->len = swap16(PAYLOAD);
    return XDP_TX;
}

SEC("xdp") int reflect(struct xdp_md *ctx) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (data + sizeof(struct ethernet) > end)
        return XDP_DROP;
    u64 from = *(u64 *)(data + 6) & 0xffffffffffff, to = *(u64 *)data & 0xffffffffffff;
    struct ethernet *ethernet = data;
    for (int i = 0; i < 3; i++) {
        ethernet->to[i] = (u16)(from >> 16 * i);
        ethernet->from[i] = (u16)(to >> 16 * i);
    }
    return XDP_TX;
}

SEC("xdp") int drop(struct xdp_md *ctx) { return XDP_DROP; }

SEC("xdp") int sink(struct xdp_md *ctx) {
    u32 first = 0;
    u64 *count = bpf_map_lookup_elem(&sunk, &first);
    if (count)
        *count += 1;
    return XDP_DROP;
}
