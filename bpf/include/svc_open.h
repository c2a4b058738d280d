/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A new flow: which backend it goes to, and its two entries. */
#ifndef SVC_OPEN_H
#define SVC_OPEN_H

#include "svc_answer.h"
#include "svc_conntrack.h"
#include "svc_membership.h"
#include "svc_select.h"
#include "svc_tunnel.h"

#define PORT_TRIES 5
#define EEXIST 17

/* What one program leaves for the one that it jumps to. */
struct errand {
	__u32 node; /* the other end of the tunnel: where from, where to */
	__u32 route;
	__u32 hook; /* enum hook, where the packet is */
	__u32 lower; /* take one off its time to live */
	struct complaint complaint;
	__u32 pad[4];
};

/* What has no room on the stack. A packet is dealt with by one CPU, without
 * another one in between. */
struct packet_scratch {
	struct svc_flow flow;
	struct svc_flow reply;
	struct svc_flow old;
	struct svc_flow_key reverse;
	struct svc_flow_key client;
	struct errand errand;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_scratch);
} packet_scratch SEC(".maps");

struct chosen {
	struct svc_pick pick;
	struct svc_service_stats *stats;
	__u32 service;
	__u32 block;
	__u32 flags; /* of the frontend */
	__u32 local; /* from the local block */
	__u32 table; /* by a table */
	__u32 drops; /* of SVC_FOUND_REFUSE: no answer */
	enum svc_chosen_by by;
};

static __always_inline int in_ranges(__u32 set, const __u8 *address)
{
	struct svc_range_key key = { .prefixlen = 160, .set = set };

	copy_address4(key.address, address);
	return set && bpf_map_lookup_elem(&source_ranges, &key);
}

/* Clients of this node, of others and of their workloads. */
static __always_inline int is_inside(const __u8 *address)
{
	return whose(address) != 0;
}

/* What came out of a tunnel is for this node's backends, or nobody's. */
static __always_inline int wants_local(const struct packet *p, __u32 flags,
				       __u32 hook)
{
	return hook == FROM_TUNNEL || flags & SVC_FRONTEND_LOCAL ||
	       (hook == FROM_OUTSIDE && flags & SVC_FRONTEND_OUTSIDE_LOCAL &&
		!is_inside(p->key.source));
}

static __always_inline int choose_backend(const struct packet *p,
					  const struct svc_target *target,
					  __u32 hook, struct chosen *chosen)
{
	struct svc_affinity_key client = {};
	struct svc_block *block;
	__u32 lane = target->lane;

	/* No node puts that into a tunnel. */
	if (hook == FROM_TUNNEL && !(target->flags & SVC_FRONTEND_OUTSIDE))
		return SVC_FOUND_NOTHING;
	chosen->stats = bpf_map_lookup_elem(&service_stats, &lane);
	chosen->local = wants_local(p, target->flags, hook);
	block = current_block(lane, chosen->local);
	if (!chosen->stats || !block)
		return SVC_FOUND_CHANGED;
	if (target->flags & SVC_FRONTEND_FILTERED &&
	    !in_ranges(block->ranges, p->key.source)) {
		__sync_fetch_and_add(&chosen->stats->dropped, 1);
		count_drop(SVC_DROP_FILTERED);
		chosen->drops = 1;
		return SVC_FOUND_REFUSE;
	}
	if (!block->slots) {
		/* A node that took this one's for the backend's is told. */
		chosen->drops = block->verdict == SVC_VERDICT_DROP &&
				hook != FROM_TUNNEL;
		if (chosen->drops) {
			__sync_fetch_and_add(&chosen->stats->dropped, 1);
			count_drop(SVC_DROP_VERDICT);
		} else {
			__sync_fetch_and_add(&chosen->stats->no_backend, 1);
			count_drop(SVC_DROP_NO_BACKEND);
		}
		return SVC_FOUND_REFUSE;
	}
	/* Whom a flow in mid-life has only a table can say. */
	if (p->key.protocol == IPPROTO_TCP && !opens_tcp(p) && !block->lut)
		return SVC_FOUND_NOTHING;
	chosen->table = block->lut != 0;
	chosen->service = block->service;
	chosen->block = block->block;
	chosen->flags = target->flags;
	chosen->pick.lane = lane;
	chosen->by = BY_CHANCE;
	/* What every node that has the same table comes to. */
	if (block->lut)
		chosen->pick.hash = svc_hash_flow(
			p->key.source, p->key.destination, p->key.source_port,
			p->key.destination_port, p->key.protocol);
	if (!block->affinity_seconds)
		return pick_new(block, &chosen->pick);
	client.service = block->service;
	client.kind = SVC_CLIENT_ADDRESS;
	copy_address4(client.client, p->key.source);
	return pick_affine(block, &client, block->affinity_seconds,
			   &chosen->pick, &chosen->by);
}

/*
 * Whether a node port is served at this address. Workloads reach it at every
 * node's without a detour. Out of a tunnel, the node that put it there has seen to
 * it.
 */
static __always_inline int serves_node_ports(const __u8 *address, __u32 hook)
{
	__u32 value;

	if (hook == FROM_TUNNEL)
		return 1;
	value = whose(address);
	return class_of(value) == SVC_NODE_OWN ||
	       (hook == FROM_WORKLOAD && value & SVC_NODE_PORTS);
}

/* Loopback and zero addresses as such are the node's own sockets'. */
static __always_inline int find_meant(const struct svc_frontend_key *key,
				      __u32 hook, struct svc_target *target)
{
	struct svc_config *conf;
	struct svc_frontend_key wild = {};
	__u32 zero = 0;
	int found = find_frontend(key, target);

	if (found == SVC_FOUND_BACKEND && target->flags & SVC_FRONTEND_HOST)
		return SVC_FOUND_NOTHING;
	if (found != SVC_FOUND_NOTHING)
		return found;
	conf = bpf_map_lookup_elem(&config, &zero);
	if (!conf || !may_be_node_port(conf, key->port))
		return found;
	wild.port = key->port;
	wild.protocol = key->protocol;
	if (is_v4(key->address)) {
		wild.address[10] = 0xff;
		wild.address[11] = 0xff;
	}
	found = find_frontend(&wild, target);
	if (found == SVC_FOUND_BACKEND && !serves_node_ports(key->address, hook))
		return SVC_FOUND_NOTHING;
	return found;
}

/* Who the packet's destination means. */
static __always_inline int find_backend(const struct packet *p, __u32 hook,
					struct chosen *chosen)
{
	struct svc_target target = {};
	struct svc_frontend_key key = {
		.port = p->key.destination_port,
		.protocol = p->key.protocol,
	};
	int found = SVC_FOUND_CHANGED;

	copy_address4(key.address, p->key.destination);
#pragma clang loop unroll(disable)
	for (int i = 0; i < SVC_TRIES && found == SVC_FOUND_CHANGED; i++) {
		/* As start_over() of the connect balancer. */
		__builtin_memset(&target, 0, sizeof(target));
		__builtin_memset(chosen, 0, sizeof(*chosen));
		asm volatile("" : : "r"(chosen), "r"(&target) : "memory");
		found = find_meant(&key, hook, &target);
		if (found == SVC_FOUND_BACKEND)
			found = choose_backend(p, &target, hook, chosen);
	}
	if (found == SVC_FOUND_CHANGED) {
		struct svc_service_stats *stats;
		__u32 lane = target.lane;

		stats = bpf_map_lookup_elem(&service_stats, &lane);
		if (lane && stats)
			__sync_fetch_and_add(&stats->unstable, 1);
		count_drop(SVC_DROP_UNSTABLE);
		chosen->drops = 1;
		return SVC_FOUND_REFUSE;
	}
	return found;
}

/* Another port of an address that has frontends, all of whose others are
 * refused. */
static __always_inline int is_blocked(const struct packet *p)
{
	struct svc_frontend_key key = {};
	struct svc_target target;
	__u32 zero = 0;
	struct svc_config *conf = bpf_map_lookup_elem(&config, &zero);

	if (!conf || !conf->blocked)
		return 0;
	copy_address4(key.address, p->key.destination);
	return find_frontend(&key, &target) == SVC_FOUND_BACKEND;
}

/*
 * Whether an entry that is in the way of a new one is of a flow of another
 * client: what is left of this one's earlier flow, or past its time, is not.
 */
static __always_inline int is_anothers(const struct svc_packet_config *conf,
				       const struct svc_flow_key *key,
				       const struct svc_flow *entry, int half,
				       __u64 now, struct packet_scratch *s)
{
	if (!copy_flow(&s->reverse, entry, &s->old))
		return 0;
	other_key(&s->reverse, &s->old, &s->client);
	if (same_address16(s->client.source, key->source) &&
	    same_address16(s->client.destination, key->destination) &&
	    s->client.source_port == key->source_port &&
	    s->client.destination_port == key->destination_port)
		return 0;
	return !has_expired(conf, &s->reverse, &s->old, entry, half, now,
			    &s->client);
}

/*
 * The backend's entry. Two flows of one client that would be the same to the
 * backend are told apart by another source port. 0: done; `flow` has the port.
 */
static __always_inline int claim_reply(const struct svc_packet_config *conf,
				       const struct svc_flow_key *key,
				       __u64 now, struct packet_scratch *s)
{
	struct svc_flow *taken;
	long failed = -EEXIST;

#pragma clang loop unroll(disable)
	for (int i = 0; i < PORT_TRIES && failed; i++) {
		/* Beside this node's own address the client's port may be one
		 * of this node's sockets. */
		if (i || s->flow.kind & SVC_FLOW_MASQUERADE) {
			if (!conf->ports)
				break;
			s->flow.source_port =
				conf->first_port +
				bpf_get_prandom_u32() % conf->ports;
			s->flow.kind |= SVC_FLOW_OTHER_PORT;
		}
		other_key(key, &s->flow, &s->reverse);
		taken = bpf_map_lookup_elem(&flows, &s->reverse);
		if (taken) {
			if (is_anothers(conf, key, taken, 0, now, s))
				continue;
			bpf_map_delete_elem(&flows, &s->reverse);
		}
		taken = bpf_map_lookup_elem(&halfopen, &s->reverse);
		if (taken) {
			if (is_anothers(conf, key, taken, 1, now, s))
				continue;
			bpf_map_delete_elem(&halfopen, &s->reverse);
		}
		make_other(key, &s->flow, &s->reverse, &s->reply);
		mark_recent(&s->reverse);
		failed = bpf_map_update_elem(&halfopen, &s->reverse, &s->reply,
					     BPF_NOEXIST);
		if (failed && failed != -EEXIST)
			return SVC_DROP_NO_FLOW;
	}
	if (failed)
		return SVC_DROP_NO_PORT;
	if (s->flow.kind & SVC_FLOW_MASQUERADE)
		count_event(SVC_PACKET_MASQUERADED);
	else if (s->flow.kind & SVC_FLOW_OTHER_PORT)
		count_event(SVC_PACKET_OTHER_PORT);
	return 0;
}

/*
 * Whether the entry that is there already, of which `old` is the copy, is another
 * CPU's, which has just made it, or is as good as that. One whose mark was pushed out
 * of the filter may have outlived its time or its backend: nobody has judged it.
 */
static __always_inline int may_adopt(const struct svc_packet_config *conf,
				     const struct svc_flow_key *key,
				     struct svc_flow *entry, __u64 now,
				     struct packet_scratch *s)
{
	if (has_expired(conf, key, &s->old, entry, 1, now, &s->client) ||
	    membership(&s->old, entry) == BACKEND_LEFT)
		return 0;
	other_key(key, &s->old, &s->client);
	mark_recent(&s->client);
	return 1;
}

/* Both entries. 0: done, or another CPU had just opened the flow, and it is in
 * `flow` now. */
static __always_inline int remember_flow(const struct svc_packet_config *conf,
					 const struct packet *p,
					 const struct chosen *chosen, __u64 now,
					 struct packet_scratch *s)
{
	int problem = claim_reply(conf, &p->key, now, s);
	struct svc_flow *entry;
	long failed;

	if (problem)
		return problem;
	s->flow.check = flow_check(&p->key, &s->flow);
	mark_recent(&p->key);
	failed = bpf_map_update_elem(&halfopen, &p->key, &s->flow, BPF_NOEXIST);
	entry = failed ? READ_FLOW(halfopen, &p->key, &s->old) : 0;
	if (entry && !may_adopt(conf, &p->key, entry, now, s))
		entry = 0;
	if (failed && !entry)
		failed = bpf_map_update_elem(&halfopen, &p->key, &s->flow,
					     BPF_ANY);
	if (!failed) {
		__sync_fetch_and_add(&chosen->stats->connections, 1);
		if (chosen->by == BY_AFFINITY)
			__sync_fetch_and_add(&chosen->stats->affinity, 1);
		count_pick(&chosen->pick);
		count_event(SVC_PACKET_OPENED);
		if (s->flow.kind & SVC_FLOW_TUNNEL)
			count_event(SVC_PACKET_TUNNELLED);
		else if (s->flow.node)
			count_event(SVC_PACKET_FROM_TUNNEL);
		if (s->flow.kind & SVC_FLOW_PICKED_UP)
			count_event(SVC_PACKET_PICKED_UP);
		return 0;
	}
	if (!entry) {
		bpf_map_delete_elem(&halfopen, &s->reverse);
		return SVC_DROP_NO_FLOW;
	}
	if (s->flow.backend != s->old.backend ||
	    s->flow.source_port != s->old.source_port) {
		bpf_map_delete_elem(&halfopen, &s->reverse);
		s->flow.route = 0;
	}
	copy_flow(&p->key, entry, &s->flow);
	s->flow.node = entry->node;
	return 0;
}

#endif
