/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about packets of flows. Who gets one must find in it the packet it
 * sent: the quoted packet is translated back, and the addresses around it like
 * those of the flow's other direction, which is where an error travels.
 *
 * A router's own address stays: it says where the trouble is.
 */
#ifndef SVC_ICMP_H
#define SVC_ICMP_H

#include "svc_answer.h"
#include "svc_conntrack.h"

/* The quoted packet. Its transport header may end after eight bytes. */
struct quote {
	struct svc_flow_key key; /* of packets in the error's direction */
	__u32 at; /* of its IP header */
	__u32 l4;
	__u16 transport_check;
	__u8 has_check; /* the transport's is there, and not that of no checksum */
};

static __always_inline __u32 check_offset(__u8 protocol)
{
	return protocol == IPPROTO_UDP ? 6 : 16;
}

/* The key is the quoted packet's turned round. */
static __always_inline int parse_quote(struct __sk_buff *skb,
				       const struct packet *p, struct quote *q)
{
	__u16 ports[2], length;
	/* What follows the end that the IP header tells is no part of it. */
	__u32 end = ETH_HEADER;

	q->at = p->l4 + ICMP_HEADER;
	if (bpf_skb_load_bytes(skb, ETH_HEADER + (p->is_v6 ? 4 : 2), &length, 2))
		return 0;
	end += bpf_ntohs(length) + (p->is_v6 ? V6_HEADER : 0);
	if (p->is_v6) {
		struct v6_header ip;

		if (bpf_skb_load_bytes(skb, q->at, &ip, V6_HEADER))
			return 0;
		q->key.protocol = ip.protocol;
		__builtin_memcpy(q->key.source, ip.destination, 16);
		__builtin_memcpy(q->key.destination, ip.source, 16);
		if (is_v4(q->key.source) || is_v4(q->key.destination))
			return 0;
		q->l4 = q->at + V6_HEADER;
	} else {
		struct v4_header ip;

		if (bpf_skb_load_bytes(skb, q->at, &ip, V4_HEADER))
			return 0;
		if (ip.version_length < 0x45 || ip.version_length > 0x4f ||
		    bpf_ntohs(ip.fragment) & 0x1fff)
			return 0;
		q->key.protocol = ip.protocol;
		set_v4(q->key.source, ip.destination);
		set_v4(q->key.destination, ip.source);
		q->l4 = q->at + (ip.version_length & 0xf) * 4;
	}
	if ((q->key.protocol != IPPROTO_TCP && q->key.protocol != IPPROTO_UDP) ||
	    q->l4 + 8 > end || bpf_skb_load_bytes(skb, q->l4, ports, 4))
		return 0;
	q->key.source_port = bpf_ntohs(ports[1]);
	q->key.destination_port = bpf_ntohs(ports[0]);
	if (q->l4 + check_offset(q->key.protocol) + 2 <= end &&
	    !bpf_skb_load_bytes(skb, q->l4 + check_offset(q->key.protocol),
				&q->transport_check, 2))
		q->has_check = q->transport_check ||
			       q->key.protocol == IPPROTO_TCP;
	return 1;
}

/* A finished checksum after a change: ~(~old + change). */
static __always_inline __u16 changed_check(__u16 check, __u64 change)
{
	return ~fold16(fold32((__u16)~check + change));
}

/*
 * Rewrites the quoted packet; `*sum` is by how much that changes the sum of the
 * ICMP message. The quoted header's own checksum keeps its sum over IPv4
 * addresses.
 */
static __always_inline int rewrite_quote(struct __sk_buff *skb,
					 const struct packet *p,
					 const struct quote *q,
					 const struct svc_flow *to, __u64 *sum)
{
	__u32 old_ports = ports_word(q->key.destination_port,
				     q->key.source_port);
	__u32 ports = ports_word(to->destination_port, to->source_port);
	__u64 addresses, change = sum_change4(old_ports, ports);
	__u16 check;

	if (p->is_v6) {
		__u64 both[4];

		addresses = sum_change16(q->key.source, to->source) +
			    sum_change16(q->key.destination, to->destination);
		copy_address((__u8 *)both, to->destination);
		copy_address((__u8 *)both + 16, to->source);
		if (bpf_skb_store_bytes(skb, q->at + 8, both, 32, 0))
			return -1;
		*sum = change + addresses;
	} else {
		struct {
			__u32 source;
			__u32 destination;
		} both = { last_word(to->destination), last_word(to->source) };

		addresses = sum_change4(last_word(q->key.source),
					both.destination) +
			    sum_change4(last_word(q->key.destination),
					both.source);
		if (bpf_skb_load_bytes(skb, q->at + 10, &check, 2))
			return -1;
		check = changed_check(check, addresses);
		if (bpf_skb_store_bytes(skb, q->at + 10, &check, 2, 0) ||
		    bpf_skb_store_bytes(skb, q->at + 12, &both, 8, 0))
			return -1;
		*sum = change;
	}
	if (bpf_skb_store_bytes(skb, q->l4, &ports, 4, 0))
		return -1;
	if (!q->has_check)
		return 0;
	check = changed_check(q->transport_check,
			      (__u64)fold32(change) + fold32(addresses));
	*sum += (__u64)(__u16)~q->transport_check + check;
	return bpf_skb_store_bytes(skb, q->l4 + check_offset(q->key.protocol),
				   &check, 2, 0);
}

/* The addresses around it, and the checksum of the message. */
static __always_inline int rewrite_error(struct __sk_buff *skb,
					 const struct packet *p,
					 const struct quote *q,
					 const struct svc_flow *to, __u64 sum,
					 __u8 ttl)
{
	struct packet outer = *p;
	struct svc_flow target = {};
	__u64 addresses;

	copy_address(target.source, p->key.source);
	copy_address(target.destination, p->key.destination);
	if (same_address16(p->key.source, q->key.source))
		copy_address(target.source, to->source);
	if (same_address16(p->key.destination, q->key.destination))
		copy_address(target.destination, to->destination);
	if (bpf_l4_csum_replace(skb, p->l4 + 2, 0, fold32(sum), 0))
		return -1;
	if (p->is_v6) {
		addresses = sum_change16(p->key.source, target.source) +
			    sum_change16(p->key.destination,
					 target.destination);
		if (bpf_l4_csum_replace(skb, p->l4 + 2, 0, fold32(addresses),
					BPF_F_PSEUDO_HDR))
			return -1;
	}
	/* Nothing more to do to what follows the IP header. */
	outer.fragment = FRAGMENT_LATER;
	return rewrite(skb, &outer, &target, ttl);
}

#endif
