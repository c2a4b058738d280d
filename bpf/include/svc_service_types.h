/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Layouts of services: what a frontend's address leads to. The connect balancer
 * and the packet path read them; svcctl/maps/service_layouts.py mirrors them.
 *
 * A service has a lane for each address family it uses. A frontend is one word
 * that names a lane; a lane's word names two blocks; a block and everything
 * behind it is immutable. So a switch is one 8-byte store, and a program that
 * loads each word once sees the old set or the new one, never a mixture.
 */
#ifndef SVC_SERVICE_TYPES_H
#define SVC_SERVICE_TYPES_H

#include "svc_types.h"

#define SVC_REVERSE_ENTRIES 4

struct svc_frontend_key {
	__u8 address[16];
	__u16 port; /* host byte order; 0 with protocol 0: the whole address */
	__u8 protocol;
	__u8 pad;
};
_Static_assert(sizeof(struct svc_frontend_key) == 20, "svc_frontend_key");

enum svc_frontend_flag {
	SVC_FRONTEND_LOCAL = 1, /* its clients get the local block */
	SVC_FRONTEND_FILTERED = 2, /* has source ranges: not for sockets */
	SVC_FRONTEND_HOST = 4, /* only for sockets of the node's namespace */
	SVC_FRONTEND_BLOCK = 8, /* an address whose other ports are refused */
	SVC_FRONTEND_OUTSIDE_LOCAL = 16, /* clients from outside get the local block */
	SVC_FRONTEND_TABLE = 32, /* the service has a table */
	SVC_FRONTEND_DSR = 64, /* another node's backend answers by itself */
	SVC_FRONTEND_OUTSIDE = 128, /* for clients outside: may go by a tunnel */
};

/* Read as one 8-byte word; `mark` is flags and, from bit 8 on, a digest of the
 * key: a hash element may be reused for another key while it is read. */
struct svc_frontend {
	__u32 lane;
	__u32 mark;
};
_Static_assert(sizeof(struct svc_frontend) == 8, "svc_frontend");

/* Read as one 8-byte word. 0: no block. */
struct svc_current {
	__u32 cluster;
	__u32 local;
};
_Static_assert(sizeof(struct svc_current) == 8, "svc_current");

enum svc_verdict {
	SVC_VERDICT_REJECT = 0, /* no backend: refused at once */
	SVC_VERDICT_DROP = 1, /* a rule says nobody is to be served */
};

struct svc_block {
	__u32 block;
	__u32 service;
	__u32 lane;
	__u32 slots;
	__u32 affinity_seconds; /* 0: none */
	__u32 verdict; /* enum svc_verdict, when slots is 0 */
	__u32 ranges; /* `set` in source_ranges; 0: everybody is admitted */
	__u32 lut; /* index in `lut` + 1; 0: drawn by chance */
	__u32 lut_size;
	__u32 members; /* how many, the ones that rest included */
};
_Static_assert(sizeof(struct svc_block) == 40, "svc_block");

struct svc_slot_key {
	__u32 block;
	__u32 slot;
};
_Static_assert(sizeof(struct svc_slot_key) == 8, "svc_slot_key");

/* Walker's alias table: a draw below `threshold` is `backend`, else `alias`. */
struct svc_slot {
	__u32 backend;
	__u32 alias;
	__u32 threshold; /* of 2^32; 0xffffffff: always `backend` */
	__u32 block;
};
_Static_assert(sizeof(struct svc_slot) == 16, "svc_slot");

/* The value is the slot, or, of a member that gets no new connections (it is
 * draining, say): */
#define SVC_MEMBER_RESTS 0x80000000u
struct svc_member_key {
	__u32 block;
	__u32 backend;
};
_Static_assert(sizeof(struct svc_member_key) == 8, "svc_member_key");

struct svc_backend {
	__u8 address[16];
	__u16 port; /* host byte order */
	__u16 flags;
	__u32 node;
	__u32 id;
	__u32 pad;
	__u64 picks; /* connections sent there, by all services */
};
_Static_assert(sizeof(struct svc_backend) == 40, "svc_backend");

enum svc_client_kind {
	SVC_CLIENT_COOKIE = 0, /* a network namespace */
	SVC_CLIENT_ADDRESS = 1,
};

struct svc_affinity_key {
	__u32 service;
	__u32 kind; /* enum svc_client_kind */
	/* Cookie in the first 8 bytes, host byte order; then, of a cookie, the
	 * family: they have different backends. */
	__u8 client[16];
};
_Static_assert(sizeof(struct svc_affinity_key) == 24, "svc_affinity_key");

struct svc_affinity {
	__u32 backend;
	__u32 pad;
	__u64 used_ns; /* CLOCK_MONOTONIC */
};
_Static_assert(sizeof(struct svc_affinity) == 16, "svc_affinity");

/* Which frontend a socket's backend stands for. service 0: empty. */
struct svc_reverse_entry {
	__u8 backend_address[16];
	__u8 frontend_address[16];
	__u16 backend_port;
	__u16 frontend_port;
	__u32 service;
	__u32 lane;
	__u32 backend;
};
_Static_assert(sizeof(struct svc_reverse_entry) == 48, "svc_reverse_entry");

struct svc_reverse {
	struct bpf_spin_lock lock;
	__u32 next; /* entry that sendmsg replaces next */
	struct svc_reverse_entry entries[SVC_REVERSE_ENTRIES];
};
_Static_assert(sizeof(struct svc_reverse) == 200, "svc_reverse");

/* Per lane; added to atomically, on new connections only. */
struct svc_service_stats {
	__u64 connections;
	__u64 no_backend;
	__u64 dropped; /* verdict DROP, or source ranges */
	__u64 affinity; /* of connections: chosen by affinity */
	__u64 remembered; /* of connections: a UDP socket's earlier choice */
	__u64 unstable;
	__u64 reverse_full; /* served, but replies show the backend */
	__u64 reserved;
};
_Static_assert(sizeof(struct svc_service_stats) == 64, "svc_service_stats");

enum svc_config_flag {
	SVC_CONFIG_HOST_ONLY = 1, /* only sockets of the node's namespace */
	SVC_CONFIG_NODE_IS_INIT = 2, /* compare with the initial namespace */
	SVC_CONFIG_EXCLUDE_UDP = 4,
	SVC_CONFIG_NOT_ELIGIBLE = 8, /* load balancers should send this node nothing more */
	SVC_CONFIG_FLOWS_LEFT = 16, /* an apply has not yet ended UDP flows of backends that left */
};

struct svc_config {
	__u64 node_cookie; /* of the state's network namespace */
	__u32 flags; /* enum svc_config_flag */
	__u32 node_ports; /* frontends with the zero address */
	__u32 blocked; /* frontends with SVC_FRONTEND_BLOCK */
	__u32 udp_affinity_seconds; /* of unconnected UDP, 0: none */
	__u64 drain_ns; /* CLOCK_REALTIME; the first drain ends then or later, 0: none */
	__u64 pending_ns; /* CLOCK_REALTIME; since when a change could not be applied, 0: none waits */
	__u32 tables; /* frontends of services that have a table */
	__u16 first_node_port; /* of all there are, or were; 0: there are none */
	__u16 last_node_port;
	__u32 reserved[4];
};
_Static_assert(sizeof(struct svc_config) == 64, "svc_config");

struct svc_node_key {
	__u32 prefixlen;
	__u8 address[16];
};
_Static_assert(sizeof(struct svc_node_key) == 20, "svc_node_key");

/*
 * Whose addresses these are. An element of node_addresses is one of these in its
 * lowest byte, flags, and from SVC_NODE_SHIFT on the node's number, 0 for this one.
 */
enum svc_node_class {
	SVC_NODE_OWN = 1, /* this node's, where node ports are served */
	SVC_NODE_PEER = 2, /* another node's */
	SVC_NODE_POD = 3, /* a node's workloads' */
};

#define SVC_NODE_PORTS 0x100 /* of another node's: node ports are served there */
#define SVC_NODE_SHIFT 12

/* Who is admitted to a frontend with source ranges: prefixlen counts from
 * `set`. A set is of one family, so ::/0 admits nobody of IPv4. */
struct svc_range_key {
	__u32 prefixlen;
	__u32 set;
	__u8 address[16];
};
_Static_assert(sizeof(struct svc_range_key) == 24, "svc_range_key");

/* What only writers and listings read. */

struct svc_service_name {
	char name[255]; /* zero padded UTF-8 */
	__u8 pad;
};
_Static_assert(sizeof(struct svc_service_name) == 256, "svc_service_name");

enum svc_service_flag {
	SVC_SERVICE_INTERNAL_LOCAL = 1,
	SVC_SERVICE_EXTERNAL_LOCAL = 2,
	SVC_SERVICE_BLOCK = 4,
	SVC_SERVICE_DROP = 8, /* verdict of an empty set */
	SVC_SERVICE_DSR = 16, /* external mode: backends on other nodes answer by themselves */
};

struct svc_service {
	char name[255];
	__u8 algorithm; /* 0: random, 1: maglev, 2: maglev, stable */
	char owner[64];
	__u32 id;
	__u32 flags; /* enum svc_service_flag */
	__u32 affinity_seconds;
	__u32 lane4; /* 0: none */
	__u32 lane6;
	__u32 frontends; /* how many entries of service_fronts, from `base` on */
	__u32 members; /* how many entries of service_members, likewise */
	__u32 node_port;
	__u64 changed_ns;
	__u32 ranges; /* IPv4's `set` in source_ranges, IPv6's is one more; 0: none */
	__u32 base; /* a change writes its items elsewhere, then this value */
	__u32 health_port; /* answers whether this node has ready backends; 0: none */
	__u32 local_ready; /* how many it has */
	__u32 sources; /* how many entries of source_ranges are its own */
	__u32 table_size; /* of its Maglev tables, 0: the default */
};
_Static_assert(sizeof(struct svc_service) == 384, "svc_service");

/* A Maglev table, by a digest of what is in it: equal ones are one. */
struct svc_lut_key {
	__u8 digest[16];
};
_Static_assert(sizeof(struct svc_lut_key) == 16, "svc_lut_key");

struct svc_lut {
	__u32 place; /* in `lut` */
	__u32 size;
	__u32 refs; /* blocks; may be too high, never too low */
	__u32 reserved;
};
_Static_assert(sizeof(struct svc_lut) == 16, "svc_lut");

struct svc_service_item_key {
	__u32 service;
	__u32 number;
};
_Static_assert(sizeof(struct svc_service_item_key) == 8, "svc_service_item_key");

enum svc_frontend_kind {
	SVC_KIND_CLUSTER = 0,
	SVC_KIND_EXTERNAL = 1,
	SVC_KIND_LOAD_BALANCER = 2,
	SVC_KIND_NODE_PORT = 3,
};

struct svc_service_frontend {
	__u8 address[16];
	__u16 port;
	__u8 protocol;
	__u8 pad;
	__u32 kind; /* enum svc_frontend_kind */
};
_Static_assert(sizeof(struct svc_service_frontend) == 24, "svc_service_frontend");

enum svc_member_state {
	SVC_MEMBER_ACTIVE = 0,
	SVC_MEMBER_DRAINING = 1,
	SVC_MEMBER_DOWN = 2,
};

enum svc_member_flag {
	SVC_MEMBER_LOCAL = 1, /* on this node */
	SVC_MEMBER_NOT_CLUSTER = 2, /* not in the cluster set, though active */
	SVC_MEMBER_NOT_LOCAL = 4, /* not in the local set, though active and local */
};

struct svc_service_member {
	__u32 backend;
	__u32 weight;
	__u32 state; /* enum svc_member_state */
	__u32 flags; /* enum svc_member_flag */
	__u64 since_ns; /* CLOCK_REALTIME, of the state */
	__u64 until_ns; /* when `drain --after` ends it, 0: never */
};
_Static_assert(sizeof(struct svc_service_member) == 32, "svc_service_member");

struct svc_backend_key {
	__u8 address[16];
	__u16 port;
	__u16 pad;
};
_Static_assert(sizeof(struct svc_backend_key) == 20, "svc_backend_key");

struct svc_backend_id {
	__u32 id;
	__u32 refs; /* memberships; may be too high, never too low */
	char zone[32];
	char node[64];
};
_Static_assert(sizeof(struct svc_backend_id) == 104, "svc_backend_id");

#define SVC_FRONTEND_CHECK_SHIFT 8

#endif
