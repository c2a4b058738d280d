// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Copies sockets from one sockmap to another, for `upgrade` when it makes
 * `sockets` anew and for `load --from-tubular`. User space cannot: it puts
 * descriptors in and reads cookies out.
 *
 * Never attached, only run by BPF_PROG_TEST_RUN, with a made-up connection:
 * from "address" `source` (first slot to read) to "address" `target` (first
 * to write), whose "port" is the number of slots, 16 at most. It is a
 * sk_lookup program because since Linux 7 no other kind that can be run so
 * may write a sockmap, and then the two programs need the same rights.
 */
#include <linux/bpf.h>
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

/* SK_DROP: at least one socket could not be copied. */
SEC("sk_lookup")
int copy_sockets(struct bpf_sk_lookup *ctx)
{
	__u32 source = ctx->remote_ip4, target = ctx->local_ip4;
	__u32 slots = ctx->local_port;
	int verdict = SK_PASS;

	for (__u32 i = 0; i < SVC_SOCKETS_PER_DESTINATION; i++) {
		__u32 from = source + i, to = target + i;
		struct bpf_sock *sk;

		if (i >= slots)
			break;
		sk = bpf_map_lookup_elem(&old_sockets, &from);
		if (!sk)
			continue;
		if (bpf_map_update_elem(&new_sockets, &to, sk, BPF_ANY))
			verdict = SK_DROP;
		bpf_sk_release(sk);
	}
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
