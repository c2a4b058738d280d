// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What `upgrade` and `load --from-tubular` cannot do from user space: copy
 * sockets from one sockmap to another (it puts descriptors in and reads cookies
 * out), and add to counters while programs do.
 *
 * Never attached, only run by BPF_PROG_TEST_RUN, with a made-up connection:
 * from "address" `source` (first slot to read) to "address" `target` (first
 * to write), whose "port" is the number of slots, 16 at most. It is a
 * sk_lookup program because since Linux 7 no other kind that can be run so
 * may write a sockmap, and then the two programs need the same rights.
 */
#include <linux/bpf.h>
#include "svc_service_types.h"
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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct svc_backend);
} new_backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct svc_service_stats);
} new_stats SEC(".maps");

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

/*
 * Adds what was counted on an old map to a new one that programs add to as well:
 * `target` to word "port" of the counters of lane `source`, or, with port 8, to
 * the picks of backend `source`. Replacing a value would lose what is added in
 * that moment, and a backend's would be read while it is replaced.
 */
SEC("sk_lookup")
int add_count(struct bpf_sk_lookup *ctx)
{
	__u32 id = ctx->remote_ip4, more = ctx->local_ip4;
	__u32 word = ctx->local_port;
	struct svc_backend *backend;
	__u64 *stats;

	if (word < sizeof(struct svc_service_stats) / sizeof(*stats)) {
		stats = bpf_map_lookup_elem(&new_stats, &id);
		if (!stats)
			return SK_DROP;
		__sync_fetch_and_add(&stats[word], more);
		return SK_PASS;
	}
	backend = bpf_map_lookup_elem(&new_backends, &id);
	if (!backend)
		return SK_DROP;
	__sync_fetch_and_add(&backend->picks, more);
	return SK_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
