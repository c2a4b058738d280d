/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What happens to a packet, where it comes in and where it leaves. */
#ifndef SVC_HANDLE_H
#define SVC_HANDLE_H

#include "svc_fragment.h"
#include "svc_membership.h"
#include "svc_open.h"
#include "svc_tails.h"

#define ICMP_UNREACHABLE 3
#define ICMP_PORT_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMP_TIME_EXCEEDED 11
#define ICMP6_UNREACHABLE 1
#define ICMP6_PORT_UNREACHABLE 4
#define ICMP6_TOO_BIG 2
#define ICMP6_TIME_EXCEEDED 3

static __always_inline int drop(__u32 reason)
{
	count_drop(reason);
	return TC_ACT_SHOT;
}

/* What an entry says to a packet. */
enum met {
	MET_GO_ON,
	MET_NEW, /* as if there had been none */
	MET_RESET,
};

/* Whether the entry holds for this packet; if it does not, it is gone. */
static __always_inline enum met meet(const struct svc_packet_config *conf,
				     const struct packet *p,
				     const struct svc_flow *flow,
				     struct svc_flow *entry, int half,
				     __u64 now, struct svc_flow_key *reverse)
{
	int is_udp = p->key.protocol == IPPROTO_UDP;
	int opens = (p->tcp & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	__u32 event;

	if (has_expired(conf, &p->key, flow, entry, half, now,
			reverse)) {
		event = SVC_PACKET_EXPIRED;
	} else if (flow->kind & SVC_FLOW_REPLY) {
		/* A service's new connection would have its own entries by now:
		 * its client has used the port anew, for one that goes to the
		 * backend itself. */
		if ((p->tcp & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK) ||
		    !is_closed(flow, entry))
			return MET_GO_ON;
		event = SVC_PACKET_RECYCLED;
	} else if (opens && is_closed(flow, entry)) {
		event = SVC_PACKET_RECYCLED;
	} else {
		int left = membership(flow, entry);
		int kept = conf->flags & SVC_PACKET_KEEP && !half;

		if (entry->seen & SVC_SEEN_RESET) {
			left = BACKEND_LEFT;
			kept = 0;
		} else if (left == BACKEND_LEFT && !is_udp && !opens &&
			 flow->kind & SVC_FLOW_TUNNEL &&
			 bpf_map_lookup_elem(&nodes, &entry->node))
			/* Whom it chose that node knows. */
			left = BACKEND_STAYS;
		if (left == BACKEND_STAYS || (left == SERVICE_LEFT && !is_udp))
			return MET_GO_ON;
		if (!is_udp && kept)
			return MET_GO_ON;
		/* A SYN is of another connection, whatever became of the one
		 * before. */
		if (!is_udp && !opens)
			return MET_RESET;
		event = SVC_PACKET_RESELECTED;
	}
	count_event(event);
	forget_flow(&p->key, flow, reverse);
	return MET_NEW;
}

/* The route that holds for this packet: only from where the flow's come. Through a
 * tunnel there is none but that. */
static __always_inline __u32 way_of(struct __sk_buff *skb,
				    const struct svc_flow *flow,
				    const struct svc_flow *entry, __u32 hook)
{
	if (hook == FROM_WORKLOAD && entry->device != (__u16)skb->ifindex &&
	    !goes_to_node(flow, entry->node))
		return 0;
	return entry->route;
}

/* Once a second and flow: where its packets go, and whether the other direction's
 * entry is still there; it may have been evicted alone. */
static __always_inline void freshen(struct __sk_buff *skb,
				    const struct svc_packet_config *conf,
				    const struct packet *p,
				    const struct svc_flow *flow,
				    struct svc_flow *entry, int half, __u64 now,
				    __u32 hook)
{
	__u32 zero = 0;
	struct packet_scratch *s = bpf_map_lookup_elem(&packet_scratch, &zero);

	if (hook == FROM_WORKLOAD && entry->device != (__u16)skb->ifindex) {
		if (comes_from_there(skb, p))
			entry->device = skb->ifindex;
		else if (entry->device)
			return; /* what somebody else sends tells nothing */
	}
	entry->route = find_route(skb, conf, p, flow, entry->node, hook);
	entry->route_time = now >> 20;
	if (!s)
		return;
	other_key(&p->key, flow, &s->reverse);
	if (!lookup_flow(&s->reverse, half)) {
		__builtin_memset(&s->reply, 0, sizeof(s->reply));
		make_other(&p->key, flow, &s->reverse, &s->reply);
		s->reply.created_ns = entry->created_ns;
		s->reply.seen_ns = now;
		s->reply.seen = entry->other;
		s->reply.other = entry->seen;
		s->reply.node = entry->node;
		if (half) {
			mark_recent(&s->reverse);
			bpf_map_update_elem(&halfopen, &s->reverse, &s->reply,
					    BPF_NOEXIST);
		} else {
			bpf_map_update_elem(&flows, &s->reverse, &s->reply,
					    BPF_NOEXIST);
		}
		count_event(SVC_PACKET_HEALED);
	}
}

/* What a packet that came on says of its flow. */
static __always_inline void note(const struct svc_packet_config *conf,
				 const struct packet *p,
				 const struct svc_flow *flow,
				 struct svc_flow *entry, int half, __u64 now,
				 struct svc_flow_key *reverse)
{
	if (now - entry->seen_ns > SEEN_GRAIN) {
		entry->seen_ns = now;
		/* Traffic that has gone on for so long: it was no end. */
		if (is_idle(entry->reset_ns, now, conf->after_reset_ms * MS))
			entry->reset_ns = 0;
		if (half) {
			other_key(&p->key, flow, reverse);
			mark_recent(&p->key);
			mark_recent(reverse);
		}
	}
	if (p->fragment == FRAGMENT_LATER)
		return;
	if (p->tcp & (TCP_FIN | TCP_RST) ||
	    (entry->seen | entry->other) & SVC_SEEN_RST)
		note_end(p, flow, entry, half, now, reverse);
	if (half) {
		if (flow->kind & SVC_FLOW_REPLY)
			note_reply(p, flow, entry, reverse);
		else
			move_flow(p, flow, entry, reverse);
	}
}

/* 0, or a verdict. */
static __always_inline int translate(struct __sk_buff *skb, const struct packet *p,
				     const struct svc_flow *flow, __u8 ttl)
{
	if (rewrite(skb, p, flow, ttl))
		return drop(SVC_DROP_NO_WRITE);
	if (p->fragment == FRAGMENT_LATER)
		count_event(SVC_PACKET_FRAGMENTS);
	return 0;
}

/* Leaves to another program to answer with an ICMP error, or to send into a
 * tunnel. */
static __always_inline struct errand *new_errand(__u32 hook)
{
	__u32 zero = 0;
	struct packet_scratch *s = bpf_map_lookup_elem(&packet_scratch, &zero);

	if (!s)
		return 0;
	s->errand.hook = hook;
	s->errand.node = 0;
	s->errand.route = 0;
	s->errand.lower = 0;
	return &s->errand;
}

static __always_inline int complain(struct __sk_buff *skb, __u32 reason,
				    __u32 hook, __u32 type, __u32 code,
				    __u32 rest)
{
	struct errand *errand = new_errand(hook);

	count_drop(reason);
	if (!errand)
		return TC_ACT_SHOT;
	errand->complaint.type = type;
	errand->complaint.code = code;
	errand->complaint.rest = rest;
	bpf_tail_call(skb, &tails, SVC_TAIL_COMPLAIN);
	return TC_ACT_SHOT;
}

/* RFC 792, RFC 4443: no hop is left. */
static __always_inline int no_hops(struct __sk_buff *skb, const struct packet *p,
				   __u32 hook)
{
	return complain(skb, SVC_DROP_HOPS, hook,
			p->is_v6 ? ICMP6_TIME_EXCEEDED : ICMP_TIME_EXCEEDED, 0,
			0);
}

/* RFC 1191, RFC 8201. Also where a router could have cut it: nobody would put
 * the pieces of a tunnelled packet together. */
static __always_inline int too_big(struct __sk_buff *skb, const struct packet *p,
				   __u32 hook, __u32 room)
{
	count_event(SVC_PACKET_TOO_BIG);
	return p->is_v6 ? complain(skb, SVC_DROP_TOO_BIG, hook, ICMP6_TOO_BIG,
				   0, room) :
			  complain(skb, SVC_DROP_TOO_BIG, hook,
				   ICMP_UNREACHABLE, ICMP_FRAGMENTATION_NEEDED,
				   room);
}

/* Into the tunnel to a node, translated before if that is for here. */
static __always_inline int forward_to_node(struct __sk_buff *skb,
					   const struct svc_packet_config *conf,
					   const struct packet *p,
					   const struct svc_flow *flow,
					   __u32 route, __u32 node, __u32 hook)
{
	__u32 room = tunnel_room(conf, p, route);
	struct errand *errand;
	__u8 ttl = p->ttl;

	if (!route)
		return drop(SVC_DROP_NO_ROUTE);
	if (hook != TO_OUTSIDE) {
		if (ttl <= 1)
			return no_hops(skb, p, hook);
		ttl--;
	}
	if (longest_part(skb, p) > room)
		return too_big(skb, p, hook, room);
	if (!(flow->kind & SVC_FLOW_TUNNEL) && translate(skb, p, flow, ttl))
		return TC_ACT_SHOT;
	errand = new_errand(hook);
	if (!errand)
		return TC_ACT_SHOT;
	errand->node = node;
	errand->route = route;
	errand->lower = flow->kind & SVC_FLOW_TUNNEL;
	bpf_tail_call(skb, &tails, SVC_TAIL_ENCAPSULATE);
	return TC_ACT_SHOT;
}

/* Out of the tunnel to the client, as it is. */
static __always_inline int forward_to_client(struct __sk_buff *skb,
					     const struct packet *p,
					     __u32 route)
{
	if (!route)
		return drop(SVC_DROP_NO_ROUTE);
	if (p->ttl <= 1)
		return drop(SVC_DROP_HOPS);
	/* The stack, which would cut it or say so, does not take it: it is from
	 * this node's own address. */
	if (is_too_long(skb, p, route))
		return drop(SVC_DROP_TOO_BIG);
	if (lower_ttl(skb, p))
		return drop(SVC_DROP_NO_WRITE);
	return deliver(skb, route);
}

/* What the client is told in a direct answer goes for what comes through the
 * tunnel. */
static __always_inline int clamp_answer(struct __sk_buff *skb,
					const struct svc_packet_config *conf,
					const struct packet *p,
					const struct svc_flow *flow,
					__u32 route)
{
	if (!(flow->kind & SVC_FLOW_DSR) || !(conf->flags & SVC_PACKET_CLAMP) ||
	    !(p->tcp & TCP_SYN))
		return 0;
	return clamp_mss(skb, p, tunnel_room(conf, p, route));
}

/* Translate and send on; at a hook where packets come in. */
static __always_inline int forward(struct __sk_buff *skb,
				   const struct svc_packet_config *conf,
				   const struct packet *p,
				   const struct svc_flow *flow, __u32 route,
				   __u32 node, __u32 hook)
{
	__u8 ttl = p->ttl;

	if (goes_to_node(flow, node))
		return forward_to_node(skb, conf, p, flow, route, node, hook);
	if (flow->kind & SVC_FLOW_TUNNEL)
		return forward_to_client(skb, p, route);
	/* The stack takes one off by itself, and says so when there is none. It
	 * cuts what is too long as well, or says so. */
	if (ttl <= 1 || is_too_long(skb, p, route))
		route = 0;
	/* An answer that the stack has to route would come from an address that
	 * it has no route to: it is translated on its way out to the client. */
	if (!route && flow->kind & SVC_FLOW_REPLY)
		return TC_ACT_UNSPEC;
	if (route)
		ttl--;
	if (flow->kind & SVC_FLOW_REPLY &&
	    clamp_answer(skb, conf, p, flow, route))
		return drop(SVC_DROP_NO_WRITE);
	if (translate(skb, p, flow, ttl))
		return TC_ACT_SHOT;
	return deliver(skb, route);
}

/* What the destination means, as far as a few look-ups tell: 0, or 1 and flags. A
 * node port's number at another address than a node's is whoever's it was. */
static __always_inline __u32 meant(const struct packet *p, __u32 hook)
{
	struct svc_frontend_key key = {
		.port = p->key.destination_port,
		.protocol = p->key.protocol,
	};
	struct svc_frontend *found;
	struct svc_config *conf;
	__u32 zero = 0;

	copy_address4(key.address, p->key.destination);
	found = bpf_map_lookup_elem(&frontends, &key);
	if (found)
		return 1 | (found->mark & SVC_FRONTEND_TABLE);
	conf = bpf_map_lookup_elem(&config, &zero);
	if (!conf || !may_be_node_port(conf, key.port))
		return 0;
	__builtin_memset(key.address, 0, 16);
	if (!p->is_v6)
		set_v4(key.address, 0);
	found = bpf_map_lookup_elem(&frontends, &key);
	if (!found || !serves_node_ports(p->key.destination, hook))
		return 0;
	return 1 | (found->mark & SVC_FRONTEND_TABLE);
}

/* Whether packets in mid-flow are worth a look among the frontends. */
static __always_inline int any_table(void)
{
	__u32 zero = 0;
	struct svc_config *conf = bpf_map_lookup_elem(&config, &zero);

	return conf && conf->tables;
}

/* It would open a flow, but to no frontend. */
static __always_inline int nobodys(struct __sk_buff *skb, const struct packet *p)
{
	if (!is_blocked(p))
		return TC_ACT_UNSPEC;
	count_drop(SVC_DROP_BLOCKED);
	count_event(SVC_PACKET_REJECTED);
	bpf_tail_call(skb, &tails, SVC_TAIL_ANSWER);
	return TC_ACT_SHOT;
}

static __always_inline int answer_back(struct __sk_buff *skb, __u32 hook)
{
	bpf_tail_call(skb, &tails,
		      hook == FROM_TUNNEL ? SVC_TAIL_ANSWER_TUNNEL :
					    SVC_TAIL_ANSWER);
	return TC_ACT_SHOT;
}

/* What nobody knows. Out of a tunnel it is for us alone. */
static __always_inline int leave_alone(__u32 hook)
{
	return hook == FROM_TUNNEL ? drop(SVC_DROP_NOT_A_FLOW) : TC_ACT_UNSPEC;
}

static __always_inline int open_by(struct __sk_buff *skb, __u32 hook)
{
	bpf_tail_call(skb, &tails,
		      hook == FROM_WORKLOAD ? SVC_TAIL_OPEN :
		      hook == FROM_OUTSIDE  ? SVC_TAIL_OPEN_OUTSIDE :
					      SVC_TAIL_OPEN_TUNNEL);
	return drop(SVC_DROP_NO_FLOW);
}

/* A packet without a flow, from a workload, from outside or out of a tunnel. */
static __always_inline int unknown(struct __sk_buff *skb,
				   const struct svc_packet_config *conf,
				   const struct packet *p, __u32 hook)
{
	int opens = p->key.protocol == IPPROTO_UDP || opens_tcp(p);
	__u32 means;

	/* From workloads a table is no reason to pick up what is there already. */
	if (p->fragment == FRAGMENT_LATER ||
	    (!opens && hook == FROM_WORKLOAD &&
	     !(conf->flags & SVC_PACKET_RESET_UNKNOWN)))
		return leave_alone(hook);
	if (!opens && hook == FROM_OUTSIDE && !any_table() &&
	    !(conf->flags & SVC_PACKET_RESET_UNKNOWN))
		return TC_ACT_UNSPEC;
	means = meant(p, hook);
	if (!means)
		return hook == FROM_TUNNEL ? drop(SVC_DROP_NOT_A_FLOW) :
		       opens		   ? nobodys(skb, p) :
					     TC_ACT_UNSPEC;
	if (opens)
		return open_by(skb, hook);
	/* A RST is never answered, and a connection that was there before us is
	 * not told from one that was forgotten. */
	if (p->tcp & TCP_RST)
		return leave_alone(hook);
	if (means & SVC_FRONTEND_TABLE && hook != FROM_WORKLOAD)
		return open_by(skb, hook);
	if (hook != FROM_TUNNEL && !(conf->flags & SVC_PACKET_RESET_UNKNOWN))
		return TC_ACT_UNSPEC;
	count_drop(SVC_DROP_UNKNOWN_FLOW);
	count_event(SVC_PACKET_RESETS);
	return answer_back(skb, hook);
}

static __always_inline int reset_client(struct __sk_buff *skb,
					const struct packet *p,
					struct svc_flow *entry, __u64 now,
					__u32 hook)
{
	count_drop(SVC_DROP_BACKEND_GONE);
	/* It is over, and its ports may be used anew. */
	entry->seen |= SVC_SEEN_RST;
	entry->seen_ns = now;
	entry->reset_ns = now;
	if (p->tcp & TCP_RST || p->fragment == FRAGMENT_LATER)
		return TC_ACT_SHOT;
	count_event(SVC_PACKET_RESETS);
	return answer_back(skb, hook);
}

enum way {
	WAY_RIGHT,
	WAY_ALONE, /* none of ours, here */
	WAY_NEW, /* as if there had been no flow */
	WAY_WRONG,
};

/* The other end of a flow's tunnel is another one now. */
static __always_inline void change_node(const struct packet *p,
					const struct svc_flow *flow,
					struct svc_flow *entry, int half,
					__u32 node, struct svc_flow_key *reverse)
{
	struct svc_flow *other;

	other_key(&p->key, flow, reverse);
	other = lookup_flow(reverse, half);
	entry->node = node;
	entry->route_time = 0;
	if (other) {
		other->node = node;
		other->route_time = 0;
	}
	count_event(SVC_PACKET_NODE_CHANGED);
}

/* Another node may go on with a flow that has its backend from a table; one that
 * begins may come by any. */
static __always_inline enum way compare_way(const struct packet *p,
					    const struct svc_flow *flow,
					    struct svc_flow *entry, int half,
					    enum hook hook, __u32 peer,
					    struct svc_flow_key *reverse)
{
	int reply = flow->kind & SVC_FLOW_REPLY;

	if (flow->kind & SVC_FLOW_TUNNEL) {
		if (!reply)
			return hook == FROM_OUTSIDE ? WAY_RIGHT :
			       hook == FROM_TUNNEL  ? WAY_WRONG :
						      WAY_ALONE;
		if (hook != FROM_TUNNEL)
			return WAY_ALONE;
		return entry->node == peer ? WAY_RIGHT : WAY_WRONG;
	}
	if (reply)
		return hook == FROM_TUNNEL ? WAY_WRONG : WAY_RIGHT;
	if (hook == FROM_WORKLOAD || entry->node == peer)
		return WAY_RIGHT;
	if (flow->kind & SVC_FLOW_TABLE) {
		change_node(p, flow, entry, half, peer, reverse);
		return WAY_RIGHT;
	}
	if (half && opens_tcp(p))
		return WAY_NEW;
	return hook == FROM_TUNNEL ? WAY_WRONG : WAY_ALONE;
}

/* Whether a flow's packet comes the way it should; if not, the flow may be over. */
static __always_inline enum way judge_way(const struct svc_packet_config *conf,
					  const struct packet *p,
					  const struct svc_flow *flow,
					  struct svc_flow *entry, int half,
					  enum hook hook, __u32 peer, __u64 now,
					  struct svc_flow_key *reverse)
{
	enum way way = compare_way(p, flow, entry, half, hook, peer, reverse);

	if (way != WAY_WRONG && way != WAY_ALONE)
		return way;
	if (opens_tcp(p) && is_closed(flow, entry))
		count_event(SVC_PACKET_RECYCLED);
	else if (has_expired(conf, &p->key, flow, entry, half, now, reverse))
		count_event(SVC_PACKET_EXPIRED);
	else
		return way;
	return WAY_NEW;
}

/* A flow's entry by a packet's key, in `flows` or in `halfopen`. */
static __always_inline struct svc_flow *
find_flow(const struct svc_flow_key *key, struct svc_flow *flow, int *half)
{
	struct svc_flow *entry = READ_FLOW(flows, key, flow);

	*half = 0;
	if (entry || !may_be_recent(key))
		return entry;
	*half = 1;
	return READ_FLOW(halfopen, key, flow);
}

/* Where packets come in; `peer` is the node whose tunnel it was, else 0. */
static __always_inline int handle_coming(struct __sk_buff *skb, enum hook hook,
					 __u32 peer)
{
	struct svc_packet_config *conf = packet_settings();
	struct packet p = {};
	struct svc_flow_key reverse;
	struct svc_flow flow, *entry;
	int kind = parse(skb, &p), half;
	__u64 now;

	if (kind == PACKET_OTHER || !conf ||
	    (kind == PACKET_ECHO && hook == FROM_TUNNEL))
		return leave_alone(hook);
	if (kind == PACKET_ERROR) {
		bpf_tail_call(skb, &tails,
			      hook == FROM_WORKLOAD ? SVC_TAIL_ICMP_FROM :
			      hook == FROM_TUNNEL   ? SVC_TAIL_ICMP_TUNNEL :
						      SVC_TAIL_ICMP_OUTSIDE);
		return leave_alone(hook);
	}
	/* At other addresses the port is like any other, and may be a service's. */
	if (hook == FROM_OUTSIDE && p.key.protocol == IPPROTO_UDP &&
	    p.key.destination_port == conf->tunnel_port &&
	    p.fragment != FRAGMENT_LATER &&
	    same_address16(p.key.destination, own_end(conf, &p))) {
		bpf_tail_call(skb, &tails, SVC_TAIL_DECAPSULATE);
		return TC_ACT_UNSPEC;
	}
	if (p.fragment != FRAGMENT_NONE && !follow_fragment(conf, &p))
		return leave_alone(hook);

	/* A new connection is a service's or nobody's. */
	if (hook != FROM_TUNNEL &&
	    (kind == PACKET_ECHO || (opens_tcp(&p) && !meant(&p, hook))))
		return nobodys(skb, &p);
	entry = find_flow(&p.key, &flow, &half);
	if (!entry)
		return unknown(skb, conf, &p, hook);
	now = bpf_ktime_get_ns();
	switch (judge_way(conf, &p, &flow, entry, half, hook, peer, now,
			  &reverse)) {
	case WAY_RIGHT:
		break;
	case WAY_ALONE:
		return TC_ACT_UNSPEC;
	case WAY_NEW:
		forget_flow(&p.key, &flow, &reverse);
		return unknown(skb, conf, &p, hook);
	case WAY_WRONG:
		return drop(SVC_DROP_OTHER_NODE);
	}
	switch (meet(conf, &p, &flow, entry, half, now, &reverse)) {
	case MET_NEW:
		return unknown(skb, conf, &p, hook);
	case MET_RESET:
		return reset_client(skb, &p, entry, now, hook);
	case MET_GO_ON:
		break;
	}
	note(conf, &p, &flow, entry, half, now, &reverse);
	if (is_stale(entry, now))
		freshen(skb, conf, &p, &flow, entry, half, now, hook);
	return forward(skb, conf, &p, &flow, way_of(skb, &flow, entry, hook),
		       entry->node, hook);
}

/* Where packets leave: answers that could not be translated where they came in. */
static __always_inline int handle_leaving(struct __sk_buff *skb, enum hook hook)
{
	struct svc_packet_config *conf = packet_settings();
	struct packet p = {};
	struct svc_flow_key reverse;
	struct svc_flow flow, *entry;
	int kind = parse(skb, &p), half;
	__u64 now;

	if (kind == PACKET_OTHER || kind == PACKET_ECHO || !conf)
		return TC_ACT_UNSPEC;
	if (kind == PACKET_ERROR) {
		bpf_tail_call(skb, &tails,
			      hook == TO_WORKLOAD ? SVC_TAIL_ICMP_TO :
						    SVC_TAIL_ICMP_LEAVING);
		return TC_ACT_UNSPEC;
	}
	if (p.fragment != FRAGMENT_NONE && !follow_fragment(conf, &p))
		return TC_ACT_UNSPEC;
	entry = find_flow(&p.key, &flow, &half);
	if (!entry || !(flow.kind & SVC_FLOW_REPLY) ||
	    flow.kind & SVC_FLOW_TUNNEL)
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	if (meet(conf, &p, &flow, entry, half, now, &reverse) != MET_GO_ON)
		return TC_ACT_UNSPEC;
	note(conf, &p, &flow, entry, half, now, &reverse);
	if (hook == TO_OUTSIDE && goes_to_node(&flow, entry->node)) {
		if (is_stale(entry, now))
			freshen(skb, conf, &p, &flow, entry, half, now, hook);
		return forward_to_node(skb, conf, &p, &flow, entry->route,
				       entry->node, hook);
	}
	if (hook == TO_OUTSIDE &&
	    clamp_answer(skb, conf, &p, &flow, skb->ifindex))
		return drop(SVC_DROP_NO_WRITE);
	return translate(skb, &p, &flow, p.ttl) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

#endif
