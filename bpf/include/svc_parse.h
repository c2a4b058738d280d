/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a packet is: a flow's tuple and where its headers are.
 *
 * Reads only: a program that writes to a packet directly has every shared
 * packet copied before it runs, and those of local senders are all shared.
 */
#ifndef SVC_PARSE_H
#define SVC_PARSE_H

#include "svc_address.h"
#include "svc_packet_types.h"
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_HEADER 14
#define V4_HEADER 20
#define V6_HEADER 40
#define TCP_HEADER 20
#define UDP_HEADER 8

#define IPPROTO_ICMP 1
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_ICMPV6 58

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

enum packet_kind {
	PACKET_OTHER, /* none of ours: as if we were not there */
	PACKET_FLOW,
	PACKET_ERROR, /* ICMP, about another packet that it quotes */
	PACKET_ECHO, /* ICMP, a request */
};

enum packet_fragment {
	FRAGMENT_NONE,
	FRAGMENT_FIRST,
	FRAGMENT_LATER, /* no ports, no checksum */
};

struct v4_header {
	__u8 version_length;
	__u8 tos;
	__u16 length;
	__u16 id;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__u32 source;
	__u32 destination;
};

struct v6_header {
	__u32 version_flow;
	__u16 length;
	__u8 protocol;
	__u8 ttl;
	__u8 source[16];
	__u8 destination[16];
};

struct tcp_header {
	__u16 source_port;
	__u16 destination_port;
	__u32 sequence;
	__u32 acknowledged;
	__u8 length; /* upper half, in words */
	__u8 flags;
	__u16 window;
	__u16 check;
	__u16 urgent;
};

struct packet {
	struct svc_flow_key key;
	__u32 sequence; /* of TCP, host byte order */
	__u32 acknowledged;
	__u16 l4; /* offset of the transport header */
	__u16 id; /* of IPv4, as it stands there */
	__u16 check; /* the same, of the header */
	__u8 tcp; /* flags */
	__u8 ttl;
	__u8 is_v6;
	__u8 fragment; /* enum packet_fragment */
	__u8 pad[2];
} __attribute__((aligned(8)));

static __always_inline __u32 last_word(const __u8 *address)
{
	return ((const __u32 *)address)[3];
}

static __always_inline void copy_address(__u8 *to, const __u8 *from)
{
	__u64 *target = (__u64 *)to;
	const __u64 *source = (const __u64 *)from;

	target[0] = source[0];
	target[1] = source[1];
}

/* To where 8-byte words have no place. */
static __always_inline void copy_address4(__u8 *to, const __u8 *from)
{
	__u32 *target = (__u32 *)to;
	const __u32 *source = (const __u32 *)from;

	target[0] = source[0];
	target[1] = source[1];
	target[2] = source[2];
	target[3] = source[3];
}

static __always_inline int same_address16(const __u8 *one, const __u8 *other)
{
	const __u64 *a = (const __u64 *)one, *b = (const __u64 *)other;

	return a[0] == b[0] && a[1] == b[1];
}

static __always_inline int parse_ports(struct packet *p,
				       const struct tcp_header *l4)
{
	p->key.source_port = bpf_ntohs(l4->source_port);
	p->key.destination_port = bpf_ntohs(l4->destination_port);
	if (p->key.protocol == IPPROTO_TCP) {
		p->tcp = l4->flags;
		p->sequence = bpf_ntohl(l4->sequence);
		p->acknowledged = bpf_ntohl(l4->acknowledged);
	}
	return PACKET_FLOW;
}

/* The load itself: a compiler that keeps the value also for other uses makes a
 * number of it, and the verifier then does not know what it is. */
static __always_inline void *packet_end(struct __sk_buff *skb)
{
	void *end;

	asm volatile("%0 = *(u32 *)(%1 + %2)"
		     : "=r"(end)
		     : "r"(skb), "i"(__builtin_offsetof(struct __sk_buff,
							data_end)));
	return end;
}

/* `at` is where the header is if the packet is as most are. */
static __always_inline int parse_transport(struct __sk_buff *skb,
					   struct packet *p, void *at)
{
	struct tcp_header copy;
	__u32 length = UDP_HEADER;

	/* A compiler that knows where `at` comes from asks there again, where
	 * the verifier does not see it. */
	asm volatile("" : "+r"(at));
	if (at && at + TCP_HEADER <= packet_end(skb))
		return parse_ports(p, at);
	if (p->key.protocol == IPPROTO_TCP)
		length = TCP_HEADER;
	if (bpf_skb_load_bytes(skb, p->l4, &copy, length))
		return PACKET_OTHER;
	return parse_ports(p, &copy);
}

static __always_inline int is_error4(__u8 type)
{
	/* unreachable, source quench, time exceeded, parameter problem */
	return type == 3 || type == 4 || type == 11 || type == 12;
}

static __always_inline int is_error6(__u8 type)
{
	/* unreachable, too big, time exceeded, parameter problem */
	return type >= 1 && type <= 4;
}

static __always_inline int opens_tcp(const struct packet *p)
{
	return (p->tcp & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN &&
	       p->fragment != FRAGMENT_LATER;
}

/* A hole in the first bytes of a packet: in one piece, or none of ours. */
static __always_inline void *header(struct __sk_buff *skb, __u32 length)
{
	void *data = (void *)(long)skb->data;

	if (data + length > packet_end(skb)) {
		if (bpf_skb_pull_data(skb, length))
			return 0;
		data = (void *)(long)skb->data;
		if (data + length > packet_end(skb))
			return 0;
	}
	return data;
}

static __always_inline int parse4(struct __sk_buff *skb, struct packet *p)
{
	struct v4_header *ip;
	__u8 *data = header(skb, ETH_HEADER + V4_HEADER), type;
	__u16 fragment;

	if (!data || *(__u16 *)(data + 12) != bpf_htons(ETH_P_IP))
		return PACKET_OTHER;
	ip = (struct v4_header *)(data + ETH_HEADER);
	if (ip->version_length < 0x45 || ip->version_length > 0x4f)
		return PACKET_OTHER;
	p->l4 = ETH_HEADER + (ip->version_length & 0xf) * 4;
	p->ttl = ip->ttl;
	p->id = ip->id;
	p->check = ip->check;
	set_v4(p->key.source, ip->source);
	set_v4(p->key.destination, ip->destination);
	p->key.protocol = ip->protocol;
	fragment = bpf_ntohs(ip->fragment);
	if (p->key.protocol == IPPROTO_TCP || p->key.protocol == IPPROTO_UDP) {
		if (fragment & 0x1fff) {
			p->fragment = FRAGMENT_LATER;
			return PACKET_FLOW;
		}
		if (fragment & 0x2000)
			p->fragment = FRAGMENT_FIRST;
		return parse_transport(
			skb, p,
			ip->version_length == 0x45 ?
				data + ETH_HEADER + V4_HEADER :
				0);
	}
	if (p->key.protocol != IPPROTO_ICMP || fragment & 0x3fff ||
	    bpf_skb_load_bytes(skb, p->l4, &type, 1))
		return PACKET_OTHER;
	return is_error4(type) ? PACKET_ERROR :
	       type == 8       ? PACKET_ECHO :
				 PACKET_OTHER;
}

static __always_inline int parse6(struct __sk_buff *skb, struct packet *p)
{
	struct v6_header *ip;
	__u8 *data = header(skb, ETH_HEADER + V6_HEADER), type;

	if (!data || *(__u16 *)(data + 12) != bpf_htons(ETH_P_IPV6))
		return PACKET_OTHER;
	ip = (struct v6_header *)(data + ETH_HEADER);
	if (data[ETH_HEADER] >> 4 != 6)
		return PACKET_OTHER;
	p->is_v6 = 1;
	p->l4 = ETH_HEADER + V6_HEADER;
	p->ttl = ip->ttl;
	__builtin_memcpy(p->key.source, ip->source, 16);
	__builtin_memcpy(p->key.destination, ip->destination, 16);
	p->key.protocol = ip->protocol;
	if (p->key.protocol == IPPROTO_TCP || p->key.protocol == IPPROTO_UDP) {
		/* On an IPv6 wire these belong to nobody, and keys of IPv4
		 * flows and services look like that. */
		if (is_v4(p->key.source) || is_v4(p->key.destination))
			return PACKET_OTHER;
		return parse_transport(skb, p,
				       data + ETH_HEADER + V6_HEADER);
	}
	if (p->key.protocol != IPPROTO_ICMPV6 ||
	    bpf_skb_load_bytes(skb, p->l4, &type, 1))
		return PACKET_OTHER;
	return is_error6(type) ? PACKET_ERROR :
	       type == 128     ? PACKET_ECHO :
				 PACKET_OTHER;
}

/* Fills a packet that is all zeros. */
static __always_inline int parse(struct __sk_buff *skb, struct packet *p)
{
	if (skb->vlan_present)
		return PACKET_OTHER;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return parse4(skb, p);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return parse6(skb, p);
	return PACKET_OTHER;
}

#endif
