/*
 * Relays ChannelData of flows that user space has published, both ways, for IPv4 and IPv6. XDP, Linux 5.15 or later.
 *
 * A packet is sent on only if all that concerns it is as expected; everything else is passed to the sockets unchanged, so that user space decides
 * about it. Two kinds are dropped here, because user space would drop them for the same reason: what is beyond the rate of an allocation, which is
 * counted in its meter, and what comes to a listener and begins as nothing does that is served there, which is counted by processor.
 *
 * User space writes lines, next hops, meters and listeners through shared memory (`src/offload`). It is the only writer of all fields but `packets` and `bytes`; the
 * buckets of a meter are charged by both. A line is read between two readings of its `seq`; if they differ, the packet is passed. `tests/offload.rs` compares the structures with those of Rust, and the
 * program with a model. `build` makes the object.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

/* What linux/bpf.h declares, as far as it is needed: the object must not depend on the headers of the machine that builds it. */
struct xdp_md {
    u32 data;
    u32 data_end;
    u32 data_meta;
    u32 ingress_ifindex;
    u32 rx_queue_index;
    u32 egress_ifindex;
};
enum { XDP_DROP = 1, XDP_PASS = 2, XDP_TX = 3 };
enum { BPF_MAP_TYPE_ARRAY = 2, BPF_F_MMAPABLE = 1 << 10 };
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_redirect)(u32 ifindex, u64 flags) = (void *)23;
static long (*bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;
static u64 (*bpf_jiffies64)(void) = (void *)118;
static u64 (*bpf_ktime_get_boot_ns)(void) = (void *)125;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))
/* Keeps the order of loads in the code. x86-64 keeps it in memory (Intel SDM volume 3, 9.2.2); elsewhere this program is not used. */
#define barrier() __asm__ volatile("" ::: "memory")

/* The last two bits of `seq`: a line that is published. The upper 32 bits are the place of its meter, 0 for none. */
enum { LIVE = 2, STATE = 3 };
enum { BUCKET = 4 };

/*
 * A flow in one direction. `ports` and `addresses` are the key, as they stand in the packet: source, then destination. The third 16 bits of `ports` are
 * the channel that the packet has, of `new_ports` the channel that it gets, 0 for none; the last 16 bits of `new_ports` are the next hop.
 */
struct line4 {
    u64 seq;
    u64 ports;
    u64 addresses[1];
    u64 new_ports;
    u64 new_addresses[1];
    u64 expires_ns; /* CLOCK_BOOTTIME */
    u64 packets;
    u64 bytes; /* payload without ChannelData headers */
};
struct line6 {
    u64 seq;
    u64 ports;
    u64 addresses[4];
    u64 new_ports;
    u64 new_addresses[4];
    u64 expires_ns;
    u64 packets;
    u64 bytes;
    u64 unused[2];
};
struct bucket4 {
    struct line4 lines[BUCKET];
};
struct bucket6 {
    struct line6 lines[BUCKET];
};
/* `egress`: interface index, 16 bits of MTU, 16 bits of version; version 0 means that the hop is not known. */
struct hop {
    u64 egress;
    u64 destination; /* link-layer addresses in the low 48 bits, as they stand in the frame */
    u64 source; /* above it the last version */
    u64 unused;
};
/*
 * The rate of an allocation and its buckets, to peers and to the client: when they will be empty (CLOCK_BOOTTIME). `packets` and `bytes` (of payload)
 * were dropped because they were beyond it.
 */
struct meter {
    u64 rate; /* bytes per second; 0 for a place that is free */
    u64 empty_at_ns[2];
    u64 packets[2];
    u64 bytes[2];
    u64 unused;
};
/* Why packets of published flows were passed. */
struct passes {
    u64 expired;
    u64 changing;
    u64 next_hop;
    u64 too_large;
    u64 checksum;
    u64 headroom;
    u64 padding;
    u64 unused;
};

/*
 * Where datagrams of clients come, and how they may begin. `place`: the port as it stands in the packet, and LISTENER, with V6 for an address of IPv6.
 * `first_bytes` has a bit for each first byte that is somebody's. `mark`: datagrams whose first byte is less than what bits 32 to 39 say begin with a
 * header of as many bytes as bits 40 to 47 say. At offset 2 it says how many follow, a multiple of four, and at offset 4 it has the low 32 bits.
 */
struct listener {
    u64 place;
    u64 address[2];
    u64 first_bytes[4];
    u64 mark;
};
struct listeners {
    struct listener of[BUCKET];
};
enum { LISTENER = 1 << 16, V6 = 1 << 17, LISTENER_BUCKETS = 64 };
/* What came to listeners and was dropped. */
struct refused {
    u64 unknown; /* the first byte is nobody's, or there is none */
    u64 unmarked; /* no header as the mark says */
    u64 unused[6];
};

struct array4 {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*map_flags)[BPF_F_MMAPABLE];
    int (*max_entries)[1];
    u32 *key;
    struct bucket4 *value;
} lines4 SEC(".maps");
struct array6 {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*map_flags)[BPF_F_MMAPABLE];
    int (*max_entries)[1];
    u32 *key;
    struct bucket6 *value;
} lines6 SEC(".maps");
struct hop_array {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*map_flags)[BPF_F_MMAPABLE];
    int (*max_entries)[65536];
    u32 *key;
    struct hop *value;
} hops SEC(".maps");
struct meter_array {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*map_flags)[BPF_F_MMAPABLE];
    int (*max_entries)[1];
    u32 *key;
    struct meter *value;
} meters SEC(".maps");
/* By interface index: the link-layer address in the low 48 bits, above them 1 if packets are relayed. */
struct device_array {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*map_flags)[BPF_F_MMAPABLE];
    int (*max_entries)[65536];
    u32 *key;
    u64 *value;
} devices SEC(".maps");
/* By processor. */
struct passes_array {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*map_flags)[BPF_F_MMAPABLE];
    int (*max_entries)[1024];
    u32 *key;
    struct passes *value;
} passed SEC(".maps");
struct listener_array {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*map_flags)[BPF_F_MMAPABLE];
    int (*max_entries)[LISTENER_BUCKETS];
    u32 *key;
    struct listeners *value;
} listening SEC(".maps");
/* By processor. */
struct refused_array {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*map_flags)[BPF_F_MMAPABLE];
    int (*max_entries)[1024];
    u32 *key;
    struct refused *value;
} refusals SEC(".maps");

/* Set when the program is loaded: the key of the hash, and the number of buckets minus 1. */
const volatile u64 seed = 0;
const volatile u32 mask4 = 0;
const volatile u32 mask6 = 0;

/*
 * What lies in a packet. Behind the first header, of 14 bytes, its words are not aligned; x86-64 reads and writes them all the same. Declared as packed they
 * would be read byte by byte.
 */
struct ethernet {
    u16 to[3];
    u16 from[3];
    u16 type;
};
struct ipv4 {
    u8 version;
    u8 tos;
    u16 len;
    u16 id;
    u16 fragment;
    u8 ttl;
    u8 protocol;
    u16 check;
    u32 addresses[2];
};
struct ipv6 {
    u32 version;
    u16 len;
    u8 next;
    u8 hops;
    u64 addresses[4];
};
struct udp {
    u16 from;
    u16 to;
    u16 len;
    u16 check;
};
struct channel_data {
    u16 channel;
    u16 len;
};

#define swap16(x) __builtin_bswap16(x)
#define IPV4 swap16(0x0800)
#define IPV6 swap16(0x86dd)
#define DONT_FRAGMENT swap16(0x4000)
enum { UDP = 17 };
/* The verifier follows offsets into a packet up to 65,535 only. */
enum { CHANNEL_DATA_MAX = 0x7fff };

/* Adds one to a count of this processor. */
#define COUNT_IN(map, counts, field)                                                                                                                \
    do {                                                                                                                                            \
        u32 cpu = bpf_get_smp_processor_id();                                                                                                       \
        struct counts *of_cpu = bpf_map_lookup_elem(&map, &cpu);                                                                                    \
        if (of_cpu)                                                                                                                                 \
            __sync_fetch_and_add(&of_cpu->field, 1);                                                                                                \
    } while (0)
#define COUNT(field) COUNT_IN(passed, passes, field)

INLINE u64 mix(u64 hash, u64 word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ULL;
    return hash ^ hash >> 29;
}

/* The tick of the kernel's clock (`jiffies`) in which the exact one was read last, and what it said. */
static u64 tick = 0;
static u64 tick_ns = 0;
/* A tick is 10 ms at most. The processor that counts ticks for all, or one that is about to write these two, may be held up by the host of a virtual machine. */
#define MARGIN_NS 100000000ULL

/* Returns a time that is not before CLOCK_BOOTTIME. That clock takes longer to read than all else here, so it is read once in a tick. */
INLINE u64 latest_ns(void) {
    u64 now = bpf_jiffies64();
    if (READ_ONCE(tick) != now) {
        WRITE_ONCE(tick_ns, bpf_ktime_get_boot_ns());
        barrier();
        WRITE_ONCE(tick, now);
    }
    barrier();
    // guard: offload-clock
    return READ_ONCE(tick_ns) + MARGIN_NS;
}

INLINE u64 sum32(u64 word) { return (word & 0xffffffff) + (word >> 32); }

INLINE u16 fold(u64 sum) {
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (u16)sum;
}

/*
 * Charges `bytes` to a bucket as the engine does: the bucket is empty later by what they take at the meter's rate, unless it would hold more than a
 * second's worth. Sets `cost` to that time.
 */
enum charge { ADMITTED, BEYOND, CONTENDED };
#define SECOND 1000000000ULL
INLINE enum charge charge(u64 *empty_at_ns, u64 rate, u64 now, u64 bytes, u64 *cost) {
    *cost = (bytes * SECOND + rate - 1) / rate;
    for (int i = 0; i < 8; i++) {
        u64 old = READ_ONCE(*empty_at_ns);
        u64 filled = old > now ? old - now : 0;
        u64 free = filled < SECOND ? SECOND - filled : 0;
        if (bytes * SECOND > free * rate)
            return BEYOND;
        if (__sync_val_compare_and_swap(empty_at_ns, old, now + filled + *cost) == old)
            return ADMITTED;
    }
    return CONTENDED;
}

#define FIND(NAME, LINE, BUCKETS, MAP, MASK, WORDS)                                                                                                 \
    INLINE struct LINE *NAME(u64 ports, const u64 *addresses, u64 *seq) {                                                                           \
        u64 hash = mix(seed, ports);                                                                                                                \
        for (int i = 0; i < WORDS; i++)                                                                                                             \
            hash = mix(hash, addresses[i]);                                                                                                         \
        u32 index[2] = {(u32)hash & MASK, (u32)(hash >> 32) & MASK};                                                                                \
        for (int choice = 0; choice < 2; choice++) {                                                                                                \
            u32 at = index[choice];                                                                                                                 \
            struct BUCKETS *bucket = bpf_map_lookup_elem(&MAP, &at);                                                                                \
            if (!bucket)                                                                                                                            \
                return 0;                                                                                                                           \
            for (int i = 0; i < BUCKET; i++) {                                                                                                      \
                struct LINE *line = &bucket->lines[i];                                                                                              \
                *seq = READ_ONCE(line->seq);                                                                                                        \
                barrier();                                                                                                                          \
                u64 differs = READ_ONCE(line->ports) ^ ports;                                                                                       \
                for (int word = 0; word < WORDS; word++)                                                                                            \
                    differs |= READ_ONCE(line->addresses[word]) ^ addresses[word];                                                                  \
                if ((*seq & STATE) == LIVE && !differs)                                                                                             \
                    return line;                                                                                                                    \
            }                                                                                                                                       \
        }                                                                                                                                           \
        return 0;                                                                                                                                   \
    }
FIND(find4, line4, bucket4, lines4, mask4, 1)
FIND(find6, line6, bucket6, lines6, mask6, 4)

/* Returns whether a line is another one now, or the same but written again, than when its `seq` was read. */
INLINE int has_changed(const u64 *seq, u64 read) {
    barrier();
    // guard: offload-second-reading
    return READ_ONCE(*seq) != read;
}

/* Returns whether the bytes of a datagram could begin something that is served at a listener; counts it if not. */
INLINE int is_somebodys(const struct listener *listener, const u8 *payload, u32 len, const void *end) {
    if (!len) {
        COUNT_IN(refusals, refused, unknown);
        return 0;
    }
    if ((const void *)(payload + 1) > end)
        return 1;
    u32 first = *payload;
    if (!(READ_ONCE(listener->first_bytes[first >> 6]) >> (first & 63) & 1)) {
        COUNT_IN(refusals, refused, unknown);
        return 0;
    }
    u64 mark = READ_ONCE(listener->mark);
    if (first >= (u8)(mark >> 32))
        return 1;
    u32 header_len = (u8)(mark >> 40);
    if (len >= header_len) {
        if ((const void *)(payload + 8) > end)
            return 1;
        const u16 *words = (const u16 *)payload;
        u32 follow = swap16(words[1]);
        if (words[2] == (u16)mark && words[3] == (u16)(mark >> 16) && follow == len - header_len && !(follow & 3))
            return 1;
    }
    COUNT_IN(refusals, refused, unmarked);
    return 0;
}

/* Decides about a datagram of no published flow, by where it came. */
INLINE int screen(const u64 *address, u64 place, const u8 *payload, u32 len, const void *end) {
    u32 at = (u32)mix(mix(mix(seed, place), address[0]), address[1]) & (LISTENER_BUCKETS - 1);
    struct listeners *listeners = bpf_map_lookup_elem(&listening, &at);
    if (!listeners)
        return XDP_PASS;
    for (int i = 0; i < BUCKET; i++) {
        struct listener *listener = &listeners->of[i];
        if (READ_ONCE(listener->place) != place)
            continue;
        barrier();
        if (READ_ONCE(listener->address[0]) == address[0] && READ_ONCE(listener->address[1]) == address[1])
            return is_somebodys(listener, payload, len, end) ? XDP_PASS : XDP_DROP;
    }
    return XDP_PASS;
}

/* A test has a writer come between two readings of one line, by a pause there. */
#ifndef BETWEEN_READINGS
#define BETWEEN_READINGS
#endif

/* Both families have the same steps; what differs is chosen by the names and by IS_V6, which is constant. */
#define RELAY(NAME, FIND_LINE, LINE, IP, WORDS, IS_V6)                                                                                              \
    INLINE int NAME(struct xdp_md *ctx) {                                                                                                           \
        void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;                                                                   \
        struct ethernet *ethernet = data;                                                                                                           \
        struct IP *ip = data + sizeof(*ethernet);                                                                                                   \
        struct udp *udp = (void *)(ip + 1);                                                                                                         \
        struct channel_data *head = (void *)(udp + 1);                                                                                              \
        if ((void *)head > end)                                                                                                                     \
            return XDP_PASS;                                                                                                                        \
        struct IP old = *ip;                                                                                                                        \
        u32 udp_len = usable_##IP(&old);                                                                                                            \
        u32 len = swap16(udp->len);                                                                                                                 \
        if (udp_len < sizeof(*udp) || len != udp_len || data + sizeof(*ethernet) + sizeof(*ip) + len > end)                                         \
            return XDP_PASS;                                                                                                                        \
        u16 type = ethernet->type;                                                                                                                  \
        u16 check = udp->check;                                                                                                                     \
        u64 addresses[4] = {};                                                                                                                      \
        key_##IP(addresses, &old);                                                                                                                  \
        u64 ports = (u64)udp->from | (u64)udp->to << 16;                                                                                            \
        u16 channel = 0, channel_len = 0;                                                                                                           \
        u32 payload_len = len - sizeof(*udp);                                                                                                       \
        u64 seq = 0;                                                                                                                                \
        struct LINE *line = 0;                                                                                                                      \
        if (payload_len >= sizeof(*head) && (void *)(head + 1) <= end && (head->channel & 0xf0) == 0x40) {                                          \
            channel_len = swap16(head->len);                                                                                                        \
            if (channel_len <= CHANNEL_DATA_MAX && channel_len + sizeof(*head) <= payload_len &&                                                    \
                payload_len - sizeof(*head) - channel_len <= 3) {                                                                                   \
                channel = head->channel;                                                                                                            \
                line = FIND_LINE(ports | (u64)channel << 32, addresses, &seq);                                                                      \
            }                                                                                                                                       \
        }                                                                                                                                           \
        u64 removed = 0;                                                                                                                            \
        u32 padding = 0;                                                                                                                            \
        if (line) {                                                                                                                                 \
            padding = payload_len - sizeof(*head) - channel_len;                                                                                    \
            removed = (u64)(u16)~head->channel + (u64)(u16)~head->len;                                                                              \
            payload_len = channel_len;                                                                                                              \
            u8 *rest = (u8 *)(head + 1) + channel_len;                                                                                              \
            for (u32 i = 0; i < 3; i++)                                                                                                             \
                if (i < padding && ((void *)(rest + i + 1) > end || rest[i])) {                                                                     \
                    COUNT(padding);                                                                                                                 \
                    return XDP_PASS;                                                                                                                \
                }                                                                                                                                   \
        } else {                                                                                                                                    \
            line = FIND_LINE(ports, addresses, &seq);                                                                                               \
            channel = 0;                                                                                                                            \
        }                                                                                                                                           \
        if (!line) {                                                                                                                                \
            /* Sockets take no datagram of IPv6 without a checksum. */                                                                              \
            if (IS_V6 && !check)                                                                                                                    \
                return XDP_PASS;                                                                                                                    \
            u64 address[2] = {IS_V6 ? addresses[2] : addresses[0] >> 32, IS_V6 ? addresses[3] : 0};                                                 \
            u64 place = (u64)udp->to | LISTENER | (IS_V6 ? V6 : 0);                                                                                 \
            return screen(address, place, (const u8 *)head, payload_len, end);                                                                      \
        }                                                                                                                                           \
        u64 new_ports = READ_ONCE(line->new_ports);                                                                                                 \
        BETWEEN_READINGS                                                                                                                            \
        u64 new_addresses[4] = {};                                                                                                                  \
        for (int i = 0; i < WORDS; i++)                                                                                                             \
            new_addresses[i] = READ_ONCE(line->new_addresses[i]);                                                                                   \
        u64 expires_ns = READ_ONCE(line->expires_ns);                                                                                               \
        if (has_changed(&line->seq, seq)) {                                                                                                         \
            COUNT(changing);                                                                                                                        \
            return XDP_PASS;                                                                                                                        \
        }                                                                                                                                           \
        u32 place = (u32)(seq >> 32);                                                                                                               \
        /* The exact time is needed for what may have ended, and for what is charged. */                                                            \
        u64 now = latest_ns();                                                                                                                      \
        if (now >= expires_ns || place)                                                                                                             \
            now = bpf_ktime_get_boot_ns();                                                                                                          \
        if (now >= expires_ns) {                                                                                                                    \
            COUNT(expired);                                                                                                                         \
            return XDP_PASS;                                                                                                                        \
        }                                                                                                                                           \
        u16 new_channel = (u16)(new_ports >> 32);                                                                                                   \
        u32 new_len = sizeof(*udp) + payload_len + (new_channel ? sizeof(*head) : 0);                                                               \
        u32 hop_index = (u32)(new_ports >> 48);                                                                                                     \
        struct hop *hop = bpf_map_lookup_elem(&hops, &hop_index);                                                                                   \
        if (!hop)                                                                                                                                   \
            return XDP_PASS;                                                                                                                        \
        u64 egress = READ_ONCE(hop->egress);                                                                                                        \
        barrier();                                                                                                                                  \
        u64 to = READ_ONCE(hop->destination), from = READ_ONCE(hop->source);                                                                        \
        barrier();                                                                                                                                  \
        if (!(egress >> 48) || READ_ONCE(hop->egress) != egress) {                                                                                  \
            COUNT(next_hop);                                                                                                                        \
            return XDP_PASS;                                                                                                                        \
        }                                                                                                                                           \
        if (sizeof(*ip) + new_len > (u16)(egress >> 32)) {                                                                                          \
            COUNT(too_large);                                                                                                                       \
            return XDP_PASS;                                                                                                                        \
        }                                                                                                                                           \
        /* The checksum of a sender on this machine may be left to a device that does not exist: then it is the sum of the pseudo header alone. */  \
        u64 pseudo = swap16(UDP) + (u64)swap16(len);                                                                                                \
        for (int i = 0; i < WORDS; i++)                                                                                                             \
            pseudo += sum32(addresses[i]);                                                                                                          \
        if (check ? check == fold(pseudo) : IS_V6) {                                                                                                \
            COUNT(checksum);                                                                                                                        \
            return XDP_PASS;                                                                                                                        \
        }                                                                                                                                           \
        u64 *bucket = 0, cost = 0;                                                                                                                  \
        if (place) {                                                                                                                                \
            struct meter *meter = bpf_map_lookup_elem(&meters, &place);                                                                             \
            u64 rate = meter ? READ_ONCE(meter->rate) : 0;                                                                                          \
            if (!meter || !rate) {                                                                                                                  \
                COUNT(changing);                                                                                                                    \
                return XDP_PASS;                                                                                                                    \
            }                                                                                                                                       \
            bucket = channel ? &meter->empty_at_ns[0] : &meter->empty_at_ns[1];                                                                     \
            switch (charge(bucket, rate, now, payload_len, &cost)) {                                                                                \
            case ADMITTED:                                                                                                                          \
                break;                                                                                                                              \
            case BEYOND:                                                                                                                            \
                __sync_fetch_and_add(channel ? &meter->packets[0] : &meter->packets[1], 1);                                                         \
                __sync_fetch_and_add(channel ? &meter->bytes[0] : &meter->bytes[1], payload_len);                                                   \
                return XDP_DROP;                                                                                                                    \
            case CONTENDED:                                                                                                                         \
                COUNT(changing);                                                                                                                    \
                return XDP_PASS;                                                                                                                    \
            }                                                                                                                                       \
        }                                                                                                                                           \
        int delta = (channel ? (int)sizeof(*head) : 0) - (new_channel ? (int)sizeof(*head) : 0);                                                    \
        if (delta && bpf_xdp_adjust_head(ctx, delta)) {                                                                                             \
            /* User space is going to charge it. */                                                                                                 \
            if (bucket)                                                                                                                             \
                __sync_fetch_and_add(bucket, -cost);                                                                                                \
            COUNT(headroom);                                                                                                                        \
            return XDP_PASS;                                                                                                                        \
        }                                                                                                                                           \
        /* RFC 1624: what goes is added inverted. */                                                                                                \
        u64 sum = (u64)(u16)~check + removed + 2ULL * (u16)~swap16(len) + 2ULL * swap16(new_len);                                                   \
        for (int i = 0; i < WORDS; i++)                                                                                                             \
            sum += sum32(~addresses[i]) + sum32(new_addresses[i]);                                                                                  \
        sum += sum32((u32) ~(u32)ports) + sum32((u32)new_ports);                                                                                    \
        if (new_channel)                                                                                                                            \
            sum += (u64)new_channel + swap16(payload_len);                                                                                          \
        u16 new_check = ~fold(sum);                                                                                                                 \
        if (!new_check)                                                                                                                             \
            new_check = 0xffff;                                                                                                                     \
        if (!check)                                                                                                                                 \
            new_check = 0;                                                                                                                          \
        data = (void *)(long)ctx->data;                                                                                                             \
        end = (void *)(long)ctx->data_end;                                                                                                          \
        ethernet = data;                                                                                                                            \
        ip = data + sizeof(*ethernet);                                                                                                              \
        udp = (void *)(ip + 1);                                                                                                                     \
        head = (void *)(udp + 1);                                                                                                                   \
        if ((void *)head > end)                                                                                                                     \
            return XDP_PASS;                                                                                                                        \
        if (new_channel) {                                                                                                                          \
            if ((void *)(head + 1) > end)                                                                                                           \
                return XDP_PASS;                                                                                                                    \
            head->channel = new_channel;                                                                                                            \
            head->len = swap16(payload_len);                                                                                                        \
        }                                                                                                                                           \
        u64 count = __sync_fetch_and_add(&line->packets, 1);                                                                                        \
        __sync_fetch_and_add(&line->bytes, payload_len);                                                                                            \
        for (int i = 0; i < 3; i++) {                                                                                                               \
            ethernet->to[i] = (u16)(to >> 16 * i);                                                                                                  \
            ethernet->from[i] = (u16)(from >> 16 * i);                                                                                              \
        }                                                                                                                                           \
        ethernet->type = type;                                                                                                                      \
        next_##IP(&old, new_len, (u16)count, new_addresses);                                                                                        \
        *ip = old;                                                                                                                                  \
        udp->from = (u16)new_ports;                                                                                                                 \
        udp->to = (u16)(new_ports >> 16);                                                                                                           \
        udp->len = swap16(new_len);                                                                                                                 \
        udp->check = new_check;                                                                                                                     \
        u32 device = (u32)egress;                                                                                                                   \
        if (device == ctx->ingress_ifindex)                                                                                                         \
            return XDP_TX;                                                                                                                          \
        return (int)bpf_redirect(device, 0);                                                                                                        \
    }

INLINE u16 header_sum(const struct ipv4 *ip) {
    const u16 *words = (const u16 *)ip;
    u64 sum = 0;
    for (int i = 0; i < 10; i++)
        sum += words[i];
    return fold(sum);
}

/* Returns the length of the UDP datagram, or 0 if the packet is a fragment, has options, is about to expire, or is damaged. */
INLINE u32 usable_ipv4(const struct ipv4 *ip) {
    u32 len = swap16(ip->len);
    if (ip->version != 0x45 || ip->fragment & ~DONT_FRAGMENT || ip->ttl < 2 || ip->protocol != UDP || len < sizeof(*ip) || header_sum(ip) != 0xffff)
        return 0;
    return len - sizeof(*ip);
}

INLINE u32 usable_ipv6(const struct ipv6 *ip) {
    if ((ip->version & 0xf0) != 0x60 || ip->hops < 2 || ip->next != UDP)
        return 0;
    return swap16(ip->len);
}

INLINE void key_ipv4(u64 *addresses, const struct ipv4 *ip) { addresses[0] = (u64)ip->addresses[0] | (u64)ip->addresses[1] << 32; }

INLINE void key_ipv6(u64 *addresses, const struct ipv6 *ip) {
    for (int i = 0; i < 4; i++)
        addresses[i] = ip->addresses[i];
}

/* Makes the header of the packet that leaves. DSCP, ECN and DF stay (RFC 8656 §14). */
INLINE void next_ipv4(struct ipv4 *ip, u32 len, u16 count, const u64 *addresses) {
    ip->len = swap16(sizeof(*ip) + len);
    /* What may be fragmented needs an identification of its own for these addresses (RFC 6864 §4). */
    if (!(ip->fragment & DONT_FRAGMENT))
        ip->id = count;
    ip->ttl--;
    ip->addresses[0] = (u32)addresses[0];
    ip->addresses[1] = (u32)(addresses[0] >> 32);
    ip->check = 0;
    ip->check = ~header_sum(ip);
}

INLINE void next_ipv6(struct ipv6 *ip, u32 len, u16 count, const u64 *addresses) {
    /* The flow label belongs to the addresses that it came with. */
    ip->version &= 0x0000f0ff;
    ip->len = swap16(len);
    ip->hops--;
    for (int i = 0; i < 4; i++)
        ip->addresses[i] = addresses[i];
}

RELAY(relay4, find4, line4, ipv4, 1, 0)
RELAY(relay6, find6, line6, ipv6, 4, 1)

SEC("xdp") int turn(struct xdp_md *ctx) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    u32 index = ctx->ingress_ifindex;
    u64 *device = bpf_map_lookup_elem(&devices, &index);
    struct ethernet *ethernet = data;
    if (!device || (void *)(ethernet + 1) > end)
        return XDP_PASS;
    u64 to = (u64)ethernet->to[0] | (u64)ethernet->to[1] << 16 | (u64)ethernet->to[2] << 32 | 1ULL << 48;
    if (READ_ONCE(*device) != to)
        return XDP_PASS;
    if (ethernet->type == IPV4)
        return relay4(ctx);
    if (ethernet->type == IPV6)
        return relay6(ctx);
    return XDP_PASS;
}

char _license[] SEC("license") = "MIT";
