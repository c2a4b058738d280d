/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether a flow's backend still belongs to its service. */
#ifndef SVC_MEMBERSHIP_H
#define SVC_MEMBERSHIP_H

#include "svc_packet_types.h"
#include "svc_select.h"

enum membership {
	BACKEND_STAYS, /* draining and down ones as well */
	BACKEND_LEFT, /* other services may have it */
	SERVICE_LEFT,
};

/*
 * One array look-up, unless the service has changed since. What cannot be told
 * for certain (a word that is being written) is no reason to end a flow.
 */
static __always_inline int membership(const struct svc_flow *flow,
				      struct svc_flow *entry)
{
	union {
		__u64 word;
		struct svc_current blocks;
	} read;
	__u32 lane = flow->lane, block;
	const volatile __u64 *value = bpf_map_lookup_elem(&current, &lane);
	struct svc_block *found;

	if (!value)
		return BACKEND_STAYS;
	read.word = *value;
	block = flow->kind & SVC_FLOW_LOCAL ? read.blocks.local :
					      read.blocks.cluster;
	if (block == entry->block)
		return BACKEND_STAYS;
	if (!block)
		return SERVICE_LEFT;
	found = bpf_map_lookup_elem(&blocks, &block);
	if (!found || found->lane != lane)
		return BACKEND_STAYS;
	if (found->service != flow->service)
		return SERVICE_LEFT;
	if (!is_of_service(block, flow->backend))
		return BACKEND_LEFT;
	entry->block = block;
	return BACKEND_STAYS;
}

#endif
