// The data path of a switch for packets: registers, minima, routes and marks, as an XDP program.
//
// `enter` runs on every port and gives packets of the network to the one queue of the switch: a
// CPUMAP entry, whose thread runs `forward` packet by packet. So a packet is stamped and queued in
// one step, whatever CPU it came by, and nothing here needs a lock. All else goes to the kernel.
//
// `forward` does what weir_toc.node does in Python with the same arithmetic; tests compare both. It
// never creates a packet: a beacon that came, and has said what it says, leaves as that of this
// switch. The kernel makes a copy for each port, and `leave`, which runs on all that leaves, fills
// in what differs between them. Where no beacon comes, the host process of the switch injects blank
// ones by the generator's port. By this port come commands, too, which change the state between two
// packets. The layout of the state is that of layout.py.
//
//   make xdp     compiles this, and compares the bytes with switch.o

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
#define htons(value) __builtin_bswap16(value)
#define ntohs(value) __builtin_bswap16(value)
#define ntohl(value) __builtin_bswap32(value)
#define ntohll(value) __builtin_bswap64(value)

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*map_update)(void *map, const void *key, const void *value,
			  __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static __u64 (*ktime)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;

// -- packets: weir_toc.packet ----------------------------------------------------------------

struct toc {
	__u8 stamp[6];
	__u8 barrier[6];
	__u8 commit[6];
	__u8 psn[4];
	__u8 opcode;
	__u8 flags;
	__u8 source[4];
	__u8 to[4];
	__u8 epoch[4];
	__u8 crc[4];
};

// Ethernet, IPv4 without options, UDP and the packet. Its members are read where they lie: the
// kernel allows loads that are not aligned where the machine does.
struct frame {
	__u8 eth[14];
	__u8 ip[20];
	__u8 udp[8];
	struct toc toc;
};

#define IP(frame) ((struct iphdr *)(frame)->ip)
#define UDP(frame) ((struct udphdr *)(frame)->udp)

#define TTL 64
#define PACKET_BYTES_MAX 1440
#define DATA_BE 1
#define BEACON 5
#define JOIN 9
#define FENCED 11
#define FLAG_ECN 2
#define NEIGHBOUR 0

// By the generator's port only: changes of the state.
#define COMMAND 0xC0

#define LOW 0xFFFFFFFFFFFFULL
#define HALF (1ULL << 47)
#define NONE (~0ULL)
#define RATE_SHIFT 20

// -- the state: layout.py --------------------------------------------------------------------

#define SLOTS 64
#define TURNS_PER_INTERVAL 4
#define LOWER 1
#define LIVE 2
#define FROZEN 4
#define REMOVED 8
#define SWITCH 16

// One neighbour: the input by which it is heard and the output by which it is reached.
struct slot {
	__u64 id;
	__u64 flags;
	__u64 epoch;
	__u64 barrier;
	__u64 commit;
	__u64 heard_at;
	__u64 packets_in;
	__u64 told_barrier;
	__u64 told_commit;
	__u64 packets_out;
	__u64 queue_bytes;
	__u64 queue_at;
	__u64 ifindex;
	__u64 mac;
	__u64 own_mac;
	__u64 ip;
	__u64 udp_port;
	__u64 refused_at;
	// Epoch and CRC of its beacons, as they lie in the packet.
	__u64 beacon;
};

struct half {
	__u64 barrier;
	__u64 commit;
};

struct state {
	__u64 now;
	__u64 read_at;
	__u64 command;
	__u64 interval;
	__u64 drain_rate;
	__u64 mark_above;
	struct half up;
	struct half down;
	struct half least_up;
	struct half least_down;
	__u64 ip;
	__u64 udp_port;
	__u64 cpu;
	__u64 live;
	__u64 passed_at;
	__u64 damaged;
	__u64 fenced;
	__u64 unroutable;
	// When beacons that came were last sent to all ports, the latest first.
	__u64 turned_at[TURNS_PER_INTERVAL];
	// The source of beacons of this switch, as it lies in a packet.
	__u64 source;
	// When, and with which minima, a beacon was last sent to all ports.
	__u64 sent_at;
	struct half sent_up;
	struct half sent_down;
	// Whether the up half has no inputs, and so promises its own time.
	__u64 is_own;
	struct slot slots[SLOTS];
};

#define WORDS (sizeof(struct state) / 8)

struct route {
	__u64 down;
	__u64 up;
};
// In `down`: the processes of this rack are linked here.
#define HERE NONE

// What lies behind a port. Other values are the slot of a switch, plus BEHIND.
#define HOSTS 1
#define GENERATOR 2
#define BEHIND 16

struct port {
	__u32 behind;
	// The slot whose neighbour gets the copy of a beacon for all ports, or SLOTS.
	__u32 leader;
};

struct map {
	__u32 type;
	__u32 key_size;
	__u32 value_size;
	__u32 max_entries;
	__u32 flags;
};

struct map SEC("maps") states = {BPF_MAP_TYPE_ARRAY, 4, sizeof(struct state), 1, BPF_F_MMAPABLE};
// By ifindex.
struct map SEC("maps") ports = {BPF_MAP_TYPE_HASH, 4, sizeof(struct port), 256, 0};
// By ifindex: the device itself, with `leave`. All packets go by this map: those that wait for a
// device together pass one program, or none.
struct map SEC("maps") outputs = {BPF_MAP_TYPE_DEVMAP_HASH, 4, 8, 256, 0};
struct map SEC("maps") neighbours = {BPF_MAP_TYPE_HASH, 4, 4, 256, 0};
struct map SEC("maps") routes = {BPF_MAP_TYPE_ARRAY, 4, sizeof(struct route), 32768, 0};
// When a packet of an address was last given to the host process, and it was not refused.
struct map SEC("maps") asked = {BPF_MAP_TYPE_LRU_HASH, 4, 8, 1024, 0};
struct map SEC("maps") queue = {BPF_MAP_TYPE_CPUMAP, 4, 8, 1024, 0};

char SEC("license") _license[] = "MIT";

// -- bytes -----------------------------------------------------------------------------------

INLINE __u32 get32(const __u8 *at)
{
	return ntohl(*(const __u32 *)at);
}

INLINE __u64 get48(const __u8 *at)
{
	return (__u64)ntohs(*(const __u16 *)at) << 32 | get32(at + 2);
}

INLINE void put48(__u8 *at, __u64 value)
{
	*(__u16 *)at = htons((__u16)(value >> 32));
	*(__u32 *)(at + 2) = ntohl((__u32)value);
}

INLINE __u64 unwrap(__u64 low, __u64 near)
{
	return near + ((low - near + HALF) & LOW) - HALF;
}

INLINE __u64 max(__u64 one, __u64 other)
{
	return one > other ? one : other;
}

// -- registers -------------------------------------------------------------------------------

// Compute the minima of the down half anew, and with `both` those of the up half before. They never
// decrease. What is found stays in the state until the end of the loop: the kernel follows every
// way through it, and values in registers would make each of them another one.
INLINE void aggregate(struct state *state, int both, __u64 now)
{
	struct half *up = &state->least_up, *down = &state->least_down;

	up->barrier = up->commit = down->barrier = down->commit = NONE;
#pragma clang loop unroll(disable)
	for (__u32 at = 0; at < SLOTS; at++) {
		struct slot *slot = &state->slots[at];
		struct half *half = down;

		if (!slot->id)
			continue;
		if (slot->flags & LOWER)
			half = up;
		if (slot->flags & LIVE && slot->barrier < half->barrier)
			half->barrier = slot->barrier;
		if (!(slot->flags & REMOVED) && slot->commit < half->commit)
			half->commit = slot->commit;
	}
	if (both) {
		// A half whose inputs are all gone promises its own time, as an idle process does.
		state->is_own = up->barrier == NONE || up->commit == NONE;
		if (up->barrier == NONE)
			up->barrier = now;
		if (up->commit == NONE)
			up->commit = now;
		state->up.barrier = max(state->up.barrier, up->barrier);
		state->up.commit = max(state->up.commit, up->commit);
	}
	// The virtual link: what the up half promises is an input of the down half.
	if (state->up.barrier < down->barrier)
		down->barrier = state->up.barrier;
	if (state->up.commit < down->commit)
		down->commit = state->up.commit;
	state->down.barrier = max(state->down.barrier, down->barrier);
	state->down.commit = max(state->down.commit, down->commit);
}

#define NOTHING 0
#define DOWN 1
#define BOTH 2

// Take the barriers of a packet; return whether minima may have moved.
INLINE int raise_to(struct state *state, struct slot *slot, __u64 barrier, __u64 commit, __u64 now)
{
	__u64 flags = slot->flags;
	struct half *half = flags & LOWER ? &state->up : &state->down;
	int rises = barrier > slot->barrier || commit > slot->commit;
	int held = slot->barrier <= half->barrier || slot->commit <= half->commit;

	slot->heard_at = now;
	slot->packets_in++;
	slot->barrier = max(slot->barrier, barrier);
	if (!(flags & FROZEN))
		slot->commit = max(slot->commit, commit);
	return rises && held;
}

// -- outputs ---------------------------------------------------------------------------------

// The phantom queue of weir_toc.congestion: bytes that drain at a rate in 2^20 ns.
INLINE int marks(struct state *state, struct slot *slot, __u64 now, __u64 size)
{
	__u64 rate = state->drain_rate, elapsed, drained, left;

	if (!rate)
		return 0;
	elapsed = now > slot->queue_at ? now - slot->queue_at : 0;
	slot->queue_at = max(slot->queue_at, now);
	drained = (elapsed >> RATE_SHIFT) * rate +
		  ((elapsed & ((1 << RATE_SHIFT) - 1)) * rate >> RATE_SHIFT);
	left = slot->queue_bytes > drained ? slot->queue_bytes - drained : 0;
	slot->queue_bytes = left + size;
	return slot->queue_bytes > state->mark_above;
}

INLINE void set_mac(__u8 *at, __u64 mac)
{
	*(__u32 *)at = (__u32)mac;
	*(__u16 *)(at + 4) = (__u16)(mac >> 32);
}

INLINE void sum_header(struct iphdr *ip)
{
	const __u16 *words = (const __u16 *)ip;
	__u32 sum = 0;

	ip->check = 0;
#pragma unroll
	for (int at = 0; at < 10; at++)
		sum += words[at];
	sum = (sum & 0xFFFF) + (sum >> 16);
	sum = (sum & 0xFFFF) + (sum >> 16);
	ip->check = (__u16)~sum;
}

INLINE void address(struct state *state, struct slot *slot, struct frame *frame)
{
	slot->packets_out++;
	set_mac(frame->eth, slot->mac);
	set_mac(frame->eth + 6, slot->own_mac);
	IP(frame)->saddr = (__u32)state->ip;
	IP(frame)->daddr = (__u32)slot->ip;
	UDP(frame)->source = (__u16)state->udp_port;
	UDP(frame)->dest = (__u16)slot->udp_port;
	sum_header(IP(frame));
}

// Stamp a packet with the minima of this moment, and queue it behind all others of an output.
INLINE int send(struct state *state, struct slot *slot, struct frame *frame)
{
	struct half *half = slot->flags & LOWER ? &state->down : &state->up;

	if (!slot->ifindex) {
		state->unroutable++;
		return XDP_DROP;
	}
	put48(frame->toc.barrier, half->barrier);
	put48(frame->toc.commit, half->commit);
	slot->told_barrier = half->barrier;
	slot->told_commit = half->commit;
	address(state, slot, frame);
	return redirect_map(&outputs, slot->ifindex, XDP_DROP);
}

// Stamp a blank beacon with the minima of this moment, and queue a copy of it behind all others of
// each port. A copy is filled in when it leaves: it has the minima of the down half in their place,
// and those of the up half in place of the hardware addresses. A type of Ethernet it has only then.
INLINE int send_to_all(struct state *state, struct frame *frame, __u64 now)
{
	state->sent_at = now;
	state->sent_up = state->up;
	state->sent_down = state->down;
	IP(frame)->tos = 0;
	IP(frame)->tot_len = htons(sizeof(*frame) - sizeof(frame->eth));
	IP(frame)->id = IP(frame)->frag_off = 0;
	IP(frame)->ttl = TTL;
	UDP(frame)->len = htons(sizeof(frame->udp) + sizeof(frame->toc));
	__builtin_memset(&frame->toc, 0, sizeof(frame->toc));
	frame->toc.opcode = BEACON;
	*(__u32 *)frame->toc.source = (__u32)state->source;
	put48(frame->toc.barrier, state->down.barrier);
	put48(frame->toc.commit, state->down.commit);
	put48(frame->eth, state->up.barrier);
	put48(frame->eth + 6, state->up.commit);
	*(__u16 *)(frame->eth + 12) = 0;
	return redirect_map(&outputs, 0, BPF_F_BROADCAST);
}

// The number of the lowest bit that is set. Clang 14 has no code for __builtin_ctzll here.
INLINE __u32 lowest(__u64 bits)
{
	__u32 at = 0;

#pragma unroll
	for (int width = 32; width; width >>= 1) {
		if (bits & ((1ULL << width) - 1))
			continue;
		bits >>= width;
		at += width;
	}
	return at;
}

// A number that spreads the packets of all flows evenly, and is the same at each switch.
INLINE __u32 spread(const struct toc *toc)
{
	__u64 flow = (__u64)get32(toc->source) << 32 | get32(toc->to);
	__u64 low = (__u64)get32(toc->psn) * 0x9E3779B1ULL ^ flow * 0x85EBCA77ULL;

	return (low ^ low >> 15 ^ low >> 33) & 0xFFFF;
}

// The slot to which a packet goes next, or NONE; down if that is possible.
INLINE __u64 next_hop(struct state *state, const struct toc *toc, int may_rise)
{
	__u32 to = get32(toc->to), rack = to >> 16, turns;
	struct route *route = map_lookup(&routes, &rack);
	__u64 hops;

	if (!route)
		return NONE;
	if (route->down == HERE) {
		__u32 *at = map_lookup(&neighbours, &to);

		return at ? *at : NONE;
	}
	hops = route->down;
	if (!hops && may_rise)
		hops = route->up;
	if (!hops)
		return NONE;
	if (hops & (hops - 1)) {
		if (hops & state->live)
			hops &= state->live;
		turns = spread(toc) % (__u32)__builtin_popcountll(hops);
#pragma clang loop unroll(disable)
		for (__u32 at = 0; at < SLOTS && turns; at++, turns--)
			hops &= hops - 1;
	}
	return lowest(hops);
}

// -- the generator's port ----------------------------------------------------------------------

struct change {
	__u32 word;
	// 0 sets the word, 1 raises it.
	__u32 raises;
	__u64 value;
};

struct command {
	__u64 number;
	__u64 count;
	struct change changes[];
};

#define CHANGES_MAX 64

// Change the state as a command says; return its number, for which the host waits.
INLINE __u64 obey(struct state *state, struct command *command, void *end)
{
	__u64 *words = (__u64 *)state, number;

	if ((void *)(command + 1) > end)
		return 0;
	number = command->number;
	// One that was lost must come first, and one that came twice counts once.
	if (number != state->command + 1)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 at = 0; at < CHANGES_MAX; at++) {
		struct change *change = &command->changes[at];
		__u32 word;

		if (at >= command->count || (void *)(change + 1) > end)
			break;
		word = change->word;
		if (word >= WORDS)
			break;
		if (!change->raises || words[word] < change->value)
			words[word] = change->value;
	}
	return number;
}

// -- inputs ------------------------------------------------------------------------------------

// Whether a packet has the address of a neighbour.
INLINE int is_sender(const struct slot *slot, const struct frame *frame)
{
	return IP(frame)->saddr == (__u32)slot->ip && UDP(frame)->source == (__u16)slot->udp_port;
}

// The host process answers what is refused here, but not each packet of a flood. Beacons of each
// neighbour are counted apart from all else: that of a new epoch of a switch must come to the
// process soon, while one whose epoch has ended needs its answer once, unless that was lost.
INLINE int refuse(struct state *state, struct slot *slot, const struct frame *frame, __u64 now)
{
	__u64 *passed_at = &state->passed_at;
	__u64 pause = state->interval >> 2;

	if (slot && frame->toc.opcode == BEACON && is_sender(slot, frame)) {
		passed_at = &slot->refused_at;
		pause = state->interval << 3;
		if (slot->flags & SWITCH && get32(frame->toc.epoch) != slot->epoch)
			pause = state->interval >> 4;
	}
	state->fenced++;
	if (now - *passed_at < pause)
		return XDP_DROP;
	*passed_at = now;
	return XDP_PASS;
}

// The slot of the neighbour that has sent a packet, or NONE. Several processes may share a port.
INLINE __u64 input_of(struct frame *frame, __u32 behind)
{
	__u32 source = get32(frame->toc.source), *at;

	if (behind >= BEHIND)
		return behind - BEHIND;
	at = map_lookup(&neighbours, &source);
	return at ? *at : NONE;
}

// Joins, and what says FENCED, go to the host process, whoever has sent them: a few of each address
// in an interval. Both are sent again.
INLINE int ask(const struct state *state, const struct frame *frame, __u64 now)
{
	__u32 from = IP(frame)->saddr;
	__u64 *asked_at = map_lookup(&asked, &from);

	if (asked_at && now - *asked_at < state->interval >> 4)
		return XDP_DROP;
	map_update(&asked, &from, &now, BPF_ANY);
	return XDP_PASS;
}

// Whether a packet counts: its input is live, and it comes from there, in its epoch. What a switch
// forwards has the epoch of the process that sent it, but not what is for this switch itself.
INLINE int accepts(const struct slot *slot, const struct frame *frame, __u32 behind,
		   __u32 ifindex)
{
	int same_epoch = get32(frame->toc.epoch) == slot->epoch;
	int is_switch = behind >= BEHIND;

	if (!(slot->flags & LIVE) || slot->ifindex != ifindex ||
	    is_switch != !!(slot->flags & SWITCH))
		return 0;
	if (!is_sender(slot, frame))
		return 0;
	if (is_switch && frame->toc.opcode != BEACON && get32(frame->toc.to) != NEIGHBOUR)
		return 1;
	return same_epoch && (is_switch || get32(frame->toc.source) == slot->id);
}

// The synchronised time, which the generator gives, and that has passed since.
INLINE __u64 time_of(const struct state *state)
{
	__s64 elapsed = (__s64)(ktime() - state->read_at);

	return state->now + (elapsed > 0 ? elapsed : 0);
}

// What is to be done with a packet: an action of XDP, or SEND to a slot.
struct plan {
	int action;
	int minima;
	__u64 slot;
	__u64 now;
	__u64 command;
};

#define SEND 100

#define SEND_TO_ALL 101
#define TURN 102

// A blank beacon has the time in place of its barrier, and a slot in place of its commit barrier, or
// EVERY_PORT.
#define EVERY_PORT 0xFFFFFFFFFFFFULL

INLINE void generated(struct state *state, struct frame *frame, void *end, struct plan *plan)
{
	plan->slot = get48(frame->toc.commit);
	state->now = max(state->now, unwrap(get48(frame->toc.barrier), state->now));
	state->read_at = ktime();
	if (frame->toc.opcode == COMMAND)
		plan->command = obey(state, (struct command *)(frame + 1), end);
	else if (frame->toc.opcode == BEACON)
		plan->action = plan->slot == EVERY_PORT ? SEND_TO_ALL : SEND;
	plan->now = state->now;
	// Until the first registers are there, nothing is promised.
	plan->minima = state->interval ? BOTH : NOTHING;
}

INLINE void received(struct state *state, struct frame *frame, void *end, struct plan *plan,
		     __u32 behind, __u32 ifindex)
{
	__u32 size = ntohs(UDP(frame)->len) - sizeof(struct udphdr);
	struct slot *slot;
	__u64 at, now;

	if (size < sizeof(struct toc) || size > PACKET_BYTES_MAX ||
	    (void *)&frame->toc + size > end || frame->toc.opcode < DATA_BE ||
	    frame->toc.opcode > FENCED) {
		state->damaged++;
		return;
	}
	now = plan->now = time_of(state);
	if (get32(frame->toc.to) == NEIGHBOUR &&
	    (frame->toc.opcode == JOIN || frame->toc.opcode == FENCED)) {
		plan->action = ask(state, frame, now);
		return;
	}
	at = input_of(frame, behind);
	slot = &state->slots[at < SLOTS ? at : 0];
	if (at >= SLOTS || !accepts(slot, frame, behind, ifindex)) {
		plan->action = refuse(state, at < SLOTS ? slot : 0, frame, now);
		return;
	}
	if (raise_to(state, slot, unwrap(get48(frame->toc.barrier), now),
		     unwrap(get48(frame->toc.commit), now), now))
		plan->minima = slot->flags & LOWER ? BOTH : DOWN;
	if (get32(frame->toc.to) == NEIGHBOUR) {
		if (frame->toc.opcode == BEACON && size == sizeof(struct toc) &&
		    (void *)frame + sizeof(struct frame) + 1 > end) {
			plan->action = TURN;
			if (state->is_own)
				plan->minima = BOTH;
		}
		return;
	}
	at = plan->slot = next_hop(state, &frame->toc, slot->flags & LOWER);
	if (at >= SLOTS) {
		state->unroutable++;
		return;
	}
	plan->action = SEND;
	if (marks(state, &state->slots[at], now, size))
		frame->toc.flags |= FLAG_ECN;
}

INLINE int has_risen(const struct half *half, const struct half *sent, __u64 step)
{
	return half->barrier >= sent->barrier + step || half->commit >= sent->commit + step;
}

// Whether a beacon is to be sent to all ports now. A step of a minimum that is not small is passed
// on at once, whatever was sent before; a small one a little later than the beacons that come each
// interval; and minima that stand still are said again. But more than four times in an interval none
// is sent.
INLINE int is_due(const struct state *state, __u64 now)
{
	__u64 interval = state->interval, step = interval >> 3;
	__u64 since = now > state->sent_at ? now - state->sent_at : 0;

	if (!interval || now < state->turned_at[TURNS_PER_INTERVAL - 1] + interval)
		return 0;
	if (since >= interval << 1)
		return 1;
	if (since >= interval + (interval >> 2))
		step = 1;
	return has_risen(&state->up, &state->sent_up, step) ||
	       has_risen(&state->down, &state->sent_down, step);
}

INLINE void note_turn(struct state *state, __u64 now)
{
#pragma unroll
	for (int at = TURNS_PER_INTERVAL - 1; at; at--)
		state->turned_at[at] = state->turned_at[at - 1];
	state->turned_at[0] = now;
}

SEC("xdp/forward")
int forward(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, ifindex = ctx->ingress_ifindex;
	struct plan plan = {XDP_DROP, NOTHING, 0, 0, 0};
	struct state *state;
	struct port *port;

	if ((void *)(frame + 1) > end)
		return XDP_DROP;
	state = map_lookup(&states, &zero);
	port = map_lookup(&ports, &ifindex);
	if (!state || !port)
		return XDP_DROP;
	// The kernel may have left the sum to a device; the CRC covers what is not rewritten.
	UDP(frame)->check = 0;
	if (port->behind == GENERATOR)
		generated(state, frame, end, &plan);
	else
		received(state, frame, end, &plan, port->behind, ifindex);
	if (plan.minima)
		aggregate(state, plan.minima == BOTH, plan.now);
	if (plan.command)
		state->command = plan.command;
	if (plan.action == TURN) {
		plan.action = XDP_DROP;
		if (is_due(state, plan.now)) {
			note_turn(state, plan.now);
			plan.action = SEND_TO_ALL;
		}
	}
	if (plan.action == SEND_TO_ALL)
		return send_to_all(state, frame, plan.now);
	if (plan.action != SEND)
		return plan.action;
	if (plan.slot >= SLOTS)
		return XDP_DROP;
	return send(state, &state->slots[plan.slot], frame);
}

// The thread that runs `forward` runs this behind it, for all packets that wait for a device.
SEC("xdp/leave")
int leave(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, ifindex = ctx->egress_ifindex;
	__u64 barrier, commit;
	struct state *state;
	struct port *port;
	struct slot *slot;

	if ((void *)(frame + 1) > end)
		return XDP_DROP;
	if (*(__u16 *)(frame->eth + 12))
		return XDP_PASS;
	state = map_lookup(&states, &zero);
	port = map_lookup(&ports, &ifindex);
	if (!state || !port || port->leader >= SLOTS)
		return XDP_DROP;
	slot = &state->slots[port->leader];
	if (slot->ifindex != ifindex)
		return XDP_DROP;
	if (!(slot->flags & LOWER))
		__builtin_memcpy(frame->toc.barrier, frame->eth, 12);
	// What was queued behind it may have been told already.
	barrier = unwrap(get48(frame->toc.barrier), state->now);
	commit = unwrap(get48(frame->toc.commit), state->now);
	slot->told_barrier = max(slot->told_barrier, barrier);
	slot->told_commit = max(slot->told_commit, commit);
	*(__u64 *)frame->toc.epoch = slot->beacon;
	*(__u16 *)(frame->eth + 12) = htons(ETH_P_IP);
	address(state, slot, frame);
	return XDP_PASS;
}

SEC("xdp/enter")
int enter(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct state *state;
	__u32 zero = 0;

	if ((void *)(frame + 1) > end)
		return XDP_PASS;
	state = map_lookup(&states, &zero);
	if (!state || *(__u16 *)(frame->eth + 12) != htons(ETH_P_IP) || frame->ip[0] != 0x45 ||
	    IP(frame)->protocol != IPPROTO_UDP || IP(frame)->frag_off & htons(0x3FFF) ||
	    IP(frame)->daddr != (__u32)state->ip || UDP(frame)->dest != (__u16)state->udp_port)
		return XDP_PASS;
	return redirect_map(&queue, state->cpu, XDP_DROP);
}

SEC("xdp/pass")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
