// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Copies sockets from one sockmap to another: user space reads cookies from a
 * sockmap, not sockets. Run by `upgrade` when it makes `sockets` larger and by
 * `load --from-tubular`; never attached. BPF_PROG_TEST_RUN calls it with a
 * packet that has a `struct svc_copy_request` after its Ethernet header.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include "svc_types.h"
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} old_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} new_sockets SEC(".maps");

#define ETHERNET_HEADER 14

/* Returns how many sockets could not be copied. */
SEC("tc")
int copy_sockets(struct __sk_buff *skb)
{
	struct svc_copy_request request = {};
	__u32 failed = 0;

	if (bpf_skb_load_bytes(skb, ETHERNET_HEADER, &request, sizeof(request)))
		return SVC_SOCKETS_PER_DESTINATION;

	for (__u32 i = 0; i < SVC_SOCKETS_PER_DESTINATION; i++) {
		__u32 from = request.source + i, to = request.target + i;
		struct bpf_sock *sk;

		if (i >= request.slots)
			break;
		sk = bpf_map_lookup_elem(&old_sockets, &from);
		if (!sk)
			continue;
		if (bpf_map_update_elem(&new_sockets, &to, sk, BPF_ANY))
			failed++;
		bpf_sk_release(sk);
	}
	return failed;
}

char _license[] SEC("license") = "Dual BSD/GPL";
