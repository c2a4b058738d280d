/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whose an address is: this node's, another one's, a workload's, or of outside. */
#ifndef SVC_WHERE_H
#define SVC_WHERE_H

#include "svc_parse.h"
#include "svc_service_maps.h"

/* enum svc_node_class and more; 0: of outside. */
static __always_inline __u32 whose(const __u8 *address)
{
	struct svc_node_key key = { .prefixlen = 128 };
	__u32 *value;

	copy_address4(key.address, address);
	value = bpf_map_lookup_elem(&node_addresses, &key);
	return value ? *value : 0;
}

static __always_inline __u32 class_of(__u32 value)
{
	return value & 0xff;
}

/* The number of a node that is not this one. */
static __always_inline __u32 node_of(__u32 value)
{
	return value >> SVC_NODE_SHIFT;
}

#endif
