// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Test programs on the balancer's own headers and maps. Programs of cgroup hooks
 * cannot be test-run, these can: DRAWS draws, or one read, a run.
 */
#include <linux/bpf.h>
#include "svc_select.h"

#define TARGETS 256
#define DRAWS 16

struct target {
	struct svc_frontend_key key;
	__u32 tag; /* bytes 13 and 14 of its backends' addresses */
	__u32 always; /* it is never deleted */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct target);
} targets SEC(".maps");

/* 0: runs, 1: found, 2: not there, 3: missed, 4: of somebody else, 5: tries */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} outcomes SEC(".maps");

/* How often the backend with this port was drawn, by each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u64);
} tally SEC(".maps");

static __always_inline void count(void *map, __u32 index)
{
	__u64 *value = bpf_map_lookup_elem(map, &index);

	if (value)
		(*value)++;
}

static __attribute__((noinline)) int
attempt(const struct svc_frontend_key *key, struct svc_pick *pick)
{
	struct svc_target target = {};
	struct svc_block *block;
	int found = find_frontend(key, &target);

	if (found != SVC_FOUND_BACKEND)
		return found;
	block = current_block(target.lane, 0);
	if (!block)
		return SVC_FOUND_CHANGED;
	if (!block->slots)
		return SVC_FOUND_REFUSE;
	return pick_new(block, pick);
}

/* Draws from the block of the first target. */
SEC("tc")
int draw(struct __sk_buff *skb)
{
	struct svc_target found = {};
	struct svc_pick pick = {};
	struct svc_block *block;
	struct target *target;
	__u32 zero = 0;

	target = bpf_map_lookup_elem(&targets, &zero);
	if (!target || find_frontend(&target->key, &found) != SVC_FOUND_BACKEND)
		return 0;
	block = current_block(found.lane, 0);
	if (!block)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < DRAWS; i++) {
		if (pick_new(block, &pick) == SVC_FOUND_BACKEND)
			count(&tally, pick.port);
	}
	return 0;
}

/* One read of a target taken at random, as the balancer does it. */
SEC("tc")
int read_random(struct __sk_buff *skb)
{
	__u32 index = bpf_get_prandom_u32() % TARGETS;
	int found = SVC_FOUND_CHANGED;
	struct svc_pick pick = {};
	struct target *target;

	target = bpf_map_lookup_elem(&targets, &index);
	if (!target)
		return 0;
	count(&outcomes, 0);
	for (int i = 0; i < SVC_TRIES && found == SVC_FOUND_CHANGED; i++) {
		if (i)
			count(&outcomes, 5);
		found = attempt(&target->key, &pick);
	}
	if (found == SVC_FOUND_BACKEND) {
		__u32 tag = pick.address[13] << 8 | pick.address[14];

		count(&outcomes, tag == target->tag ? 1 : 4);
	} else if (found == SVC_FOUND_NOTHING && !target->always) {
		count(&outcomes, 2);
	} else {
		count(&outcomes, 3);
	}
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
