/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rewriting a packet as its flow says, checksums included.
 *
 * The transport checksum is changed by two calls: addresses with the flag that
 * says they are of the pseudo header, ports without. A packet whose checksum is
 * still to be filled in holds the sum of the pseudo header only.
 */
#ifndef SVC_NAT_H
#define SVC_NAT_H

#include "svc_parse.h"

#define TTL_AT (ETH_HEADER + 8) /* and protocol, checksum, addresses */
#define HOP_LIMIT_AT (ETH_HEADER + 7) /* and addresses */

/* Sum of 16-bit words, to be folded: the words of `to` less those of `from`. */
static __always_inline __u64 sum_change4(__u32 from, __u32 to)
{
	return (__u64)to + (__u32)~from;
}

static __always_inline __u64 sum_change16(const __u8 *from, const __u8 *to)
{
	const __u32 *f = (const __u32 *)from, *t = (const __u32 *)to;

	return sum_change4(f[0], t[0]) + sum_change4(f[1], t[1]) +
	       sum_change4(f[2], t[2]) + sum_change4(f[3], t[3]);
}

/* Sum of the 32-bit words of `from`. */
static __always_inline __u64 sum_words(const void *from, int words)
{
	const __u32 *word = from;
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

/* To 32 bits, which keeps the sum of 16-bit words. */
static __always_inline __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

static __always_inline __u16 fold16(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline __u32 ports_word(__u16 source, __u16 destination)
{
	union {
		__u16 ports[2];
		__u32 word;
	} both = { .ports = { bpf_htons(source), bpf_htons(destination) } };

	return both.word;
}

/* 0, or a negative error: then nothing, or the checksum alone was changed. */
static __always_inline int rewrite_transport(struct __sk_buff *skb,
					     const struct packet *p,
					     const struct svc_flow *to,
					     __u32 addresses)
{
	__u32 from_ports = ports_word(p->key.source_port,
				      p->key.destination_port);
	__u32 to_ports = ports_word(to->source_port, to->destination_port);
	__u32 at = p->l4 + 16;
	__u64 flags = 0;

	if (p->key.protocol == IPPROTO_UDP) {
		at = p->l4 + 6;
		flags = BPF_F_MARK_MANGLED_0;
	}
	if (bpf_l4_csum_replace(skb, at, 0, addresses,
				flags | BPF_F_PSEUDO_HDR))
		return -1;
	if (from_ports == to_ports)
		return 0;
	if (bpf_l4_csum_replace(skb, at, from_ports, to_ports, flags | 4))
		return -1;
	return bpf_skb_store_bytes(skb, p->l4, &to_ports, 4, 0);
}

static __always_inline int rewrite4(struct __sk_buff *skb,
				    const struct packet *p,
				    const struct svc_flow *to, __u8 ttl)
{
	struct {
		__u8 ttl;
		__u8 protocol;
		__u16 check;
		__u32 source;
		__u32 destination;
	} ip = {
		.ttl = ttl,
		.protocol = p->key.protocol,
		.source = last_word(to->source),
		.destination = last_word(to->destination),
	};
	union {
		__u8 bytes[2];
		__u16 word;
	} ttl_from = { .bytes = { p->ttl, 0 } }, ttl_to = { .bytes = { ttl, 0 } };
	__u32 addresses =
		fold32(sum_change4(last_word(p->key.source), ip.source) +
		       sum_change4(last_word(p->key.destination),
				   ip.destination));

	/* RFC 1624, equation 3. */
	ip.check = ~fold16(fold32((__u64)(__u16)~p->check + addresses +
				  (__u16)~ttl_from.word + ttl_to.word));
	if (p->fragment != FRAGMENT_LATER &&
	    rewrite_transport(skb, p, to, addresses))
		return -1;
	return bpf_skb_store_bytes(skb, TTL_AT, &ip, 12, 0);
}

/* The header has no checksum of its own, so a sum over the whole packet, which
 * an interface may have given, changes with it. */
static __always_inline int rewrite6(struct __sk_buff *skb,
				    const struct packet *p,
				    const struct svc_flow *to, __u8 ttl)
{
	__u64 ip[5];
	__u8 *bytes = (__u8 *)ip;
	__u32 addresses =
		fold32(sum_change16(p->key.source, to->source) +
		       sum_change16(p->key.destination, to->destination));

	if (p->fragment != FRAGMENT_LATER &&
	    rewrite_transport(skb, p, to, addresses))
		return -1;
	ip[0] = 0;
	bytes[7] = ttl;
	copy_address(bytes + 8, to->source);
	copy_address(bytes + 24, to->destination);
	return bpf_skb_store_bytes(skb, HOP_LIMIT_AT, bytes + 7, 33,
				   BPF_F_RECOMPUTE_CSUM);
}

/* 0, or a negative error: the packet is spoilt. */
static __always_inline int rewrite(struct __sk_buff *skb,
				   const struct packet *p,
				   const struct svc_flow *to, __u8 ttl)
{
	return p->is_v6 ? rewrite6(skb, p, to, ttl) : rewrite4(skb, p, to, ttl);
}

#endif
