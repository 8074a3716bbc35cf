/*
 * turn.bpf.c, run on one frame again and again while its line is written (race.rs). What is passed has to be as it came, what is relayed as one of the
 * routes makes it; then the frame is made again as it came. CAME is its packet, RELAYED what each of the ROUTES makes of that, in 16-bit words as they
 * stand in memory, SOURCE where a relayed packet has the number of its route, VERDICT what is to be said of one. Behind the packet the frame has the counts.
 */
#define turn relay
#include "../../bpf/turn.bpf.c"
#undef turn

const volatile u16 came[] = {CAME};
const volatile u16 relayed[] = {RELAYED};
/* Hides a value from the compiler, which would otherwise put off all comparisons until it has read all words, and has no room for that. */
#define OPAQUE(value) __asm__ volatile("" : "+r"(value))
enum { CAME_LEN = sizeof(came), RELAYED_LEN = sizeof(relayed) / ROUTES, CAME_WORDS = CAME_LEN / 2, RELAYED_WORDS = RELAYED_LEN / 2 };

struct counts {
    u64 relayed;
    u64 passed;
    u64 wrong;
    u64 routes; /* a bit for each that was seen */
} __attribute__((packed));

/*
 * Compares what has become of the frame, and makes it again as it came. Anything but XDP_PASS: it is shorter than it should be. A function of its own,
 * because the program leaves too few registers and too little stack for this.
 */
static __attribute__((noinline)) int judge(struct xdp_md *ctx, int verdict) {
    u32 differs = 0, route = 0;
    if (verdict != XDP_PASS) {
        void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
        u16 *words = data;
        if (data + RELAYED_LEN + sizeof(struct counts) > end)
            return XDP_DROP;
        route = ((u8 *)data)[SOURCE] & (ROUTES - 1);
        const volatile u16 *expected = &relayed[route * RELAYED_WORDS];
        OPAQUE(expected);
        differs = verdict != VERDICT;
#pragma unroll
        for (int i = 0; i < RELAYED_WORDS; i++) {
            differs |= words[i] ^ expected[i];
            OPAQUE(differs);
        }
        if (bpf_xdp_adjust_head(ctx, RELAYED_LEN - CAME_LEN))
            return XDP_DROP;
    }
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    u16 *words = data;
    const volatile u16 *original = came;
    OPAQUE(original);
    struct counts *counts = data + CAME_LEN;
    if ((void *)(counts + 1) > end)
        return XDP_DROP;
    if (verdict == XDP_PASS) {
#pragma unroll
        for (int i = 0; i < CAME_WORDS; i++) {
            differs |= words[i] ^ original[i];
            OPAQUE(differs);
        }
        counts->passed++;
    } else {
#pragma unroll
        for (int i = 0; i < CAME_WORDS; i++)
            words[i] = original[i];
        counts->relayed++;
        counts->routes |= 1 << route;
    }
    counts->wrong += !!differs;
    return XDP_PASS;
}

SEC("xdp") __attribute__((flatten)) int turn(struct xdp_md *ctx) { return judge(ctx, relay(ctx)); }
