// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The programs' hash of flows, test-run on values of the test's. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "svc_maglev.h"

struct flow {
	__u8 client[16];
	__u8 frontend[16];
	__u16 client_port;
	__u16 frontend_port;
	__u32 protocol;
	__u64 cookie;
	__u32 size;
	__u32 slot; /* out */
	__u64 hash; /* out */
	__u64 cookie_hash; /* out */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

SEC("tc")
int hash_flow(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct flow *flow = bpf_map_lookup_elem(&flows, &zero);

	if (!flow)
		return 0;
	flow->hash = svc_hash_flow(flow->client, flow->frontend, flow->client_port,
				   flow->frontend_port, flow->protocol);
	flow->slot = svc_lut_slot(flow->hash, flow->size);
	flow->cookie_hash = svc_hash_cookie(flow->cookie);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
