/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP errors about packets of flows: where they go. */
#ifndef SVC_ERROR_H
#define SVC_ERROR_H

#include "svc_handle.h"
#include "svc_icmp.h"

/* Into the tunnel to a node, as it is by now. */
static __always_inline int error_to_node(struct __sk_buff *skb, __u32 route,
					 __u32 node, __u32 lower, __u32 hook)
{
	struct errand *errand = new_errand(hook);

	if (!errand || !route)
		return drop(SVC_DROP_NO_ROUTE);
	errand->node = node;
	errand->route = route;
	errand->lower = lower;
	count_event(SVC_PACKET_ICMP);
	bpf_tail_call(skb, &tails, SVC_TAIL_ENCAPSULATE);
	return TC_ACT_SHOT;
}

/* Of a flow that is not translated here. */
static __always_inline int pass_error(struct __sk_buff *skb,
				      const struct svc_packet_config *conf,
				      const struct packet *p,
				      const struct svc_flow *flow,
				      const struct svc_flow *entry, __u32 hook,
				      __u32 peer)
{
	__u32 node = entry->node;

	if (!(flow->kind & SVC_FLOW_REPLY)) {
		if (hook != FROM_OUTSIDE || p->ttl <= 1)
			return leave_alone(hook);
		return error_to_node(skb, find_route(skb, conf, p, flow, node, hook),
				     node, 1, hook);
	}
	if (hook != FROM_TUNNEL)
		return TC_ACT_UNSPEC;
	if (node != peer)
		return drop(SVC_DROP_OTHER_NODE);
	count_event(SVC_PACKET_ICMP);
	return forward_to_client(skb, p, find_route(skb, conf, p, flow, node, hook));
}

/* An error about a packet of a flow, in the other direction than that. */
static __always_inline int translate_error(struct __sk_buff *skb, enum hook hook,
					   __u32 peer)
{
	struct svc_packet_config *conf = packet_settings();
	struct packet p = {};
	struct quote q = {};
	struct svc_flow flow, *entry;
	__u32 route = 0, to_node;
	__u64 sum = 0;
	int comes_in = hook != TO_WORKLOAD && hook != TO_OUTSIDE, is_reply;
	__u8 ttl;

	if (!conf || parse(skb, &p) != PACKET_ERROR || !parse_quote(skb, &p, &q))
		return leave_alone(hook);
	entry = READ_FLOW(flows, &q.key, &flow);
	if (!entry)
		entry = READ_FLOW(halfopen, &q.key, &flow);
	if (!entry)
		return leave_alone(hook);
	if (flow.kind & SVC_FLOW_TUNNEL)
		return pass_error(skb, conf, &p, &flow, entry, hook, peer);
	is_reply = flow.kind & SVC_FLOW_REPLY;
	if (!is_reply && !comes_in)
		return TC_ACT_UNSPEC;
	if (hook == FROM_TUNNEL &&
	    (is_reply ||
	     (entry->node != peer && !(flow.kind & SVC_FLOW_TABLE))))
		return drop(SVC_DROP_OTHER_NODE);
	to_node = goes_to_node(&flow, entry->node) ? entry->node : 0;
	if (to_node || (comes_in && p.ttl > 1)) {
		__u8 own = p.key.protocol;

		p.key.protocol = q.key.protocol;
		route = find_route(skb, conf, &p, &flow, to_node, hook);
		p.key.protocol = own;
	}
	/* Whose source is in doubt the host decides on, as on other packets. */
	if (hook == FROM_WORKLOAD && route && !to_node &&
	    !comes_from_there(skb, &p))
		route = 0;
	if (!route && comes_in && is_reply)
		return TC_ACT_UNSPEC;
	ttl = route && comes_in && p.ttl > 1 ? p.ttl - 1 : p.ttl;
	if (rewrite_quote(skb, &p, &q, &flow, &sum) ||
	    rewrite_error(skb, &p, &q, &flow, sum, ttl))
		return drop(SVC_DROP_NO_WRITE);
	if (to_node)
		return error_to_node(skb, route, to_node, 0, hook);
	count_event(SVC_PACKET_ICMP);
	return deliver(skb, route);
}

#endif
