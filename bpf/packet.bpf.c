// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The packet path: packets to services that no socket call here has resolved.
 *
 * A workload's packet to a service is sent to a backend where it enters the host
 * (from_workload), and the answer is given the service's address back where the
 * backend's packets enter, if they can go straight to the client; else on the
 * way out to the client (to_workload). A flow has an entry for each direction,
 * with all its packets need, so an established one costs one look-up. Either
 * entry can be made from the other, and is when it was evicted.
 *
 * A flow is in `halfopen` until the client has answered the backend's answer:
 * floods of what is never completed evict their like only.
 *
 * TCP in the middle of a connection that nobody here knows was there before us,
 * and is left alone. Of IPv4's fragments those after the first follow it; those
 * of IPv6, extension headers and other protocols are left alone, too.
 *
 * A service is of TCP or UDP, so that nothing translates an echo request to its
 * address; where all of an address is a service's, it is refused like other ports.
 *
 * What is not of a service is passed on to others' programs as it came, and costs
 * as little as can be: a new connection one look-up among the frontends, TCP one
 * among the flows, UDP one in each. An ICMP error costs more.
 */
#include <linux/bpf.h>
#include "svc_fragment.h"
#include "svc_icmp.h"
#include "svc_membership.h"
#include "svc_open.h"

int open_flow(struct __sk_buff *skb);
int answer(struct __sk_buff *skb);
int icmp_from(struct __sk_buff *skb);
int icmp_to(struct __sk_buff *skb);
int icmp_outside(struct __sk_buff *skb);

/* What is rare is a program of its own, so that what is not stays small. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, SVC_TAILS);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} tails SEC(".maps") = {
	.values = {
		[SVC_TAIL_OPEN] = (void *)&open_flow,
		[SVC_TAIL_ANSWER] = (void *)&answer,
		[SVC_TAIL_ICMP_FROM] = (void *)&icmp_from,
		[SVC_TAIL_ICMP_TO] = (void *)&icmp_to,
		[SVC_TAIL_ICMP_OUTSIDE] = (void *)&icmp_outside,
	},
};

enum hook {
	FROM_WORKLOAD,
	TO_WORKLOAD,
	FROM_OUTSIDE,
};

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
				     struct svc_flow *entry, int half, __u64 now)
{
	int is_udp = p->key.protocol == IPPROTO_UDP;
	int opens = (p->tcp & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	__u32 event;

	if (has_expired(conf, &p->key, flow, entry, half, now)) {
		event = SVC_PACKET_EXPIRED;
	} else if (flow->kind & SVC_FLOW_REPLY) {
		/* A service's new connection would have its own entries by now:
		 * its client has used the port anew, for one that goes to the
		 * backend itself. */
		if ((p->tcp & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK) ||
		    !is_closed(entry))
			return MET_GO_ON;
		event = SVC_PACKET_RECYCLED;
	} else if (opens && is_closed(entry)) {
		event = SVC_PACKET_RECYCLED;
	} else {
		int left = membership(flow, entry);

		if (entry->seen & SVC_SEEN_RESET)
			left = BACKEND_LEFT;
		if (left == BACKEND_STAYS || (left == SERVICE_LEFT && !is_udp))
			return MET_GO_ON;
		if (!is_udp && !(half && opens))
			return conf->flags & SVC_PACKET_KEEP &&
					       !(entry->seen & SVC_SEEN_RESET) ?
				       MET_GO_ON :
				       MET_RESET;
		event = SVC_PACKET_RESELECTED;
	}
	count_event(event);
	forget_flow(&p->key, flow);
	return MET_NEW;
}

/* Once a second and flow: where its packets go, and whether the other direction's
 * entry is still there; it may have been evicted alone. */
static __always_inline void freshen(struct __sk_buff *skb,
				    const struct packet *p,
				    const struct svc_flow *flow,
				    struct svc_flow *entry, int half, __u64 now)
{
	struct svc_flow_key reverse;

	entry->route = find_route(skb, p, flow);
	entry->route_time = now >> 20;
	other_key(&p->key, flow, &reverse);
	if (!lookup_flow(&reverse, half)) {
		struct svc_flow other = {};

		make_other(&p->key, flow, &reverse, &other);
		other.created_ns = entry->created_ns;
		other.seen_ns = now;
		other.seen = entry->other;
		other.other = entry->seen;
		if (half) {
			mark_recent(&reverse);
			bpf_map_update_elem(&halfopen, &reverse, &other,
					    BPF_NOEXIST);
		} else {
			bpf_map_update_elem(&flows, &reverse, &other,
					    BPF_NOEXIST);
		}
		count_event(SVC_PACKET_HEALED);
	}
}

/* What a packet that came on says of its flow. */
static __always_inline void note(const struct svc_packet_config *conf,
				 const struct packet *p,
				 const struct svc_flow *flow,
				 struct svc_flow *entry, int half, __u64 now)
{
	if (now - entry->seen_ns > SEEN_GRAIN) {
		entry->seen_ns = now;
		/* Traffic that has gone on for so long: it was no end. */
		if (is_idle(entry->reset_ns, now, conf->after_reset_ms * MS))
			entry->reset_ns = 0;
		if (half) {
			struct svc_flow_key reverse;

			other_key(&p->key, flow, &reverse);
			mark_recent(&p->key);
			mark_recent(&reverse);
		}
	}
	if (p->fragment == FRAGMENT_LATER)
		return;
	if (p->tcp & (TCP_FIN | TCP_RST) ||
	    (entry->seen | entry->other) & SVC_SEEN_RST)
		note_end(p, flow, entry, half, now);
	if (half) {
		if (flow->kind & SVC_FLOW_REPLY)
			note_reply(p, flow, entry);
		else
			move_flow(p, flow, entry);
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

/* Translate and send on; at a hook where packets come in. */
static __always_inline int forward(struct __sk_buff *skb, const struct packet *p,
				   const struct svc_flow *flow, __u32 route)
{
	__u8 ttl = p->ttl;

	/* The stack takes one off by itself, and says so when there is none. */
	if (ttl <= 1)
		route = 0;
	/* An answer that the stack has to route would come from an address that
	 * it has no route to: it is translated on its way out to the client. */
	if (!route && flow->kind & SVC_FLOW_REPLY)
		return TC_ACT_UNSPEC;
	if (route)
		ttl--;
	if (translate(skb, p, flow, ttl))
		return TC_ACT_SHOT;
	return deliver(skb, route);
}

static __always_inline int opens_tcp(const struct packet *p)
{
	return (p->tcp & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN &&
	       p->fragment != FRAGMENT_LATER;
}

static __always_inline int is_frontend(const struct packet *p)
{
	struct svc_frontend_key key = {
		.port = p->key.destination_port,
		.protocol = p->key.protocol,
	};

	copy_address4(key.address, p->key.destination);
	return bpf_map_lookup_elem(&frontends, &key) != 0;
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

/* A packet without a flow that a workload sent. */
static __always_inline int unknown(struct __sk_buff *skb,
				   const struct svc_packet_config *conf,
				   const struct packet *p)
{
	int opens = p->key.protocol == IPPROTO_UDP || opens_tcp(p);

	if (p->fragment == FRAGMENT_LATER ||
	    (!opens && !(conf->flags & SVC_PACKET_RESET_UNKNOWN)))
		return TC_ACT_UNSPEC;
	if (!is_frontend(p))
		return opens ? nobodys(skb, p) : TC_ACT_UNSPEC;
	if (!opens) {
		/* A RST is never answered, and a connection that was there
		 * before us is not told from one that was forgotten. */
		if (p->tcp & TCP_RST)
			return TC_ACT_UNSPEC;
		count_drop(SVC_DROP_UNKNOWN_FLOW);
		count_event(SVC_PACKET_RESETS);
		bpf_tail_call(skb, &tails, SVC_TAIL_ANSWER);
		return TC_ACT_SHOT;
	}
	bpf_tail_call(skb, &tails, SVC_TAIL_OPEN);
	return drop(SVC_DROP_NO_FLOW);
}

static __always_inline int reset_client(struct __sk_buff *skb,
					const struct packet *p,
					struct svc_flow *entry, __u64 now)
{
	count_drop(SVC_DROP_BACKEND_GONE);
	/* It is over, and its ports may be used anew. */
	entry->seen |= SVC_SEEN_RST;
	entry->seen_ns = now;
	entry->reset_ns = now;
	if (p->tcp & TCP_RST || p->fragment == FRAGMENT_LATER)
		return TC_ACT_SHOT;
	count_event(SVC_PACKET_RESETS);
	bpf_tail_call(skb, &tails, SVC_TAIL_ANSWER);
	return TC_ACT_SHOT;
}

static __always_inline int handle(struct __sk_buff *skb, enum hook hook)
{
	struct svc_packet_config *conf = packet_settings();
	struct packet p = {};
	struct svc_flow flow, *entry;
	int kind = parse(skb, &p), half = 0;
	__u64 now = 0;

	if (kind == PACKET_OTHER || !conf ||
	    (kind == PACKET_ECHO && hook != FROM_WORKLOAD))
		return TC_ACT_UNSPEC;
	if (kind == PACKET_ERROR) {
		bpf_tail_call(skb, &tails,
			      hook == FROM_WORKLOAD ? SVC_TAIL_ICMP_FROM :
			      hook == TO_WORKLOAD   ? SVC_TAIL_ICMP_TO :
						      SVC_TAIL_ICMP_OUTSIDE);
		return TC_ACT_UNSPEC;
	}
	if (p.fragment != FRAGMENT_NONE && !follow_fragment(conf, &p))
		return TC_ACT_UNSPEC;

	/* A new connection is a service's or nobody's. */
	if (hook == FROM_WORKLOAD &&
	    (kind == PACKET_ECHO || (opens_tcp(&p) && !is_frontend(&p))))
		return nobodys(skb, &p);
	entry = READ_FLOW(flows, &p.key, &flow);
	if (!entry && may_be_recent(&p.key)) {
		half = 1;
		entry = READ_FLOW(halfopen, &p.key, &flow);
	}
	if (!entry)
		return hook == FROM_WORKLOAD ? unknown(skb, conf, &p) :
					       TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	/* Elsewhere only answers are to be translated. */
	if (hook != FROM_WORKLOAD && !(flow.kind & SVC_FLOW_REPLY))
		return TC_ACT_UNSPEC;
	switch (meet(conf, &p, &flow, entry, half, now)) {
	case MET_NEW:
		return hook == FROM_WORKLOAD ? unknown(skb, conf, &p) :
					       TC_ACT_UNSPEC;
	case MET_RESET:
		return reset_client(skb, &p, entry, now);
	case MET_GO_ON:
		break;
	}
	note(conf, &p, &flow, entry, half, now);
	if (hook == TO_WORKLOAD)
		return translate(skb, &p, &flow, p.ttl) ? TC_ACT_SHOT :
							  TC_ACT_UNSPEC;
	if (is_stale(entry, now))
		freshen(skb, &p, &flow, entry, half, now);
	return forward(skb, &p, &flow, entry->route);
}

SEC("tc")
int from_workload(struct __sk_buff *skb)
{
	return handle(skb, FROM_WORKLOAD);
}

SEC("tc")
int to_workload(struct __sk_buff *skb)
{
	return handle(skb, TO_WORKLOAD);
}

SEC("tc")
int from_outside(struct __sk_buff *skb)
{
	return handle(skb, FROM_OUTSIDE);
}

/* Nothing that leaves is to be changed yet. */
SEC("tc")
int to_outside(struct __sk_buff *skb)
{
	return skb->len ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/* What the flow will be; the rest of `s` is as it has to be. */
static __always_inline void describe(struct __sk_buff *skb,
				     const struct packet *p,
				     const struct chosen *chosen, __u64 now,
				     struct packet_scratch *s)
{
	__builtin_memset(&s->flow, 0, sizeof(s->flow));
	__builtin_memset(&s->reply, 0, sizeof(s->reply));
	copy_address(s->flow.source, p->key.source);
	copy_address(s->flow.destination, chosen->pick.address);
	s->flow.source_port = p->key.source_port;
	s->flow.destination_port = chosen->pick.port;
	if (chosen->flags & SVC_FRONTEND_LOCAL)
		s->flow.kind |= SVC_FLOW_LOCAL;
	if (same_address16(p->key.source, chosen->pick.address)) {
		/* It would not take a packet from its own address; the
		 * service's needs no route and belongs to nobody. */
		s->flow.kind |= SVC_FLOW_SELF;
		copy_address(s->flow.source, p->key.destination);
	}
	s->flow.lane = chosen->pick.lane;
	s->flow.service = chosen->service;
	s->flow.backend = chosen->pick.backend;
	s->flow.block = chosen->block;
	s->flow.created_ns = s->reply.created_ns = now;
	s->flow.seen_ns = s->reply.seen_ns = now;
	s->flow.route = find_route(skb, p, &s->flow);
	s->flow.route_time = now >> 20;
}

SEC("tc")
int open_flow(struct __sk_buff *skb)
{
	struct svc_packet_config *conf = packet_settings();
	__u32 zero = 0;
	struct packet_scratch *s = bpf_map_lookup_elem(&packet_scratch, &zero);
	struct packet p = {};
	struct chosen chosen;
	__u64 now = bpf_ktime_get_ns();
	int problem;

	if (parse(skb, &p) != PACKET_FLOW || !conf || !s)
		return TC_ACT_UNSPEC;
	if (now < conf->hold_until_ns) {
		count_event(SVC_PACKET_HELD);
		return TC_ACT_SHOT;
	}
	switch (find_backend(&p, &chosen)) {
	case SVC_FOUND_NOTHING:
		return TC_ACT_UNSPEC;
	case SVC_FOUND_REFUSE:
		if (chosen.drops)
			return TC_ACT_SHOT;
		count_event(SVC_PACKET_REJECTED);
		bpf_tail_call(skb, &tails, SVC_TAIL_ANSWER);
		return TC_ACT_SHOT;
	}
	describe(skb, &p, &chosen, now, s);
	problem = remember_flow(conf, &p, &chosen, now, s);
	if (problem)
		return drop(problem);
	return forward(skb, &p, &s->flow, s->flow.route);
}

SEC("tc")
int answer(struct __sk_buff *skb)
{
	struct packet p = {};
	int kind = parse(skb, &p);

	if ((kind != PACKET_FLOW && kind != PACKET_ECHO) ||
	    p.fragment == FRAGMENT_LATER)
		return TC_ACT_SHOT;
	if (p.key.protocol == IPPROTO_TCP)
		return answer_reset(skb, &p);
	return p.is_v6 ? answer_unreachable6(skb, &p) :
			 answer_unreachable4(skb, &p);
}

/* An error about a packet of a flow, in the other direction than that. */
static __always_inline int translate_error(struct __sk_buff *skb, enum hook hook)
{
	struct packet p = {};
	struct quote q = {};
	struct svc_flow flow, *entry;
	__u32 route = 0;
	__u64 sum = 0;
	__u8 ttl;

	if (parse(skb, &p) != PACKET_ERROR || !parse_quote(skb, &p, &q))
		return TC_ACT_UNSPEC;
	entry = READ_FLOW(flows, &q.key, &flow);
	if (!entry)
		entry = READ_FLOW(halfopen, &q.key, &flow);
	if (!entry || (hook != FROM_WORKLOAD && !(flow.kind & SVC_FLOW_REPLY)))
		return TC_ACT_UNSPEC;
	if (hook != TO_WORKLOAD && p.ttl > 1) {
		struct packet outer = p;

		outer.key.protocol = q.key.protocol;
		route = find_route(skb, &outer, &flow);
	}
	if (!route && hook != TO_WORKLOAD && flow.kind & SVC_FLOW_REPLY)
		return TC_ACT_UNSPEC;
	ttl = route ? p.ttl - 1 : p.ttl;
	if (rewrite_quote(skb, &p, &q, &flow, &sum) ||
	    rewrite_error(skb, &p, &q, &flow, sum, ttl))
		return drop(SVC_DROP_NO_WRITE);
	count_event(SVC_PACKET_ICMP);
	return deliver(skb, route);
}

SEC("tc")
int icmp_from(struct __sk_buff *skb)
{
	return translate_error(skb, FROM_WORKLOAD);
}

SEC("tc")
int icmp_to(struct __sk_buff *skb)
{
	return translate_error(skb, TO_WORKLOAD);
}

SEC("tc")
int icmp_outside(struct __sk_buff *skb)
{
	return translate_error(skb, FROM_OUTSIDE);
}

char _license[] SEC("license") = "Dual BSD/GPL";
