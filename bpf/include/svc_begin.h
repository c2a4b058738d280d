/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A flow's first packet: where it goes, and what is remembered of it. */
#ifndef SVC_BEGIN_H
#define SVC_BEGIN_H

#include "svc_handle.h"

/* Whether the backend's node answers the client by itself. */
static __always_inline int answers_directly(const struct svc_packet_config *conf,
					    const struct packet *p, __u32 flags)
{
	return flags & SVC_FRONTEND_DSR &&
	       !(conf->no_dsr &&
		 in_ranges(conf->no_dsr + p->is_v6, p->key.source));
}

/* A backend that plain routing reaches by the interface to the outside: its
 * answers come by here only if they are for this node. */
static __always_inline int needs_masquerade(const struct svc_packet_config *conf,
					    const struct packet *p, __u32 route)
{
	__u32 ifindex = route & INDEX_MASK;
	struct svc_device *device;

	if (route >> SVC_ROUTE_SHIFT != SVC_ROUTE_NEIGHBOUR ||
	    is_zero16(p->is_v6 ? conf->address6 : conf->address4))
		return 0;
	device = bpf_map_lookup_elem(&devices, &ifindex);
	return device && device->role == SVC_ROLE_HOST;
}

/* The node that the backend is on, 0: this one, or none that is known. A prefix of
 * another node's may have backends in it that are on this one. */
static __always_inline __u32 node_of_backend(const struct chosen *chosen)
{
	__u32 node = node_of(whose(chosen->pick.address));
	struct svc_block *here;

	if (!node || chosen->local)
		return 0;
	here = current_block(chosen->pick.lane, 1);
	if (here && is_member(here->block, chosen->pick.backend))
		return 0;
	return node;
}

/* What the flow will be; the rest of `s` is as it has to be. */
static __always_inline void describe(struct __sk_buff *skb,
				     const struct svc_packet_config *conf,
				     const struct packet *p,
				     const struct chosen *chosen, __u64 now,
				     __u32 hook, struct packet_scratch *s)
{
	__u32 node = hook == FROM_TUNNEL ? s->errand.node : 0;

	__builtin_memset(&s->flow, 0, sizeof(s->flow));
	__builtin_memset(&s->reply, 0, sizeof(s->reply));
	copy_address(s->flow.source, p->key.source);
	copy_address(s->flow.destination, chosen->pick.address);
	s->flow.source_port = p->key.source_port;
	s->flow.destination_port = chosen->pick.port;
	if (chosen->local)
		s->flow.kind |= SVC_FLOW_LOCAL;
	if (chosen->table)
		s->flow.kind |= SVC_FLOW_TABLE;
	if (p->key.protocol == IPPROTO_TCP && !opens_tcp(p))
		s->flow.kind |= SVC_FLOW_PICKED_UP;
	if (hook == FROM_OUTSIDE && chosen->flags & SVC_FRONTEND_OUTSIDE)
		node = node_of_backend(chosen);
	if (node && answers_directly(conf, p, chosen->flags))
		s->flow.kind |= SVC_FLOW_DSR;
	if (node && hook == FROM_OUTSIDE) {
		s->flow.kind |= SVC_FLOW_TUNNEL;
		if (s->flow.kind & SVC_FLOW_DSR)
			s->flow.kind |= SVC_FLOW_ONE_SIDED;
		copy_address(s->flow.destination, p->key.destination);
		s->flow.destination_port = p->key.destination_port;
	} else if (same_address16(p->key.source, chosen->pick.address)) {
		/* It would not take a packet from its own address; the
		 * service's needs no route and belongs to nobody. */
		s->flow.kind |= SVC_FLOW_SELF;
		copy_address(s->flow.source, p->key.destination);
	}
	s->flow.lane = chosen->pick.lane;
	s->flow.service = chosen->service;
	s->flow.backend = chosen->pick.backend;
	s->flow.block = chosen->block;
	s->flow.node = s->reply.node = node;
	s->flow.created_ns = s->reply.created_ns = now;
	s->flow.seen_ns = s->reply.seen_ns = now;
	s->flow.route = find_route(skb, conf, p, &s->flow, node, hook);
	s->flow.route_time = now >> 20;
	if (hook == FROM_OUTSIDE && !node &&
	    needs_masquerade(conf, p, s->flow.route)) {
		s->flow.kind |= SVC_FLOW_MASQUERADE;
		copy_address(s->flow.source,
			     p->is_v6 ? conf->address6 : conf->address4);
	}
	if (hook == FROM_WORKLOAD && comes_from_there(skb, p))
		s->flow.device = skb->ifindex;
}

static __always_inline int begin(struct __sk_buff *skb, enum hook hook)
{
	struct svc_packet_config *conf = packet_settings();
	__u32 zero = 0;
	struct packet_scratch *s = bpf_map_lookup_elem(&packet_scratch, &zero);
	struct packet p = {};
	struct chosen chosen;
	__u64 now = bpf_ktime_get_ns();
	int problem;

	if (parse(skb, &p) != PACKET_FLOW || !conf || !s)
		return leave_alone(hook);
	if (now < conf->hold_until_ns) {
		count_event(SVC_PACKET_HELD);
		return TC_ACT_SHOT;
	}
	switch (find_backend(&p, hook, &chosen)) {
	case SVC_FOUND_NOTHING:
		return leave_alone(hook);
	case SVC_FOUND_REFUSE:
		if (chosen.drops)
			return TC_ACT_SHOT;
		count_event(SVC_PACKET_REJECTED);
		return answer_back(skb, hook);
	}
	describe(skb, conf, &p, &chosen, now, hook, s);
	problem = remember_flow(conf, &p, &chosen, now, s);
	if (problem)
		return drop(problem);
	return forward(skb, conf, &p, &s->flow,
		       way_of(skb, &s->flow, &s->flow, hook), s->flow.node,
		       hook);
}

#endif
