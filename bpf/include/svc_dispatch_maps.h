/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps of the dispatcher. Sizes of bindings, exact, destinations and what
 * follows from destinations are set when they are made. */
#ifndef SVC_DISPATCH_MAPS_H
#define SVC_DISPATCH_MAPS_H

#include "svc_drop.h"
#include "svc_types.h"
#include <bpf/bpf_helpers.h>

#define SVC_DEFAULT_BINDINGS 1000000
#define SVC_DEFAULT_DESTINATIONS 1024

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, SVC_DEFAULT_BINDINGS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct svc_binding_key);
	__type(value, struct svc_binding);
} bindings SEC(".maps");

/* Not preallocated: room for a million costs 16 MiB of buckets, not 80. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SVC_DEFAULT_BINDINGS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct svc_exact_key);
	__type(value, struct svc_exact);
} exact SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SVC_PORTS);
	__type(key, __u32);
	__type(value, struct svc_ports);
} ports SEC(".maps");

/* Programs never read this one: the index writers and listings need. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SVC_DEFAULT_DESTINATIONS);
	__type(key, struct svc_destination_key);
	__type(value, struct svc_destination);
} destinations SEC(".maps");

/* Nor this one: who asked for a binding in a desired state; those made by hand
 * are not in it. A trie, as it takes no memory for entries there are not. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, SVC_DEFAULT_BINDINGS * 2);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct svc_binding_key);
	__type(value, struct svc_owner);
} binding_owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, SVC_DEFAULT_DESTINATIONS * SVC_SOCKETS_PER_DESTINATION);
	__type(key, __u32);
	__type(value, __u64); /* descriptor going in, cookie coming out */
} sockets SEC(".maps");

/* Per destination the slot that was last found live. Races do no harm. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SVC_DEFAULT_DESTINATIONS);
	__type(key, __u32);
	__type(value, __u32);
} hints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SVC_DEFAULT_DESTINATIONS);
	__type(key, __u32);
	__type(value, struct svc_dispatch_stats);
} dispatch_stats SEC(".maps");

#endif
