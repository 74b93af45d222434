// A switch for packets in P4-16, for the architecture of Tofino: what switch.c does in the kernel.
//
// NOT RUN: no compiler for Tofino was at hand, so this was neither compiled nor tried. Tests hold
// the layout, the opcodes and the flags against weir_toc.packet, and play the lines that compute
// minima, read as Python, against the rule. Nothing else is tested.
//
// Registers have 32 bits, the low ones of a time in nanoseconds: comparisons are those of serial
// numbers, so all registers that count must lie within 2.1 s of each other. What a packet carries
// is its own barrier plus the distance of the minimum to it, which gives the upper 16 bits.
//
// Eight inputs: 0 to 3 are below and 4 to 7 above. Each has two registers, and each packet reads all
// of them; it raises those of its own input in the same access. Minima are a binary tree. What a
// half has passed on is kept, and never decreases. Beacons are made by the packet generator of the
// chip, blank, one for each output and interval. All use UDP port 7100.
//
// The control plane, which is not here, has these duties:
// * Before the first packet it writes the synchronised time into all registers of inputs and halves.
// * It gives blank beacons the synchronised time in place of their barrier.
// * To add an input it writes what its half has passed on into both registers of the input, and
//   then sets its bits in `masks`. From then on the minimum waits for that input. It reads what the
//   half has passed on once more, tells the neighbour that as floors, in JOINED, and only then adds
//   the entry that accepts packets: one that came earlier could raise a register too far.
// * To fence an input it removes that entry first, so that the registers stand, then reports the
//   commit register, and clears the bit of `live`. The bit of `counts` is cleared by the removal.
//   An input comes back only after that, since its packets raise both registers.
// * Before an input that counts has stood still for 2 s, it stops the beacons and packets of this
//   switch: later comparisons would be wrong.

#include <core.p4>
#include <tna.p4>

const bit<16> TYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;

// -- packets: weir_toc.packet ----------------------------------------------------------------

const bit<8> DATA_BE = 1;
const bit<8> DATA_R = 2;
const bit<8> ACK = 3;
const bit<8> NAK = 4;
const bit<8> BEACON = 5;
const bit<8> RECALL = 6;
const bit<8> RECALL_ACK = 7;
const bit<8> CONNECT = 8;
const bit<8> JOIN = 9;
const bit<8> JOINED = 10;
const bit<8> FENCED = 11;

const bit<8> END = 1;
const bit<8> ECN = 2;
const bit<8> BEGIN = 4;
const bit<8> CONFIRM = 8;

const bit<32> NEIGHBOUR = 0;

header ethernet_t {
    bit<48> to;
    bit<48> source;
    bit<16> type;
}

header ipv4_t {
    bit<4> version;
    bit<4> words;
    bit<8> service;
    bit<16> length;
    bit<16> id;
    bit<16> fragment;
    bit<8> hops;
    bit<8> protocol;
    bit<16> sum;
    bit<32> source;
    bit<32> to;
}

header udp_t {
    bit<16> source;
    bit<16> to;
    bit<16> length;
    bit<16> sum;
}

header toc_t {
    bit<48> stamp;
    bit<48> barrier;
    bit<48> commit;
    bit<32> psn;
    bit<8> opcode;
    bit<8> flags;
    bit<32> source;
    bit<32> to;
    bit<32> epoch;
    bit<32> crc;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    udp_t udp;
    toc_t toc;
}

struct metadata_t {
    // The input of this packet, 255 for the packet generator.
    bit<8> input;
    bit<1> is_lower;
    bit<1> is_accepted;
    // A bit for each input: whether its barrier counts, and its commit barrier.
    bit<8> live;
    bit<8> counts;
    // What each input has promised.
    bit<32> b0; bit<32> b1; bit<32> b2; bit<32> b3;
    bit<32> b4; bit<32> b5; bit<32> b6; bit<32> b7;
    bit<32> c0; bit<32> c1; bit<32> c2; bit<32> c3;
    bit<32> c4; bit<32> c5; bit<32> c6; bit<32> c7;
    bit<1> to_lower;
    bit<32> barrier;
    bit<32> commit;
    bit<32> ahead;
    bit<8> color;
}

parser IngressParser(packet_in packet, out headers_t headers, out metadata_t meta,
                     out ingress_intrinsic_metadata_t ingress) {
    state start {
        packet.extract(ingress);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(headers.ethernet);
        transition select(headers.ethernet.type) {
            TYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(headers.ipv4);
        transition select(headers.ipv4.words, headers.ipv4.protocol, headers.ipv4.fragment) {
            (5, PROTOCOL_UDP, 0): udp;
            (5, PROTOCOL_UDP, 0x4000): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(headers.udp);
        transition select(headers.udp.to) {
            7100: toc;
            default: accept;
        }
    }
    state toc {
        packet.extract(headers.toc);
        transition accept;
    }
}

// One access a packet: raise the register if the packet came by this input, and read it.
#define INPUT(N)                                                                            \
    Register<bit<32>, bit<1>>(1) barrier_##N;                                               \
    RegisterAction<bit<32>, bit<1>, bit<32>>(barrier_##N) raise_barrier_##N = {             \
        void apply(inout bit<32> value, out bit<32> read) {                                 \
            if ((int<32>)((bit<32>)headers.toc.barrier - value) > 0) {                      \
                value = (bit<32>)headers.toc.barrier;                                       \
            }                                                                               \
            read = value;                                                                   \
        }                                                                                   \
    };                                                                                      \
    RegisterAction<bit<32>, bit<1>, bit<32>>(barrier_##N) read_barrier_##N = {              \
        void apply(inout bit<32> value, out bit<32> read) { read = value; }                 \
    };                                                                                      \
    Register<bit<32>, bit<1>>(1) commit_##N;                                                \
    RegisterAction<bit<32>, bit<1>, bit<32>>(commit_##N) raise_commit_##N = {               \
        void apply(inout bit<32> value, out bit<32> read) {                                 \
            if ((int<32>)((bit<32>)headers.toc.commit - value) > 0) {                       \
                value = (bit<32>)headers.toc.commit;                                        \
            }                                                                               \
            read = value;                                                                   \
        }                                                                                   \
    };                                                                                      \
    RegisterAction<bit<32>, bit<1>, bit<32>>(commit_##N) read_commit_##N = {                \
        void apply(inout bit<32> value, out bit<32> read) { read = value; }                 \
    };

#define ACCESS(N)                                                                           \
    if (meta.input == N) {                                                                  \
        meta.b##N = raise_barrier_##N.execute(0);                                           \
        meta.c##N = raise_commit_##N.execute(0);                                            \
    } else {                                                                                \
        meta.b##N = read_barrier_##N.execute(0);                                            \
        meta.c##N = read_commit_##N.execute(0);                                             \
    }

// The minimum that a half has passed on last, of one service: it is raised to FIELD, and read.
#define PASSED(NAME, FIELD)                                                                 \
    Register<bit<32>, bit<1>>(1) NAME;                                                      \
    RegisterAction<bit<32>, bit<1>, bit<32>>(NAME) raise_##NAME = {                         \
        void apply(inout bit<32> value, out bit<32> read) {                                 \
            if ((int<32>)(meta.FIELD - value) > 0) {                                        \
                value = meta.FIELD;                                                         \
            }                                                                               \
            read = value;                                                                   \
        }                                                                                   \
    };                                                                                      \
    RegisterAction<bit<32>, bit<1>, bit<32>>(NAME) read_##NAME = {                          \
        void apply(inout bit<32> value, out bit<32> read) { read = value; }                 \
    };

// An up half whose inputs are all gone promises its own time, which a blank beacon has in place of
// its barrier. For other packets it promises what it did. To the down half it always counts.
#define PASS_UP(MASK, FIELD, NAME)                                                          \
    if (MASK[0:0] == 0 && meta.input == 255) {                                              \
        FIELD = (bit<32>)headers.toc.barrier;                                               \
        MASK[0:0] = 1;                                                                      \
    }                                                                                       \
    if (MASK[0:0] == 1) {                                                                   \
        FIELD = raise_##NAME.execute(0);                                                    \
    } else {                                                                                \
        FIELD = read_##NAME.execute(0);                                                     \
        MASK[0:0] = 1;                                                                      \
    }

// The earlier one of two times whose inputs count. A pair counts if one of both does.
#define LEAST(MASK, A, BIT_A, B, BIT_B)                                                     \
    if (MASK[BIT_A:BIT_A] == 0 ||                                                           \
        (MASK[BIT_B:BIT_B] == 1 && (int<32>)(B - A) < 0)) {                                 \
        A = B;                                                                              \
        MASK[BIT_A:BIT_A] = MASK[BIT_B:BIT_B];                                              \
    }

control Ingress(inout headers_t headers, inout metadata_t meta,
                in ingress_intrinsic_metadata_t ingress,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
                inout ingress_intrinsic_metadata_for_tm_t to_queue) {
    INPUT(0) INPUT(1) INPUT(2) INPUT(3) INPUT(4) INPUT(5) INPUT(6) INPUT(7)
    PASSED(up_barrier, b0) PASSED(up_commit, c0) PASSED(down_barrier, b4) PASSED(down_commit, c4)

    action drop() { to_deparser.drop_ctl = 1; }
    action to_cpu() { to_queue.ucast_egress_port = 64; }

    // -- inputs: entries are removed when an input is fenced, and one begins for each new epoch ----

    action accept_input(bit<8> input, bit<1> is_lower) {
        meta.input = input;
        meta.is_lower = is_lower;
        meta.is_accepted = 1;
    }
    // A process speaks for itself alone, in its epoch.
    table processes {
        key = {
            ingress.ingress_port: exact;
            headers.toc.source: exact;
            headers.toc.epoch: exact;
            headers.ipv4.source: exact;
            headers.udp.source: exact;
        }
        actions = { accept_input; NoAction; }
        default_action = NoAction();
        size = 1024;
    }
    // A switch forwards packets of others; its own beacons, and all that is for this switch itself,
    // must be of its epoch.
    table switches {
        key = {
            ingress.ingress_port: exact;
            headers.ipv4.source: exact;
            headers.udp.source: exact;
            headers.toc.opcode: ternary;
            headers.toc.to: ternary;
            headers.toc.epoch: ternary;
        }
        actions = { accept_input; NoAction; }
        default_action = NoAction();
        size = 128;
    }
    action set_masks(bit<8> live, bit<8> counts) {
        meta.live = live;
        meta.counts = counts;
    }
    table masks {
        key = {}
        actions = { set_masks; }
        default_action = set_masks(0, 0);
    }

    // -- outputs -------------------------------------------------------------------------------

    Hash<bit<16>>(HashAlgorithm_t.CRC16) spread;
    ActionProfile(256) hops_of;
    ActionSelector(hops_of, spread, SelectorMode_t.FAIR, 64, 32) next_hop;
    Meter<bit<9>>(512, MeterType_t.BYTES) phantom_queues;

    action forward(PortId_t port, bit<1> is_lower, bit<48> mac, bit<48> own_mac, bit<32> own_ip,
                   bit<32> ip, bit<16> udp_port) {
        to_queue.ucast_egress_port = port;
        meta.to_lower = is_lower;
        headers.ethernet.to = mac;
        headers.ethernet.source = own_mac;
        headers.ipv4.source = own_ip;
        headers.ipv4.to = ip;
        headers.udp.source = 7100;
        headers.udp.to = udp_port;
        headers.udp.sum = 0;
        // The same rate as the phantom queue of weir_toc.congestion, by the meter of the chip.
        meta.color = (bit<8>)phantom_queues.execute(port);
    }
    table routes {
        key = {
            headers.toc.to: lpm;
            // What came down does not go up again.
            meta.is_lower: exact;
            headers.toc.psn: selector;
            headers.toc.source: selector;
        }
        actions = { forward; drop; }
        default_action = drop();
        implementation = next_hop;
        size = 4096;
    }
    // A blank beacon names its output in place of its commit barrier.
    table outputs {
        key = { headers.toc.commit: exact; }
        actions = { forward; drop; }
        default_action = drop();
        size = 64;
    }

    apply {
        if (!headers.toc.isValid()) {
            to_cpu();
            exit;
        }
        if (headers.toc.to == NEIGHBOUR &&
            (headers.toc.opcode == JOIN || headers.toc.opcode == FENCED)) {
            to_cpu();
            exit;
        }
        meta.input = 255;
        masks.apply();
        if (ingress.ingress_port != 68) {
            if (!processes.apply().hit) {
                switches.apply();
            }
            if (meta.is_accepted == 0) {
                to_cpu();  // the host process tells the neighbour that its epoch has ended
                exit;
            }
        }
        ACCESS(0) ACCESS(1) ACCESS(2) ACCESS(3) ACCESS(4) ACCESS(5) ACCESS(6) ACCESS(7)
        if (meta.input == 255) {
            outputs.apply();
        } else if (headers.toc.to == NEIGHBOUR) {
            drop();
            exit;
        } else {
            routes.apply();
        }
        // The up half, in the first of each pair.
        LEAST(meta.live, meta.b0, 0, meta.b1, 1)
        LEAST(meta.live, meta.b2, 2, meta.b3, 3)
        LEAST(meta.counts, meta.c0, 0, meta.c1, 1)
        LEAST(meta.counts, meta.c2, 2, meta.c3, 3)
        LEAST(meta.live, meta.b0, 0, meta.b2, 2)
        LEAST(meta.counts, meta.c0, 0, meta.c2, 2)
        PASS_UP(meta.live, meta.b0, up_barrier)
        PASS_UP(meta.counts, meta.c0, up_commit)
        // The down half, and the virtual link from the up half to it.
        LEAST(meta.live, meta.b4, 4, meta.b5, 5)
        LEAST(meta.live, meta.b6, 6, meta.b7, 7)
        LEAST(meta.counts, meta.c4, 4, meta.c5, 5)
        LEAST(meta.counts, meta.c6, 6, meta.c7, 7)
        LEAST(meta.live, meta.b4, 4, meta.b6, 6)
        LEAST(meta.counts, meta.c4, 4, meta.c6, 6)
        LEAST(meta.live, meta.b4, 4, meta.b0, 0)
        LEAST(meta.counts, meta.c4, 4, meta.c0, 0)
        meta.b4 = raise_down_barrier.execute(0);
        meta.c4 = raise_down_commit.execute(0);
        if (meta.to_lower == 1) {
            meta.barrier = meta.b4;
            meta.commit = meta.c4;
        } else {
            meta.barrier = meta.b0;
            meta.commit = meta.c0;
        }
        meta.ahead = meta.barrier - (bit<32>)headers.toc.barrier;
        headers.toc.barrier = headers.toc.barrier + (bit<48>)(int<48>)(int<32>)meta.ahead;
        if (meta.input == 255) {
            // A blank beacon has the time in place of its barrier, for both.
            meta.ahead = meta.commit - meta.barrier;
            headers.toc.commit = headers.toc.barrier + (bit<48>)(int<48>)(int<32>)meta.ahead;
        } else {
            meta.ahead = meta.commit - (bit<32>)headers.toc.commit;
            headers.toc.commit = headers.toc.commit + (bit<48>)(int<48>)(int<32>)meta.ahead;
        }
        if (meta.color == 3) {
            headers.toc.flags = headers.toc.flags | ECN;
        }
        to_queue.bypass_egress = 1;
    }
}

control IngressDeparser(packet_out packet, inout headers_t headers, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
    Checksum() ipv4_sum;

    apply {
        if (headers.toc.isValid()) {
            headers.ipv4.sum = ipv4_sum.update({
                headers.ipv4.version, headers.ipv4.words, headers.ipv4.service,
                headers.ipv4.length, headers.ipv4.id, headers.ipv4.fragment, headers.ipv4.hops,
                headers.ipv4.protocol, headers.ipv4.source, headers.ipv4.to
            });
        }
        packet.emit(headers);
    }
}

// The ingress has done all.
struct nothing_t {}

parser EgressParser(packet_in packet, out nothing_t headers, out nothing_t meta,
                    out egress_intrinsic_metadata_t egress) {
    state start {
        packet.extract(egress);
        transition accept;
    }
}

control Egress(inout nothing_t headers, inout nothing_t meta, in egress_intrinsic_metadata_t egress,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t to_deparser,
               inout egress_intrinsic_metadata_for_output_port_t to_port) {
    apply {}
}

control EgressDeparser(packet_out packet, inout nothing_t headers, in nothing_t meta,
                       in egress_intrinsic_metadata_for_deparser_t to_deparser) {
    apply {}
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(),
         EgressDeparser()) pipe;

Switch(pipe) main;
