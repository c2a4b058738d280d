/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps of the packet path alone; sizes are set when they are made. */
#ifndef SVC_PACKET_MAPS_H
#define SVC_PACKET_MAPS_H

#include "svc_packet_types.h"
#include <bpf/bpf_helpers.h>

#define SVC_DEFAULT_FLOWS 131072

#define SVC_LRU(map_name, key_type, value_type, size)                          \
	struct {                                                               \
		__uint(type, BPF_MAP_TYPE_LRU_HASH);                           \
		__uint(max_entries, size);                                     \
		__type(key, key_type);                                         \
		__type(value, value_type);                                     \
	} map_name SEC(".maps")

/* Two entries a flow. A flow is in `halfopen` until the client has answered the
 * backend's first answer, so that what was never answered evicts its like. */
SVC_LRU(flows, struct svc_flow_key, struct svc_flow, SVC_DEFAULT_FLOWS * 2);
SVC_LRU(halfopen, struct svc_flow_key, struct svc_flow, SVC_DEFAULT_FLOWS / 2);
SVC_LRU(fragments, struct svc_fragment_key, struct svc_fragment, 8192);

/*
 * Most packets are of no flow, and a look here saves one in `halfopen`: there is
 * nothing whose mark is not here. An entry whose mark was pushed out by as many
 * later ones as a bucket has room for is lost; all buckets hold several times what
 * `halfopen` does by default, so that it has nearly always been evicted by then.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SVC_FILTER_BUCKETS);
	__type(key, __u32);
	__type(value, struct svc_filter_bucket);
} flow_filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct svc_device);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct svc_packet_config);
} packet_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} packet_stats SEC(".maps");

#endif
