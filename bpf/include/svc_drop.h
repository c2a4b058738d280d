/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counting what is refused, by reason. */
#ifndef SVC_DROP_H
#define SVC_DROP_H

#include "svc_types.h"
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SVC_DROP_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} drop_stats SEC(".maps");

static __always_inline void count_drop(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&drop_stats, &reason);

	if (count)
		(*count)++;
}

#endif
