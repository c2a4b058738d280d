/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Layouts of the packet path: what it remembers of a flow, and its settings.
 * svcctl/maps/packet_layouts.py mirrors them.
 */
#ifndef SVC_PACKET_TYPES_H
#define SVC_PACKET_TYPES_H

#include "svc_types.h"

/* The addresses and ports of a packet, as it comes in. */
struct svc_flow_key {
	__u8 source[16];
	__u8 destination[16];
	__u16 source_port; /* host byte order */
	__u16 destination_port;
	__u8 protocol;
	__u8 pad[3];
} __attribute__((aligned(8)));
_Static_assert(sizeof(struct svc_flow_key) == 40, "svc_flow_key");

enum svc_flow_kind {
	SVC_FLOW_REPLY = 1, /* from the backend; else from the client */
	SVC_FLOW_SELF = 2, /* the client is the backend */
	SVC_FLOW_LOCAL = 4, /* chosen from the local block */
	SVC_FLOW_ONE_SIDED = 8, /* the other direction is never seen */
	SVC_FLOW_OTHER_PORT = 16, /* the client's own port was taken */
	SVC_FLOW_TUNNEL = 32, /* not translated here: `node` does that */
	SVC_FLOW_DSR = 64, /* `node` brings the requests, but gets no answers */
	SVC_FLOW_TABLE = 128, /* chosen by a table: any node may go on with it */
	SVC_FLOW_MASQUERADE = 256, /* the backend sees this node's address */
	SVC_FLOW_PICKED_UP = 512, /* first seen in mid-life */
};

/* What was seen of a direction. */
enum svc_flow_seen {
	SVC_SEEN_FIN = 1,
	SVC_SEEN_RST = 2,
	SVC_SEEN_REPLY = 4, /* the backend has answered */
	SVC_SEEN_MOVED = 8, /* of `halfopen`: it is in `flows` now */
	SVC_SEEN_RESET = 16, /* set by a command: answer the client with RST */
};

/*
 * One direction of a flow: what its packets become. The other direction has an
 * entry of its own, whose key is the reverse of what packets become here, and
 * whose packets become the reverse of the key here.
 *
 * Up to `check` it is never changed. An element of a hash may be given to
 * another key while it is read, so `check` is a digest of the key and of all
 * before it: the five 64-bit words of the key, the six up to `backend`, and
 * `backend`, each times its factor below; of the sum the upper half.
 */
struct svc_flow {
	__u8 source[16];
	__u8 destination[16];
	__u16 source_port;
	__u16 destination_port;
	__u32 kind; /* enum svc_flow_kind */
	__u32 lane;
	__u32 service;
	__u32 backend;
	__u32 check;
	__u64 created_ns; /* CLOCK_MONOTONIC, as all times here */
	__u64 seen_ns; /* the last packet of this direction, within 16 ms */
	__u64 reset_ns; /* when a RST was seen, 0: never */
	__u32 block; /* the last one known to have the backend as a member */
	__u32 route; /* enum svc_route from bit 28 on, interface index below */
	__u32 route_time; /* when that was looked up, in 2^20 ns; 0: never */
	__u32 sequence; /* of TCP, until answered: what the client is to acknowledge */
	__u8 seen; /* enum svc_flow_seen, of this direction */
	__u8 other; /* the same of the other direction */
	__u16 device; /* lower half of the index of the workload's; 0: none yet */
	__u32 node; /* the other end of the tunnel, 0: no tunnel; may change */
};
_Static_assert(sizeof(struct svc_flow) == 104, "svc_flow");

/* Where a flow's packets go after their translation. */
enum svc_route {
	SVC_ROUTE_STACK = 0, /* up the host's stack, which routes them */
	SVC_ROUTE_PEER = 1, /* straight into the other end of a veth */
	SVC_ROUTE_NEIGHBOUR = 2, /* out of an interface */
	SVC_ROUTE_BACK = 3, /* out of where they came in */
};

/* A first fragment's ports, for those that follow. IPv4 only. */
struct svc_fragment_key {
	__u32 source; /* network byte order */
	__u32 destination;
	__u16 id;
	__u8 protocol;
	__u8 pad;
};
_Static_assert(sizeof(struct svc_fragment_key) == 12, "svc_fragment_key");

struct svc_fragment {
	__u16 source_port;
	__u16 destination_port;
	__u32 pad;
	__u64 seen_ns;
};
_Static_assert(sizeof(struct svc_fragment) == 16, "svc_fragment");

enum svc_device_flag {
	SVC_DEVICE_PEER = 1, /* a veth whose other end is in another namespace */
	SVC_DEVICE_NEIGHBOUR = 2, /* packets may be sent out of it past the stack */
};

/* An interface that is attached, by its index. */
struct svc_device {
	__u32 role; /* enum svc_role */
	__u16 flags; /* enum svc_device_flag */
	__u16 mtu; /* 0: not known */
};
_Static_assert(sizeof(struct svc_device) == 8, "svc_device");

/* A node of the cluster, by its number, which node_addresses name. Only the
 * addresses are for programs: where it takes tunnelled packets. All zeros: it has
 * none of that family. */
struct svc_node {
	__u8 address4[16];
	__u8 address6[16];
	char name[64]; /* zero padded UTF-8 */
	char owner[64];
	char zone[32];
	__u32 flags; /* enum svc_node_flag */
	__u32 pad;
};
_Static_assert(sizeof(struct svc_node) == 200, "svc_node");

enum svc_node_flag {
	SVC_NODE_BY_HAND = 1, /* `nodes add`, not an input */
};

enum svc_packet_flag {
	SVC_PACKET_KEEP = 1, /* TCP flows whose backend left go on: no RST */
	SVC_PACKET_RESET_UNKNOWN = 2, /* TCP to a service that nobody knows: RST */
	SVC_PACKET_CLAMP = 4, /* lower the MSS of connections that are tunnelled */
	SVC_PACKET_ADDRESS_BY_HAND = 8, /* for writers: an input does not set it */
};

/* Idle times after which a flow is no more, in ms. */
struct svc_packet_config {
	__u32 flags; /* enum svc_packet_flag */
	__u32 syn_ms; /* TCP, not answered yet */
	__u32 established_ms;
	__u32 fins_ms; /* both sides have ended */
	__u32 reset_ms; /* a RST was the last */
	__u32 after_reset_ms; /* traffic went on after a RST */
	__u32 udp_ms;
	__u32 fragment_ms;
	__u16 first_port; /* for clients whose own port is taken */
	__u16 ports; /* how many; 0: none */
	__u32 pad;
	/* Until then nobody opens a flow: another map is just put in the place of
	 * that of flows, and one opened now might be in one of them only. */
	__u64 hold_until_ns;
	/* Of this node in tunnels; all zeros: none, and none are used. */
	__u8 address4[16];
	__u8 address6[16];
	__u16 tunnel_port; /* UDP */
	__u16 tunnel_mtu; /* most on the wire, IP header included; 0: the interface's */
	__u32 no_dsr; /* `set` in source_ranges: clients whose answers are tunnelled */
	__u32 reserved[10];
};
_Static_assert(sizeof(struct svc_packet_config) == 128, "svc_packet_config");

/* Index of packet_stats: rare things only. */
enum svc_packet_event {
	SVC_PACKET_OPENED = 0, /* flows that were new */
	SVC_PACKET_ANSWERED = 1, /* moved to `flows` */
	SVC_PACKET_EXPIRED = 2, /* met after their time */
	SVC_PACKET_RECYCLED = 3, /* a closed connection's ports used anew */
	SVC_PACKET_RESELECTED = 4, /* their backend had left: another one */
	SVC_PACKET_OTHER_PORT = 5, /* the client's own port was taken */
	SVC_PACKET_REJECTED = 6, /* answered with RST or ICMP unreachable */
	SVC_PACKET_RESETS = 7, /* answered with RST in mid-flow */
	SVC_PACKET_ICMP = 8, /* errors translated */
	SVC_PACKET_FRAGMENTS = 9, /* later fragments translated */
	SVC_PACKET_HEALED = 10, /* the other direction had been evicted */
	SVC_PACKET_HELD = 11, /* dropped for hold_until_ns; to be sent again */
	SVC_PACKET_TUNNELLED = 12, /* flows that go to another node */
	SVC_PACKET_FROM_TUNNEL = 13, /* flows that another node sent here */
	SVC_PACKET_PICKED_UP = 14, /* flows in mid-life that another node began */
	SVC_PACKET_NODE_CHANGED = 15, /* the other end of a flow's tunnel did */
	SVC_PACKET_MASQUERADED = 16, /* flows with this node's address */
	SVC_PACKET_TOO_BIG = 17, /* answered so */
	SVC_PACKET_EVENTS = 18,
};

/* Index of `tails`. */
enum svc_tail {
	SVC_TAIL_OPEN = 0, /* a new flow of a workload */
	SVC_TAIL_ANSWER = 1, /* RST, or ICMP port unreachable */
	SVC_TAIL_ICMP_FROM = 2, /* an ICMP error from a workload */
	SVC_TAIL_ICMP_TO = 3, /* an ICMP error to a workload */
	SVC_TAIL_ICMP_OUTSIDE = 4, /* an ICMP error from outside */
	SVC_TAIL_OPEN_OUTSIDE = 5, /* a new flow from outside */
	SVC_TAIL_DECAPSULATE = 6, /* a tunnelled packet */
	SVC_TAIL_OPEN_TUNNEL = 7, /* a new flow out of a tunnel */
	SVC_TAIL_ANSWER_TUNNEL = 8, /* RST or ICMP, back through the tunnel */
	SVC_TAIL_ICMP_TUNNEL = 9, /* an ICMP error out of a tunnel */
	SVC_TAIL_COMPLAIN = 10, /* an ICMP error: too big, or no hop is left */
	SVC_TAIL_ICMP_LEAVING = 11, /* an ICMP error of the node to the outside */
	SVC_TAIL_ENCAPSULATE = 12, /* into a tunnel */
	SVC_TAILS = 16,
};

/* Factors of svc_flow.check. */
#define SVC_FLOW_CHECK_0 0x9e3779b97f4a7c15ULL
#define SVC_FLOW_CHECK_1 0xbf58476d1ce4e5b9ULL
#define SVC_FLOW_CHECK_2 0x94d049bb133111ebULL
#define SVC_FLOW_CHECK_3 0xd6e8feb86659fd93ULL
#define SVC_FLOW_CHECK_4 0xa0761d6478bd642fULL
#define SVC_FLOW_CHECK_5 0xe7037ed1a0b428dbULL
#define SVC_FLOW_CHECK_6 0x8ebc6af09c88c6e3ULL
#define SVC_FLOW_CHECK_7 0x589965cc75374cc3ULL
#define SVC_FLOW_CHECK_8 0x1d8e4e27c47d124fULL
#define SVC_FLOW_CHECK_9 0xeb44accab455d165ULL
#define SVC_FLOW_CHECK_10 0xc2b2ae3d27d4eb4fULL
#define SVC_FLOW_CHECK_11 0x165667b19e3779f9ULL

#define SVC_ROUTE_SHIFT 28

/* Tunnels: VXLAN with this number, so that whoever else uses the port is left
 * alone. */
#define SVC_TUNNEL_VNI 0xca11c0
#define SVC_TUNNEL_PORT 4789

/*
 * Which keys of `halfopen` were used last. The bucket is the highest 16 bits of the
 * sum over a key's words alone, as above; the mark the sum's two halves, one xor the
 * other, with the lowest bit set.
 */
#define SVC_FILTER_BUCKETS 65536
#define SVC_FILTER_MARKS 7
struct svc_filter_bucket {
	struct bpf_spin_lock lock;
	__u32 recent[SVC_FILTER_MARKS]; /* the latest first; 0: none */
};
_Static_assert(sizeof(struct svc_filter_bucket) == 32, "svc_filter_bucket");

#endif
