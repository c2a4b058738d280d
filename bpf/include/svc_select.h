/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From an address to a backend: frontend, lane, block, slot. Each word is read
 * once; whatever changed or has gone meanwhile is a reason to start over.
 */
#ifndef SVC_SELECT_H
#define SVC_SELECT_H

#include "svc_drop.h"
#include "svc_maglev.h"
#include "svc_service_maps.h"

#define SVC_TRIES 4

/* What a look-up came to. */
enum svc_found {
	SVC_FOUND_NOTHING, /* no service: leave it alone */
	SVC_FOUND_BACKEND,
	SVC_FOUND_REFUSE, /* a service, but nobody to serve it */
	SVC_FOUND_CHANGED, /* start over */
};

enum svc_chosen_by {
	BY_CHANCE,
	BY_AFFINITY,
	BY_SOCKET, /* it remembers */
};

struct svc_target {
	__u32 lane;
	__u32 flags; /* of the frontend */
} __attribute__((aligned(8)));

struct svc_pick {
	union {
		__u8 address[16];
		__u64 hash; /* in: of the flow, for services with a table */
	};
	__u64 *picks; /* the backend's counter */
	__u32 backend;
	__u32 lane;
	__u16 port;
};

static __always_inline __u32 frontend_check(const struct svc_frontend_key *key)
{
	const __u32 *word = (const __u32 *)key;

	return (word[0] * SVC_CHECK_0 + word[1] * SVC_CHECK_1 +
		word[2] * SVC_CHECK_2 + word[3] * SVC_CHECK_3 +
		word[4] * SVC_CHECK_4) >> SVC_FRONTEND_CHECK_SHIFT;
}

/* Other ports are not worth a look for one. */
static __always_inline int may_be_node_port(const struct svc_config *conf,
					    __u16 port)
{
	return conf->node_ports && port >= conf->first_node_port &&
	       port <= conf->last_node_port;
}

/* SVC_FOUND_BACKEND if there is such a frontend. */
static __always_inline int find_frontend(const struct svc_frontend_key *key,
					 struct svc_target *target)
{
	union {
		__u64 word;
		struct svc_frontend entry;
	} read;
	const volatile __u64 *value = bpf_map_lookup_elem(&frontends, key);

	if (!value)
		return SVC_FOUND_NOTHING;
	read.word = *value;
	if (read.entry.mark >> SVC_FRONTEND_CHECK_SHIFT != frontend_check(key))
		return SVC_FOUND_CHANGED;
	target->lane = read.entry.lane;
	target->flags = read.entry.mark & ((1 << SVC_FRONTEND_CHECK_SHIFT) - 1);
	return SVC_FOUND_BACKEND;
}

static __always_inline struct svc_block *current_block(__u32 lane, int local)
{
	union {
		__u64 word;
		struct svc_current blocks;
	} read;
	const volatile __u64 *value = bpf_map_lookup_elem(&current, &lane);
	struct svc_block *found;
	__u32 block;

	if (!value)
		return 0;
	read.word = *value;
	block = local ? read.blocks.local : read.blocks.cluster;
	if (!block)
		return 0;
	found = bpf_map_lookup_elem(&blocks, &block);
	/* The kernel copies the word in with memcpy, which may be seen half
	 * done: then it names no block, or another lane's. */
	return found && found->lane == lane ? found : 0;
}

/* Draining and down ones are of the service, but get nothing new. */
static __always_inline int is_of_service(__u32 block, __u32 backend)
{
	struct svc_member_key key = { .block = block, .backend = backend };

	return bpf_map_lookup_elem(&members, &key) != 0;
}

static __always_inline int is_member(__u32 block, __u32 backend)
{
	struct svc_member_key key = { .block = block, .backend = backend };
	const __u32 *slot = bpf_map_lookup_elem(&members, &key);

	return slot && !(*slot & SVC_MEMBER_RESTS);
}

/* Copies the backend; 0 if it has gone. */
static __always_inline int read_backend(__u32 id, struct svc_pick *pick)
{
	struct svc_backend *backend = bpf_map_lookup_elem(&backends, &id);

	if (!backend)
		return 0;
	__builtin_memcpy(pick->address, backend->address, 16);
	pick->port = backend->port;
	pick->picks = &backend->picks;
	pick->backend = id;
	return 1;
}

static __always_inline void count_pick(const struct svc_pick *pick)
{
	if (pick->picks)
		__sync_fetch_and_add(pick->picks, 1);
}

/* The backend of the flow's slot. The table belongs to its blocks for ever: who
 * sees the block sees its table, or none once nothing leads to either. */
static __always_inline int pick_by_table(const struct svc_block *block,
					 struct svc_pick *pick)
{
	__u32 index = block->lut - 1, slot;
	void *table = bpf_map_lookup_elem(&lut, &index);
	__u32 *id;

	if (!table)
		return SVC_FOUND_CHANGED;
	slot = svc_lut_slot(pick->hash, block->lut_size);
	id = bpf_map_lookup_elem(table, &slot);
	/* Of another set: the block has gone, and its table was given away. */
	if (!id || !is_member(block->block, *id))
		return SVC_FOUND_CHANGED;
	return read_backend(*id, pick) ? SVC_FOUND_BACKEND : SVC_FOUND_CHANGED;
}

/* Exact for any weights: slot by one draw, backend or alias by another. */
static __always_inline int pick_by_chance(const struct svc_block *block,
				       struct svc_pick *pick)
{
	struct svc_slot_key key = { .block = block->block };
	struct svc_slot *slot;
	__u64 draw = bpf_get_prandom_u32();
	__u32 id;

	key.slot = (draw * block->slots) >> 32;
	slot = bpf_map_lookup_elem(&slots, &key);
	if (!slot || slot->block != block->block)
		return SVC_FOUND_CHANGED;
	id = slot->backend;
	if (slot->threshold != 0xffffffff &&
	    bpf_get_prandom_u32() >= slot->threshold)
		id = slot->alias;
	return read_backend(id, pick) ? SVC_FOUND_BACKEND : SVC_FOUND_CHANGED;
}

/* For a connection that nothing binds to a backend yet. */
static __always_inline int pick_new(const struct svc_block *block,
				    struct svc_pick *pick)
{
	return block->lut ? pick_by_table(block, pick) : pick_by_chance(block, pick);
}

/* Still running, and in the block this connection selects from. Another CPU may
 * have noted a later time than ours. */
static __always_inline int is_affine(const struct svc_affinity *known,
				     const struct svc_block *block,
				     __u32 seconds, __u64 now,
				     struct svc_pick *pick)
{
	__s64 idle = now - known->used_ns;
	/* Once: another CPU may be giving the client another backend. */
	__u32 backend = *(const volatile __u32 *)&known->backend;

	return idle < (__s64)(seconds * 1000000000ULL) &&
	       is_member(block->block, backend) && read_backend(backend, pick);
}

/*
 * The client's earlier backend, if it is still a member of the block this
 * connection selects from; else a new one, remembered. Sliding time-out.
 */
static __always_inline int pick_affine(const struct svc_block *block,
				       const struct svc_affinity_key *client,
				       __u32 seconds, struct svc_pick *pick,
				       enum svc_chosen_by *chosen_by)
{
	struct svc_affinity *known, fresh = {};
	__u64 now = bpf_ktime_get_ns();
	int found;

	known = bpf_map_lookup_elem(&affinity, client);
	if (known && is_affine(known, block, seconds, now, pick)) {
		known->used_ns = now;
		*chosen_by = BY_AFFINITY;
		return SVC_FOUND_BACKEND;
	}
	found = pick_new(block, pick);
	if (found != SVC_FOUND_BACKEND)
		return found;
	if (known) {
		/* In place: a full LRU map evicts others for a new value. */
		known->backend = pick->backend;
		known->used_ns = now;
		return found;
	}
	fresh.backend = pick->backend;
	fresh.used_ns = now;
	if (bpf_map_update_elem(&affinity, client, &fresh, BPF_NOEXIST)) {
		/* The client's other connection was faster. */
		known = bpf_map_lookup_elem(&affinity, client);
		if (known && is_affine(known, block, seconds, now, pick))
			*chosen_by = BY_AFFINITY;
	}
	return found;
}

/* A client's flow goes on: so does the time-out of what it came by. */
static __always_inline void touch_affinity(const struct svc_affinity_key *client,
					   __u32 backend)
{
	struct svc_affinity *known = bpf_map_lookup_elem(&affinity, client);

	if (known && known->backend == backend)
		known->used_ns = bpf_ktime_get_ns();
}

#endif
