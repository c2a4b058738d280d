/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps of services, shared by the connect balancer and the packet path. Sizes
 * are set when they are made. */
#ifndef SVC_SERVICE_MAPS_H
#define SVC_SERVICE_MAPS_H

#include "svc_service_types.h"
#include <bpf/bpf_helpers.h>

#define SVC_DEFAULT_SERVICES 4096
#define SVC_DEFAULT_FRONTENDS 16384
#define SVC_DEFAULT_BACKENDS 65536
#define SVC_DEFAULT_SOCKETS 262144
#define SVC_LUTS 65536
#define SVC_REVERSE_COUNTS 262144 /* a power of two */

#define SVC_HASH(map_name, key_type, value_type, size)                         \
	struct {                                                               \
		__uint(type, BPF_MAP_TYPE_HASH);                               \
		__uint(max_entries, size);                                     \
		__uint(map_flags, BPF_F_NO_PREALLOC);                          \
		__type(key, key_type);                                         \
		__type(value, value_type);                                     \
	} map_name SEC(".maps")

#define SVC_ARRAY(map_name, value_type, size)                                  \
	struct {                                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY);                              \
		__uint(max_entries, size);                                     \
		__type(key, __u32);                                            \
		__type(value, value_type);                                     \
	} map_name SEC(".maps")

SVC_ARRAY(config, struct svc_config, 1);
SVC_HASH(frontends, struct svc_frontend_key, struct svc_frontend,
	 SVC_DEFAULT_FRONTENDS);
SVC_ARRAY(current, struct svc_current, SVC_DEFAULT_SERVICES * 2);
SVC_HASH(blocks, __u32, struct svc_block, SVC_DEFAULT_SERVICES * 8);
SVC_HASH(slots, struct svc_slot_key, struct svc_slot, SVC_DEFAULT_BACKENDS * 4);
SVC_HASH(members, struct svc_member_key, __u32, SVC_DEFAULT_BACKENDS * 4);
SVC_HASH(backends, __u32, struct svc_backend, SVC_DEFAULT_BACKENDS);
SVC_ARRAY(service_stats, struct svc_service_stats, SVC_DEFAULT_SERVICES * 2);

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct svc_node_key);
	__type(value, __u32); /* enum svc_node_class and more */
} node_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, SVC_DEFAULT_FRONTENDS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct svc_range_key);
	__type(value, __u32); /* 1 */
} source_ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SVC_DEFAULT_SOCKETS);
	__type(key, struct svc_affinity_key);
	__type(value, struct svc_affinity);
} affinity SEC(".maps");

/* No LRU: a full map refuses nobody and forgets nobody, it is counted. */
SVC_HASH(reverse, __u64, struct svc_reverse, SVC_DEFAULT_SOCKETS);

/* How many entries of `reverse` are of cookies with these low bits: may be too
 * high, never too low. Cookies are given out in order, so the counts of sockets
 * in use share few cache lines; a look-up in `reverse` that finds nothing costs
 * a cache miss, and most sockets have nothing there. */
SVC_ARRAY(reverse_counts, __u32, SVC_REVERSE_COUNTS);

/* Maglev: index -> slot -> backend id. An inner map is never written again once
 * it is here, and may have any of the sizes of svcctl/model/maglev.py. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SVC_LUTS);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(map_flags, BPF_F_INNER_MAP);
		__uint(max_entries, 251);
		__type(key, __u32);
		__type(value, __u32);
	});
} lut SEC(".maps");

/* Programs never read these. */
SVC_HASH(lut_sets, struct svc_lut_key, struct svc_lut, SVC_LUTS);
SVC_HASH(service_names, struct svc_service_name, __u32, SVC_DEFAULT_SERVICES);
SVC_HASH(services, __u32, struct svc_service, SVC_DEFAULT_SERVICES);
SVC_HASH(service_fronts, struct svc_service_item_key,
	 struct svc_service_frontend, SVC_DEFAULT_FRONTENDS);
SVC_HASH(service_members, struct svc_service_item_key,
	 struct svc_service_member, SVC_DEFAULT_BACKENDS * 2);
/* Where node ports are served; empty: on every address of the node. */
SVC_HASH(node_port_nets, struct svc_node_key, __u32, 256);
SVC_HASH(backend_ids, struct svc_backend_key, struct svc_backend_id,
	 SVC_DEFAULT_BACKENDS);

#endif
