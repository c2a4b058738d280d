/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Answers that are made here of the packet itself: a RST to TCP, an ICMP error to
 * others. Each is from the address the packet was sent to, and goes back the way
 * that came.
 */
#ifndef SVC_ANSWER_H
#define SVC_ANSWER_H

#include "svc_nat.h"
#include "svc_route.h"

#define ANSWER_TTL 64
#define ENOTSUPP 524
#define ICMP_HEADER 8
#define QUOTE4 (60 + TCP_HEADER) /* the longest header, and of what follows */
#define QUOTE6 (V6_HEADER + TCP_HEADER)

struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 check;
	__u32 rest;
};

static __always_inline __u64 pseudo_sum(const struct packet *p, __u32 length,
					__u8 protocol)
{
	__u64 sum = bpf_htonl(length) + (__u64)bpf_htonl(protocol);

	if (p->is_v6)
		return sum + sum_words(p->key.source, 4) +
		       sum_words(p->key.destination, 4);
	return sum + last_word(p->key.source) + last_word(p->key.destination);
}

/* Addresses the other way round, a new length and TTL; `*old` is the length
 * after the IP header. */
static __always_inline int turn_ip(struct __sk_buff *skb, const struct packet *p,
				   __u16 length, __u16 *old)
{
	if (p->is_v6) {
		struct v6_header ip;

		if (bpf_skb_load_bytes(skb, ETH_HEADER, &ip, V6_HEADER))
			return -1;
		*old = bpf_ntohs(ip.length);
		ip.length = bpf_htons(length);
		ip.ttl = ANSWER_TTL;
		__builtin_memcpy(ip.source, p->key.destination, 16);
		__builtin_memcpy(ip.destination, p->key.source, 16);
		return bpf_skb_store_bytes(skb, ETH_HEADER, &ip, V6_HEADER,
					   BPF_F_RECOMPUTE_CSUM);
	}
	struct v4_header ip;
	__u16 header = p->l4 - ETH_HEADER;
	union {
		__u8 bytes[2];
		__u16 word;
	} from, to;

	if (bpf_skb_load_bytes(skb, ETH_HEADER, &ip, V4_HEADER))
		return -1;
	*old = bpf_ntohs(ip.length) - header;
	from.bytes[0] = ip.ttl;
	from.bytes[1] = to.bytes[1] = ip.protocol;
	to.bytes[0] = ANSWER_TTL;
	length += header;
	ip.check = ~fold16(fold32((__u64)(__u16)~ip.check + (__u16)~ip.length +
				  bpf_htons(length) + (__u16)~from.word +
				  to.word));
	ip.length = bpf_htons(length);
	ip.ttl = ANSWER_TTL;
	ip.source = last_word(p->key.destination);
	ip.destination = last_word(p->key.source);
	return bpf_skb_store_bytes(skb, ETH_HEADER, &ip, V4_HEADER,
				   BPF_F_RECOMPUTE_CSUM);
}

/*
 * The kernel cuts nothing that it knows to have come through a tunnel, nor does it
 * forget that when the tunnel is taken off. What is left over lies beyond the end
 * that the IP header tells, like the padding of a short frame.
 */
static __always_inline int cut(struct __sk_buff *skb, __u32 length)
{
	long failed = bpf_skb_change_tail(skb, length, 0);

	return failed && failed != -ENOTSUPP;
}

/*
 * RFC 793: to a segment with ACK a RST of what it acknowledges, to another one
 * that acknowledges all of it. Lengths are those of the IP header: a frame may be
 * padded. The checksum comes right whether or not there is one yet: the first of
 * the two calls sets a finished one and leaves a pseudo header's sum alone.
 */
static __always_inline int answer_reset(struct __sk_buff *skb, struct packet *p)
{
	struct tcp_header tcp;
	__u16 old_length = 0, check;
	__u32 acknowledge, at = p->l4;
	__u64 sum = 0;

	if (p->tcp & TCP_RST || bpf_skb_load_bytes(skb, at, &tcp, TCP_HEADER) ||
	    cut(skb, at + TCP_HEADER) ||
	    turn_ip(skb, p, TCP_HEADER, &old_length))
		return -1;
	acknowledge = p->sequence + old_length - (tcp.length >> 4) * 4 +
		      !!(p->tcp & TCP_SYN) + !!(p->tcp & TCP_FIN);
	check = tcp.check;
	tcp.source_port = bpf_htons(p->key.destination_port);
	tcp.destination_port = bpf_htons(p->key.source_port);
	tcp.length = (TCP_HEADER / 4) << 4;
	tcp.window = 0;
	tcp.urgent = 0;
	tcp.check = 0;
	if (p->tcp & TCP_ACK) {
		tcp.sequence = bpf_htonl(p->acknowledged);
		tcp.acknowledged = 0;
		tcp.flags = TCP_RST;
	} else {
		tcp.sequence = 0;
		tcp.acknowledged = bpf_htonl(acknowledge);
		tcp.flags = TCP_RST | TCP_ACK;
	}
	sum = pseudo_sum(p, old_length, IPPROTO_TCP) + sum_words(&tcp, 5);
	tcp.check = check;
	if (bpf_skb_store_bytes(skb, at, &tcp, TCP_HEADER, BPF_F_RECOMPUTE_CSUM) ||
	    bpf_l4_csum_replace(skb, at + 16, (__u16)~check,
				fold16(fold32(sum)), 2) ||
	    bpf_l4_csum_replace(skb, at + 16, bpf_htons(old_length),
				bpf_htons(TCP_HEADER), BPF_F_PSEUDO_HDR | 2))
		return -1;
	return 0;
}

/* At least eight bytes are to be quoted (RFC 792). The kernel does not cut a
 * packet before the place of a checksum that is still to be filled in. */
static __always_inline __u32 quoted_transport(const struct packet *p)
{
	return p->key.protocol == IPPROTO_TCP ? TCP_HEADER : 8;
}

/* What an ICMP error says; `rest` is the second word, host byte order. */
struct complaint {
	__u32 rest;
	__u8 type;
	__u8 code;
};

static __always_inline int answer_error4(struct __sk_buff *skb, struct packet *p,
					 const struct complaint *what)
{
	struct {
		struct v4_header ip;
		struct icmp_header icmp;
		__u8 quote[QUOTE4];
	} out = {};
	__u32 quoted = p->l4 - ETH_HEADER + quoted_transport(p);
	__s64 sum;

	/* The upper end first, and apart: the difference above may be below
	 * zero, and a verifier that keeps one range would not learn the lower
	 * end before. */
	if (quoted > QUOTE4)
		return -1;
	asm volatile("" : "+r"(quoted));
	if (quoted < V4_HEADER + 8 ||
	    bpf_skb_load_bytes(skb, ETH_HEADER, out.quote, quoted) ||
	    cut(skb, ETH_HEADER + quoted) ||
	    bpf_skb_adjust_room(skb, V4_HEADER + ICMP_HEADER, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO |
					BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return -1;
	out.ip.version_length = 0x45;
	out.ip.length = bpf_htons(V4_HEADER + ICMP_HEADER + quoted);
	out.ip.ttl = ANSWER_TTL;
	out.ip.protocol = IPPROTO_ICMP;
	out.ip.source = last_word(p->key.destination);
	out.ip.destination = last_word(p->key.source);
	out.ip.check = ~fold16(fold32(sum_words(&out.ip, 5)));
	out.icmp.type = what->type;
	out.icmp.code = what->code;
	out.icmp.rest = bpf_htonl(what->rest);
	/* What was not quoted is zero. */
	sum = bpf_csum_diff(0, 0, (__be32 *)&out.icmp, ICMP_HEADER + QUOTE4, 0);
	if (sum < 0)
		return -1;
	out.icmp.check = ~fold16(sum);
	if (bpf_skb_store_bytes(skb, ETH_HEADER, &out, V4_HEADER + ICMP_HEADER,
				BPF_F_RECOMPUTE_CSUM))
		return -1;
	return 0;
}

static __always_inline int answer_error6(struct __sk_buff *skb, struct packet *p,
					 const struct complaint *what)
{
	struct {
		struct v6_header ip;
		struct icmp_header icmp;
		__u8 quote[QUOTE6];
	} out = {};
	__u32 quoted = V6_HEADER + quoted_transport(p);
	__u16 length = ICMP_HEADER + quoted;
	__s64 sum;

	if (bpf_skb_load_bytes(skb, ETH_HEADER, out.quote, quoted) ||
	    cut(skb, ETH_HEADER + quoted) ||
	    bpf_skb_adjust_room(skb, V6_HEADER + ICMP_HEADER, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO |
					BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return -1;
	out.ip.version_flow = bpf_htonl(0x60000000);
	out.ip.length = bpf_htons(length);
	out.ip.ttl = ANSWER_TTL;
	out.ip.protocol = IPPROTO_ICMPV6;
	__builtin_memcpy(out.ip.source, p->key.destination, 16);
	__builtin_memcpy(out.ip.destination, p->key.source, 16);
	out.icmp.type = what->type;
	out.icmp.code = what->code;
	out.icmp.rest = bpf_htonl(what->rest);
	sum = bpf_csum_diff(0, 0, (__be32 *)&out.icmp, ICMP_HEADER + QUOTE6, 0);
	if (sum < 0)
		return -1;
	out.icmp.check = ~fold16(fold32((__u64)sum +
					pseudo_sum(p, length, IPPROTO_ICMPV6)));
	if (bpf_skb_store_bytes(skb, ETH_HEADER, &out, V6_HEADER + ICMP_HEADER,
				BPF_F_RECOMPUTE_CSUM))
		return -1;
	return 0;
}

#endif
