/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Answers that are made here of the packet itself: a RST to TCP, an ICMP port
 * unreachable to anything else. Each goes out of the interface the packet came in by, from
 * the address it was sent to.
 */
#ifndef SVC_ANSWER_H
#define SVC_ANSWER_H

#include "svc_nat.h"
#include "svc_route.h"

#define ANSWER_TTL 64
#define ICMP_HEADER 8
#define QUOTE4 (60 + 8) /* the longest header, and of what follows */
#define QUOTE6 (V6_HEADER + 8)

struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 check;
	__u32 rest;
};

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
	    bpf_skb_change_tail(skb, at + TCP_HEADER, 0) ||
	    turn_ip(skb, p, TCP_HEADER, &old_length))
		return TC_ACT_SHOT;
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
		return TC_ACT_SHOT;
	return send_back(skb);
}

static __always_inline int answer_unreachable4(struct __sk_buff *skb,
					       struct packet *p)
{
	struct {
		struct v4_header ip;
		struct icmp_header icmp;
		__u8 quote[QUOTE4];
	} out = {};
	__u32 quoted = p->l4 - ETH_HEADER + 8;
	__s64 sum;

	if (quoted < V4_HEADER + 8 || quoted > QUOTE4 ||
	    bpf_skb_load_bytes(skb, ETH_HEADER, out.quote, quoted) ||
	    bpf_skb_change_tail(skb, ETH_HEADER + quoted, 0) ||
	    bpf_skb_adjust_room(skb, V4_HEADER + ICMP_HEADER, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO |
					BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return TC_ACT_SHOT;
	out.ip.version_length = 0x45;
	out.ip.length = bpf_htons(V4_HEADER + ICMP_HEADER + quoted);
	out.ip.ttl = ANSWER_TTL;
	out.ip.protocol = IPPROTO_ICMP;
	out.ip.source = last_word(p->key.destination);
	out.ip.destination = last_word(p->key.source);
	out.ip.check = ~fold16(fold32(sum_words(&out.ip, 5)));
	out.icmp.type = 3;
	out.icmp.code = 3;
	/* What was not quoted is zero. */
	sum = bpf_csum_diff(0, 0, (__be32 *)&out.icmp, ICMP_HEADER + QUOTE4, 0);
	if (sum < 0)
		return TC_ACT_SHOT;
	out.icmp.check = ~fold16(sum);
	if (bpf_skb_store_bytes(skb, ETH_HEADER, &out, V4_HEADER + ICMP_HEADER,
				BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	return send_back(skb);
}

static __always_inline int answer_unreachable6(struct __sk_buff *skb,
					       struct packet *p)
{
	struct {
		struct v6_header ip;
		struct icmp_header icmp;
		__u8 quote[QUOTE6];
	} out = {};
	__u16 length = ICMP_HEADER + QUOTE6;
	__s64 sum;

	if (bpf_skb_load_bytes(skb, ETH_HEADER, out.quote, QUOTE6) ||
	    bpf_skb_change_tail(skb, ETH_HEADER + QUOTE6, 0) ||
	    bpf_skb_adjust_room(skb, V6_HEADER + ICMP_HEADER, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO |
					BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return TC_ACT_SHOT;
	out.ip.version_flow = bpf_htonl(0x60000000);
	out.ip.length = bpf_htons(length);
	out.ip.ttl = ANSWER_TTL;
	out.ip.protocol = IPPROTO_ICMPV6;
	__builtin_memcpy(out.ip.source, p->key.destination, 16);
	__builtin_memcpy(out.ip.destination, p->key.source, 16);
	out.icmp.type = 1;
	out.icmp.code = 4;
	sum = bpf_csum_diff(0, 0, (__be32 *)&out.icmp, ICMP_HEADER + QUOTE6, 0);
	if (sum < 0)
		return TC_ACT_SHOT;
	out.icmp.check = ~fold16(fold32((__u64)sum +
					pseudo_sum(p, length, IPPROTO_ICMPV6)));
	if (bpf_skb_store_bytes(skb, ETH_HEADER, &out, V6_HEADER + ICMP_HEADER,
				BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	return send_back(skb);
}

#endif
