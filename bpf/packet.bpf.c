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
 * From outside, where a node's own interface is (from_outside), the backend of a
 * node port, an external or a load balancer's address is one of this node's, and
 * gets the packet, or one of another node, which gets it through a tunnel as it
 * came, picks one of its own, and answers through the tunnel, or by itself (direct
 * server return). What leaves there (to_outside) are answers of the node's own
 * sockets, and those that the stack has routed.
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
#include "svc_begin.h"
#include "svc_error.h"

SEC("tc")
int from_workload(struct __sk_buff *skb)
{
	return handle_coming(skb, FROM_WORKLOAD, 0);
}

SEC("tc")
int to_workload(struct __sk_buff *skb)
{
	return handle_leaving(skb, TO_WORKLOAD);
}

SEC("tc")
int from_outside(struct __sk_buff *skb)
{
	return handle_coming(skb, FROM_OUTSIDE, 0);
}

SEC("tc")
int to_outside(struct __sk_buff *skb)
{
	return handle_leaving(skb, TO_OUTSIDE);
}

SEC("tc")
int open_flow(struct __sk_buff *skb)
{
	return begin(skb, FROM_WORKLOAD);
}

SEC("tc")
int open_outside(struct __sk_buff *skb)
{
	return begin(skb, FROM_OUTSIDE);
}

SEC("tc")
int open_tunnel(struct __sk_buff *skb)
{
	return begin(skb, FROM_TUNNEL);
}

SEC("tc")
int decapsulate(struct __sk_buff *skb)
{
	struct svc_packet_config *conf = packet_settings();
	struct errand *errand = new_errand(FROM_TUNNEL);
	struct packet p = {};
	__u32 from = 0;

	if (!conf || !errand || parse(skb, &p) != PACKET_FLOW)
		return TC_ACT_UNSPEC;
	switch (unwrap(skb, conf, &p, &from)) {
	case UNWRAPPED_NOT_OURS:
		return TC_ACT_UNSPEC;
	case UNWRAPPED_BAD:
		return TC_ACT_SHOT;
	case UNWRAPPED:
		break;
	}
	errand->node = from;
	return handle_coming(skb, FROM_TUNNEL, from);
}

SEC("tc")
int encapsulate(struct __sk_buff *skb)
{
	struct svc_packet_config *conf = packet_settings();
	__u32 zero = 0, problem;
	struct packet_scratch *s = bpf_map_lookup_elem(&packet_scratch, &zero);
	struct packet p = {};

	if (!conf || !s || parse(skb, &p) == PACKET_OTHER)
		return TC_ACT_SHOT;
	if (s->errand.lower && lower_ttl(skb, &p))
		return drop(SVC_DROP_NO_WRITE);
	if (conf->flags & SVC_PACKET_CLAMP && p.tcp & TCP_SYN &&
	    p.fragment != FRAGMENT_LATER &&
	    clamp_mss(skb, &p, tunnel_room(conf, &p, s->errand.route)))
		return drop(SVC_DROP_NO_WRITE);
	problem = wrap(skb, conf, &p, s->errand.node);
	if (problem)
		return drop(problem);
	return deliver(skb, s->errand.route);
}

/* Makes an answer of the packet. */
static __always_inline int make_answer(struct __sk_buff *skb, struct packet *p)
{
	struct complaint refused = {
		.type = ICMP_UNREACHABLE,
		.code = ICMP_PORT_UNREACHABLE,
	};
	int kind = parse(skb, p);

	if ((kind != PACKET_FLOW && kind != PACKET_ECHO) ||
	    p->fragment == FRAGMENT_LATER)
		return -1;
	if (p->key.protocol == IPPROTO_TCP)
		return answer_reset(skb, p);
	if (p->is_v6) {
		refused.type = ICMP6_UNREACHABLE;
		refused.code = ICMP6_PORT_UNREACHABLE;
		return answer_error6(skb, p, &refused);
	}
	return answer_error4(skb, p, &refused);
}

SEC("tc")
int answer(struct __sk_buff *skb)
{
	struct packet p = {};

	return make_answer(skb, &p) ? TC_ACT_SHOT : send_back(skb, FROM_OUTSIDE);
}

SEC("tc")
int answer_tunnel(struct __sk_buff *skb)
{
	struct svc_packet_config *conf = packet_settings();
	__u32 zero = 0;
	struct packet_scratch *s = bpf_map_lookup_elem(&packet_scratch, &zero);
	struct svc_flow back = { .kind = SVC_FLOW_TUNNEL };
	struct packet p = {};

	if (!conf || !s)
		return TC_ACT_SHOT;
	if (make_answer(skb, &p))
		return drop(SVC_DROP_NO_WRITE);
	s->errand.lower = 0;
	s->errand.route = find_route(skb, conf, &p, &back, s->errand.node,
				     FROM_TUNNEL);
	if (!s->errand.route)
		return drop(SVC_DROP_NO_ROUTE);
	bpf_tail_call(skb, &tails, SVC_TAIL_ENCAPSULATE);
	return TC_ACT_SHOT;
}

/* The packet becomes an ICMP error about itself. */
SEC("tc")
int complain_back(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct packet_scratch *s = bpf_map_lookup_elem(&packet_scratch, &zero);
	struct packet p = {};
	int failed;

	if (!s || parse(skb, &p) != PACKET_FLOW || p.fragment == FRAGMENT_LATER)
		return TC_ACT_SHOT;
	failed = p.is_v6 ? answer_error6(skb, &p, &s->errand.complaint) :
			   answer_error4(skb, &p, &s->errand.complaint);
	return failed ? TC_ACT_SHOT : send_back(skb, s->errand.hook);
}

SEC("tc")
int icmp_from(struct __sk_buff *skb)
{
	return translate_error(skb, FROM_WORKLOAD, 0);
}

SEC("tc")
int icmp_to(struct __sk_buff *skb)
{
	return translate_error(skb, TO_WORKLOAD, 0);
}

SEC("tc")
int icmp_outside(struct __sk_buff *skb)
{
	return translate_error(skb, FROM_OUTSIDE, 0);
}

SEC("tc")
int icmp_leaving(struct __sk_buff *skb)
{
	return translate_error(skb, TO_OUTSIDE, 0);
}

SEC("tc")
int icmp_tunnel(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct packet_scratch *s = bpf_map_lookup_elem(&packet_scratch, &zero);

	return s ? translate_error(skb, FROM_TUNNEL, s->errand.node) :
		   TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
