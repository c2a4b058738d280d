/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Layouts of everything the kernel and user space share: the only authority.
 * svcctl/maps/layouts.py mirrors them; a test and `svcctl doctor` compare both
 * through BTF. Fixed widths, no bit fields, no implicit holes: garbage in
 * padding would make hash and trie look-ups miss.
 *
 * Addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d, and keys carry the family,
 * so that ::/0 can never match IPv4. Ports in keys are in host byte order:
 * they are compared, never put on the wire.
 */
#ifndef SVC_TYPES_H
#define SVC_TYPES_H

#include <linux/types.h>

#define SVC_MAGIC 0x6c74637663767331ULL /* "1svcvctl", little endian */

/* The layout's number. `upgrade` carries older state over; newer is refused. */
#ifndef SVC_SCHEMA
#define SVC_SCHEMA 2
#endif

#define SVC_LABEL_BYTES 255
#define SVC_SOCKETS_PER_DESTINATION 16
#define SVC_PROGRAM_MAPS 32
#define SVC_PROGRAM_SLOTS 64 /* 0-31 loaded, 32-63 of an upgrade under way */
#define SVC_DROP_SLOTS 64 /* room of drop_stats */
#define SVC_WRITERS 10
#define SVC_PORTS (2 * 65536) /* TCP first, then UDP */

enum svc_family {
	SVC_IPV4 = 4,
	SVC_IPV6 = 6,
};

/* Why a packet or connection was refused; index of drop_stats. */
enum svc_drop_reason {
	SVC_DROP_NO_SOCKET = 0, /* a binding's label has no live socket */
	SVC_DROP_BAD_DESTINATION = 1, /* a binding names an id out of range */
	SVC_DROP_UNSTABLE = 2, /* an entry kept changing while it was read */
	SVC_DROP_NO_BACKEND = 3, /* a service has nobody to serve */
	SVC_DROP_VERDICT = 4, /* a service's rule says nobody is served */
	SVC_DROP_FILTERED = 5, /* source ranges, which sockets cannot obey */
	SVC_DROP_BLOCKED = 6, /* another port of a blocked service address */
	SVC_DROP_NO_PORT = 7, /* a client's port is taken, and so are others */
	SVC_DROP_NO_FLOW = 8, /* a flow could not be remembered */
	SVC_DROP_NO_WRITE = 9, /* a packet could not be changed */
	SVC_DROP_BACKEND_GONE = 10, /* a TCP flow's backend left its service */
	SVC_DROP_UNKNOWN_FLOW = 11, /* TCP to a service that nobody has opened */
	SVC_DROP_NO_NODE = 12, /* the backend's node or this one has no address for tunnels */
	SVC_DROP_NO_ROUTE = 13, /* nowhere to send it to */
	SVC_DROP_NOT_A_PEER = 14, /* a tunnelled packet from who is no node */
	SVC_DROP_NOT_A_FLOW = 15, /* a tunnelled packet to no service */
	SVC_DROP_OTHER_NODE = 16, /* a tunnelled packet of a flow that another node sends */
	SVC_DROP_TOO_BIG = 17, /* for the tunnel: answered so; or, out of it, for the client's side */
	SVC_DROP_HOPS = 18, /* its time to live was over */
	SVC_DROP_CONGESTION = 19, /* a tunnel's mark, on a packet that takes none */
	SVC_DROP_REASONS = 20,
};

/* Position of a map in `usage`. */
enum svc_usage_index {
	SVC_USAGE_BINDINGS = 0,
	SVC_USAGE_EXACT = 1,
	SVC_USAGE_DESTINATIONS = 2,
	SVC_USAGE_SERVICES = 3,
	SVC_USAGE_FRONTENDS = 4,
	SVC_USAGE_SERVICE_FRONTS = 5,
	SVC_USAGE_BACKENDS = 6,
	SVC_USAGE_SERVICE_MEMBERS = 7,
	SVC_USAGE_BLOCKS = 8,
	SVC_USAGE_SLOTS = 9,
	SVC_USAGE_MEMBERS = 10,
	SVC_USAGE_LANES = 11,
	SVC_USAGE_SOURCE_RANGES = 12,
	SVC_USAGE_MAPS = 32,
};

/* Position of a program in `programs`. */
enum svc_program_index {
	SVC_PROGRAM_DISPATCH = 0,
	SVC_PROGRAM_CONNECT4 = 1,
	SVC_PROGRAM_CONNECT6 = 2,
	SVC_PROGRAM_SENDMSG4 = 3,
	SVC_PROGRAM_SENDMSG6 = 4,
	SVC_PROGRAM_RECVMSG4 = 5,
	SVC_PROGRAM_RECVMSG6 = 6,
	SVC_PROGRAM_GETPEERNAME4 = 7,
	SVC_PROGRAM_GETPEERNAME6 = 8,
	SVC_PROGRAM_SOCK_RELEASE = 9,
	SVC_PROGRAM_FROM_WORKLOAD = 10,
	SVC_PROGRAM_TO_WORKLOAD = 11,
	SVC_PROGRAM_FROM_OUTSIDE = 12,
	SVC_PROGRAM_TO_OUTSIDE = 13,
};

enum svc_attachment_kind {
	SVC_ATTACH_NETNS = 1,
	SVC_ATTACH_CGROUP = 2,
	SVC_ATTACH_DEV = 3,
};

/* What an interface is to the packet path. */
enum svc_role {
	SVC_ROLE_WORKLOAD = 1, /* the host's end of a container's veth */
	SVC_ROLE_HOST = 2, /* the node's own interface to the outside */
};

enum svc_attachment_flag {
	SVC_ATTACHMENT_CLSACT = 1, /* a filter on clsact instead of a link */
};

/* What an interrupted map or program swap must do next. */
enum svc_swap_phase {
	SVC_SWAP_NONE = 0, /* next_* pins, if any, are dropped */
	SVC_SWAP_FORWARD = 1, /* links and pins go to next_* */
};

/*
 * Who owns this state and what is happening to it. Its size and the offsets
 * up to `swap_phase` never change, so that any version can judge any state.
 */
struct svc_meta {
	__u64 magic;
	__u32 schema;
	__u32 netns_inode;
	__u64 netns_cookie; /* 0: the kernel has none (before 5.14) */
	__u64 generation; /* odd: a writer is at work, or died at it */
	__u64 mark_time_ns; /* the last mark: CLOCK_REALTIME */
	__u32 mark_pid;
	__u32 mark_uid;
	char mark_command[64];
	__u32 swap_phase; /* enum svc_swap_phase */
	__u32 swap_programs; /* bit per svc_program_index */
	__u32 next_destination; /* first id never handed out */
	__u32 next_writer; /* position in `writers` */
	__u32 group; /* gid of the pins */
	__u32 mode; /* of map pins */
	__u64 created_ns;
	char created_by[32]; /* svcctl version */
	char version[32]; /* of the last load or upgrade */
	__u64 lock_waits; /* changes that had to wait for the lock */
	__u64 lock_wait_ns; /* how long, in all */
	__u32 next_service; /* ids never handed out; 0 is none */
	__u32 next_backend;
	__u32 next_block;
	__u32 next_lane;
	__u32 next_ranges;
	__u32 idle_ms[7]; /* as in svc_packet_config, for it; 0: the default */
	__u8 reserved[752];
};
_Static_assert(sizeof(struct svc_meta) == 1024, "svc_meta");

struct svc_usage {
	__u32 used;
	__u32 max;
};
_Static_assert(sizeof(struct svc_usage) == 8, "svc_usage");

struct svc_writer {
	__u64 time_ns; /* CLOCK_REALTIME, 0: unused */
	__u32 pid;
	__u32 uid;
	char command[112];
};
_Static_assert(sizeof(struct svc_writer) == 128, "svc_writer");

struct svc_program {
	char name[16];
	__u32 id; /* 0: not loaded */
	__u32 map_count;
	__u32 map_ids[SVC_PROGRAM_MAPS];
	__u8 sha256[32]; /* of the object file */
	char version[32];
	__u64 loaded_ns;
};
_Static_assert(sizeof(struct svc_program) == 224, "svc_program");

struct svc_attachment_key {
	__u32 kind; /* enum svc_attachment_kind */
	__u32 hook; /* enum bpf_attach_type */
	__u64 target; /* netns inode, cgroup id, interface index */
};
_Static_assert(sizeof(struct svc_attachment_key) == 16, "svc_attachment_key");

struct svc_attachment {
	__u32 program; /* enum svc_program_index */
	__u32 link_id; /* 0: recorded, not made yet; of a filter always */
	__u64 since_ns;
	__u32 role; /* enum svc_role, of an interface */
	__u32 flags; /* enum svc_attachment_flag */
	char name[16]; /* of an interface; its index may be given out again */
};
_Static_assert(sizeof(struct svc_attachment) == 40, "svc_attachment");

/* Interfaces that are to be attached when they come: a shell pattern. */
struct svc_attach_rule_key {
	char pattern[64];
};
_Static_assert(sizeof(struct svc_attach_rule_key) == 64, "svc_attach_rule_key");

struct svc_attach_rule {
	__u32 role; /* enum svc_role */
	__u32 flags;
	__u64 since_ns;
};
_Static_assert(sizeof(struct svc_attach_rule) == 16, "svc_attach_rule");

/* Prefixes that are not full length. prefixlen counts from `protocol`. */
struct svc_binding_key {
	__u32 prefixlen;
	__u8 protocol;
	__u8 family; /* enum svc_family */
	__u16 port; /* 0: every port */
	__u8 address[16];
};
_Static_assert(sizeof(struct svc_binding_key) == 24, "svc_binding_key");

/* A trie does not tell which prefix matched, so the value says it again. */
struct svc_binding {
	__u32 destination;
	__u32 prefixlen;
};
_Static_assert(sizeof(struct svc_binding) == 8, "svc_binding");

struct svc_owner {
	char name[64]; /* zero padded UTF-8 */
};
_Static_assert(sizeof(struct svc_owner) == 64, "svc_owner");

/* Full-length bindings: the last 20 bytes of a svc_binding_key. */
struct svc_exact_key {
	__u8 protocol;
	__u8 family;
	__u16 port;
	__u8 address[16];
};
_Static_assert(sizeof(struct svc_exact_key) == 20, "svc_exact_key");

/*
 * Read as one 8-byte word. A hash element may be reused for another key while
 * a program reads it; `check` is a digest of the key and tells.
 */
struct svc_exact {
	__u32 destination;
	__u32 check;
};
_Static_assert(sizeof(struct svc_exact) == 8, "svc_exact");

/* How many bindings of each kind a (protocol, port) has; 0 saves the look-up. */
struct svc_ports {
	__u32 exact;
	__u32 trie;
};
_Static_assert(sizeof(struct svc_ports) == 8, "svc_ports");

struct svc_destination_key {
	__u8 label[SVC_LABEL_BYTES]; /* zero padded UTF-8 */
	__u8 family;
	__u8 protocol;
};
_Static_assert(sizeof(struct svc_destination_key) == 257, "svc_destination_key");

struct svc_destination {
	__u32 id;
	__u32 refs; /* bindings that name it; may be too high, never too low */
	__u32 slots; /* bit n: slot n of `sockets` was filled by a writer */
	__u32 flags;
};
_Static_assert(sizeof(struct svc_destination) == 16, "svc_destination");

struct svc_dispatch_stats {
	__u64 lookups;
	__u64 no_socket; /* dropped: nothing live was registered */
	__u64 errors; /* registered sockets that could not take it */
};
_Static_assert(sizeof(struct svc_dispatch_stats) == 24, "svc_dispatch_stats");

/* Factors of svc_exact.check, one a 32-bit word of the key. */
#define SVC_CHECK_0 0x9e3779b1u
#define SVC_CHECK_1 0x85ebca77u
#define SVC_CHECK_2 0xc2b2ae3du
#define SVC_CHECK_3 0x27d4eb2fu
#define SVC_CHECK_4 0x165667b1u

#endif
