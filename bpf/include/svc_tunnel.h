/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tunnels between nodes: VXLAN (RFC 7348), put on and taken off by the programs
 * themselves. What is inside is of the family of what is around it, untranslated
 * towards the backend's node, and translated on its way back.
 *
 * The port is shared with whoever else uses it: only our network number, from a
 * node, to this node's end of the tunnel, is ours. The inner Ethernet header is
 * all zeros but for its type. RFC 6935 allows IPv6's UDP without a checksum here.
 */
#ifndef SVC_TUNNEL_H
#define SVC_TUNNEL_H

#include "svc_nat.h"
#include "svc_route.h"
#include "svc_where.h"

#define VXLAN_HEADER 8
#define OVERHEAD4 (V4_HEADER + UDP_HEADER + VXLAN_HEADER + ETH_HEADER)
#define OVERHEAD6 (V6_HEADER + UDP_HEADER + VXLAN_HEADER + ETH_HEADER)
#define TUNNEL_TTL 64
#define DONT_FRAGMENT 0x4000
#define VXLAN_FLAGS 0x08000000 /* the network number is there */
#define DEFAULT_MTU 1500
#define FITS_ANYWHERE 576 /* RFC 791 */
#define ECN_CE 3
#define EALREADY 114
#define MSS_KIND 2
#define TCP_OPTIONS 10 /* how many are looked through */

struct tunnel_header {
	__u16 source_port;
	__u16 destination_port;
	__u16 length;
	__u16 check;
	__u32 flags;
	__u32 vni; /* in the upper 24 bits */
	__u8 macs[12];
	__u16 type;
} __attribute__((packed));

static __always_inline __u32 overhead(const struct packet *p)
{
	return p->is_v6 ? OVERHEAD6 : OVERHEAD4;
}

/* This node's end of the tunnels of the packet's family; all zeros: none. */
static __always_inline const __u8 *own_end(const struct svc_packet_config *conf,
					   const struct packet *p)
{
	return p->is_v6 ? conf->address6 : conf->address4;
}

/* Whether a flow's packets of this direction go into a tunnel. */
static __always_inline int goes_to_node(const struct svc_flow *flow, __u32 node)
{
	if (flow->kind & SVC_FLOW_TUNNEL)
		return !(flow->kind & SVC_FLOW_REPLY);
	return node && (flow->kind & (SVC_FLOW_REPLY | SVC_FLOW_DSR)) ==
			       SVC_FLOW_REPLY;
}

/* Where packets go that are handled at this interface, translated, or through a
 * tunnel; 0: up the stack, or nowhere. */
static __always_inline __u32 find_route(struct __sk_buff *skb,
					const struct svc_packet_config *conf,
					const struct packet *p,
					const struct svc_flow *to, __u32 node,
					__u32 hook)
{
	struct bpf_fib_lookup fib = {};
	int into_tunnel = goes_to_node(to, node), ask_host;
	struct svc_node *other;
	long found;

	/* A packet that goes back where it came from has no route that says so. */
	if (to->kind & SVC_FLOW_SELF)
		return device_route(skb->ifindex, SVC_ROUTE_BACK, 0);
	fib.family = p->is_v6 ? AF_INET6 : AF_INET;
	fib.ifindex = skb->ifindex;
	if (into_tunnel) {
		other = bpf_map_lookup_elem(&nodes, &node);
		if (!other)
			return 0;
		fib.l4_protocol = IPPROTO_UDP;
		fib.dport = bpf_htons(conf->tunnel_port);
		if (p->is_v6)
			set_addresses(&fib, 1, conf->address6, other->address6);
		else
			set_addresses(&fib, 0, conf->address4, other->address4);
	} else {
		fib.l4_protocol = p->key.protocol;
		fib.sport = bpf_htons(to->source_port);
		fib.dport = bpf_htons(to->destination_port);
		set_addresses(&fib, p->is_v6, to->source, to->destination);
	}
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found != BPF_FIB_LKUP_RET_SUCCESS &&
	    found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return 0;
	if (into_tunnel)
		return SVC_ROUTE_NEIGHBOUR << SVC_ROUTE_SHIFT | fib.ifindex;
	/* A workload's request that leaves this node for where there are no
	 * workloads may have to be masqueraded, say. */
	ask_host = hook == FROM_WORKLOAD && !(to->kind & SVC_FLOW_REPLY) &&
		   class_of(whose(to->destination)) != SVC_NODE_POD;
	/* The stack would take an answer out of a tunnel for a forgery: it is
	 * from this node's own address. */
	return device_route(fib.ifindex,
			    to->kind & SVC_FLOW_TUNNEL ? SVC_ROUTE_NEIGHBOUR :
							 SVC_ROUTE_STACK,
			    ask_host);
}

/* The longest packet that fits into the tunnel, from its IP header on. */
static __always_inline __u32 tunnel_room(const struct svc_packet_config *conf,
					 const struct packet *p, __u32 route)
{
	__u32 ifindex = route & INDEX_MASK, mtu = conf->tunnel_mtu;

	if (!mtu) {
		struct svc_device *device =
			bpf_map_lookup_elem(&devices, &ifindex);

		mtu = device && device->mtu ? device->mtu : DEFAULT_MTU;
	}
	return mtu > overhead(p) ? mtu - overhead(p) : 0;
}

/* How long the packet is, or each of those that it will be made into. */
static __always_inline __u32 longest_part(struct __sk_buff *skb,
					  const struct packet *p)
{
	__u8 length = (TCP_HEADER / 4) << 4;

	if (!skb->gso_size)
		return skb->len - ETH_HEADER;
	if (p->key.protocol == IPPROTO_UDP)
		return p->l4 - ETH_HEADER + UDP_HEADER + skb->gso_size;
	bpf_skb_load_bytes(skb, p->l4 + 12, &length, 1);
	return p->l4 - ETH_HEADER + (length >> 4) * 4 + skb->gso_size;
}

/* Too long for the interface of a way past the stack, which would cut the packet
 * or tell its sender. */
static __always_inline int is_too_long(struct __sk_buff *skb,
				       const struct packet *p, __u32 route)
{
	__u32 ifindex = route & INDEX_MASK;
	struct svc_device *device;

	if (route >> SVC_ROUTE_SHIFT != SVC_ROUTE_NEIGHBOUR ||
	    skb->len - ETH_HEADER <= FITS_ANYWHERE)
		return 0;
	device = bpf_map_lookup_elem(&devices, &ifindex);
	return device && device->mtu && longest_part(skb, p) > device->mtu;
}

/* Both sides are told to send no more than fits. The option is looked for among
 * the first ones; a connection without it goes by what is answered to the first
 * packet that is too big. */
static __always_inline int clamp_mss(struct __sk_buff *skb,
				     const struct packet *p, __u32 room)
{
	__u16 most = room - TCP_HEADER - (p->is_v6 ? V6_HEADER : V4_HEADER);
	__u32 at = p->l4 + TCP_HEADER, end;
	__u8 length, option[4];
	__u16 has, wanted = bpf_htons(most), from, to;

	if (bpf_skb_load_bytes(skb, p->l4 + 12, &length, 1))
		return 0;
	end = p->l4 + (length >> 4) * 4;
#pragma clang loop unroll(disable)
	for (int i = 0; i < TCP_OPTIONS && at + 4 <= end; i++) {
		if (bpf_skb_load_bytes(skb, at, option, 4) || !option[0])
			return 0;
		if (option[0] == 1) {
			at++;
			continue;
		}
		if (option[0] == MSS_KIND && option[1] == 4) {
			has = option[2] << 8 | option[3];
			if (has <= most)
				return 0;
			from = bpf_htons(has);
			to = wanted;
			/* The checksum is of 16-bit words: at an odd byte the
			 * value's halves are in two, and the other way round. */
			if ((at - p->l4) & 1) {
				from = __builtin_bswap16(from);
				to = __builtin_bswap16(to);
			}
			if (bpf_l4_csum_replace(skb, p->l4 + 16, from, to, 2))
				return -1;
			return bpf_skb_store_bytes(skb, at + 2, &wanted, 2, 0);
		}
		if (option[1] < 2)
			return 0;
		at += option[1];
	}
	return 0;
}

static __always_inline void fill_tunnel(struct tunnel_header *tunnel,
					const struct svc_packet_config *conf,
					const struct packet *p, __u32 length)
{
	/* Spreads flows over the ways there are between two nodes. */
	tunnel->source_port = bpf_htons(
		(p->key.source_port ^ p->key.destination_port) | 0xc000);
	tunnel->destination_port = bpf_htons(conf->tunnel_port);
	tunnel->length = bpf_htons(length);
	tunnel->flags = bpf_htonl(VXLAN_FLAGS);
	tunnel->vni = bpf_htonl(SVC_TUNNEL_VNI << 8);
	tunnel->type = bpf_htons(p->is_v6 ? ETH_P_IPV6 : ETH_P_IP);
}

/* The kernel is told what is put on, so that it can cut it up later. An answer to
 * what came through a tunnel needs no cutting, and counts as tunnelled already. */
static __always_inline int make_room(struct __sk_buff *skb, __u32 length,
				     __u64 outer)
{
	long failed = bpf_skb_adjust_room(
		skb, length, BPF_ADJ_ROOM_MAC,
		outer | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
			BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HEADER) |
			BPF_F_ADJ_ROOM_FIXED_GSO);

	if (failed == -EALREADY && !skb->gso_size)
		failed = bpf_skb_adjust_room(skb, length, BPF_ADJ_ROOM_MAC,
					     BPF_F_ADJ_ROOM_FIXED_GSO);
	return failed != 0;
}

/* `out` is longer than its parts, which makes its words lie on words. */
static __always_inline int wrap4(struct __sk_buff *skb,
				 const struct svc_packet_config *conf,
				 const struct packet *p,
				 const struct svc_node *to)
{
	struct {
		struct v4_header ip;
		struct tunnel_header tunnel;
	} __attribute__((packed, aligned(4))) out = {};
	__u32 length = skb->len - ETH_HEADER + OVERHEAD4;

	if (bpf_skb_load_bytes(skb, ETH_HEADER + 1, &out.ip.tos, 1) ||
	    make_room(skb, OVERHEAD4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4))
		return -1;
	out.ip.version_length = 0x45;
	out.ip.length = bpf_htons(length);
	out.ip.fragment = bpf_htons(DONT_FRAGMENT);
	out.ip.ttl = TUNNEL_TTL;
	out.ip.protocol = IPPROTO_UDP;
	out.ip.source = last_word(conf->address4);
	out.ip.destination = last_word(to->address4);
	out.ip.check = ~fold16(fold32(sum_words(&out.ip, 5)));
	fill_tunnel(&out.tunnel, conf, p, length - V4_HEADER);
	return bpf_skb_store_bytes(skb, ETH_HEADER, &out, OVERHEAD4, 0);
}

static __always_inline int wrap6(struct __sk_buff *skb,
				 const struct svc_packet_config *conf,
				 const struct packet *p,
				 const struct svc_node *to)
{
	struct {
		struct v6_header ip;
		struct tunnel_header tunnel;
	} __attribute__((packed, aligned(4))) out = {};
	__u32 length = skb->len - ETH_HEADER + OVERHEAD6 - V6_HEADER, first = 0;

	/* The traffic class, without the flow label. */
	if (bpf_skb_load_bytes(skb, ETH_HEADER, &first, 4) ||
	    make_room(skb, OVERHEAD6, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6))
		return -1;
	out.ip.version_flow = first & bpf_htonl(0xfff00000);
	out.ip.length = bpf_htons(length);
	out.ip.ttl = TUNNEL_TTL;
	out.ip.protocol = IPPROTO_UDP;
	__builtin_memcpy(out.ip.source, conf->address6, 16);
	__builtin_memcpy(out.ip.destination, to->address6, 16);
	fill_tunnel(&out.tunnel, conf, p, length);
	return bpf_skb_store_bytes(skb, ETH_HEADER, &out, OVERHEAD6, 0);
}

static __always_inline int is_zero16(const __u8 *address)
{
	const __u64 *word = (const __u64 *)address;

	return !word[0] && !word[1];
}

/* 0, or enum svc_drop_reason. */
static __always_inline __u32 wrap(struct __sk_buff *skb,
				  const struct svc_packet_config *conf,
				  const struct packet *p, __u32 node)
{
	struct svc_node *to = bpf_map_lookup_elem(&nodes, &node);
	int failed;

	if (!to || is_zero16(p->is_v6 ? to->address6 : to->address4) ||
	    is_zero16(p->is_v6 ? conf->address6 : conf->address4))
		return SVC_DROP_NO_NODE;
	failed = p->is_v6 ? wrap6(skb, conf, p, to) : wrap4(skb, conf, p, to);
	return failed ? SVC_DROP_NO_WRITE : 0;
}

/* The outer header's ECN bits (RFC 3168). */
static __always_inline __u8 congestion_of(struct __sk_buff *skb,
					  const struct packet *p)
{
	__u8 first[2] = {};

	bpf_skb_load_bytes(skb, ETH_HEADER, first, 2);
	return (p->is_v6 ? first[1] >> 4 : first[1]) & ECN_CE;
}

enum unwrapped {
	UNWRAPPED_NOT_OURS,
	UNWRAPPED_BAD,
	UNWRAPPED,
};

/* Takes the tunnel off; `*from` is the node that put it on. */
static __always_inline enum unwrapped
unwrap(struct __sk_buff *skb, const struct svc_packet_config *conf,
       const struct packet *p, __u32 *from)
{
	const __u8 *own = own_end(conf, p);
	struct tunnel_header tunnel;
	__u8 congestion = congestion_of(skb, p);
	__u32 sender;
	__s32 length = p->l4 - ETH_HEADER + sizeof(tunnel);

	if (is_zero16(own) ||
	    bpf_skb_load_bytes(skb, p->l4, &tunnel, sizeof(tunnel)) ||
	    tunnel.flags != bpf_htonl(VXLAN_FLAGS) ||
	    bpf_ntohl(tunnel.vni) >> 8 != SVC_TUNNEL_VNI ||
	    ((const __u64 *)own)[0] != ((const __u64 *)p->key.destination)[0] ||
	    ((const __u64 *)own)[1] != ((const __u64 *)p->key.destination)[1])
		return UNWRAPPED_NOT_OURS;
	sender = whose(p->key.source);
	*from = node_of(sender);
	/* A checksum was put in by somebody else: ours have none. */
	if (class_of(sender) != SVC_NODE_PEER || !*from || tunnel.check) {
		count_drop(SVC_DROP_NOT_A_PEER);
		return UNWRAPPED_BAD;
	}
	if (p->fragment != FRAGMENT_NONE ||
	    tunnel.type != bpf_htons(p->is_v6 ? ETH_P_IPV6 : ETH_P_IP) ||
	    bpf_skb_adjust_room(skb, -length, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO)) {
		count_drop(SVC_DROP_NOT_A_FLOW);
		return UNWRAPPED_BAD;
	}
	/* RFC 6040: who is not told by a mark is told by the loss. */
	if (congestion == ECN_CE && !bpf_skb_ecn_set_ce(skb)) {
		count_drop(SVC_DROP_CONGESTION);
		return UNWRAPPED_BAD;
	}
	return UNWRAPPED;
}

/* One hop less; the packet has one to spare. */
static __always_inline int lower_ttl(struct __sk_buff *skb,
				     const struct packet *p)
{
	union {
		__u8 bytes[2];
		__u16 word;
	} from = { .bytes = { p->ttl, p->key.protocol } },
	  to = { .bytes = { p->ttl - 1, p->key.protocol } };
	__u16 check;

	if (p->is_v6)
		return bpf_skb_store_bytes(skb, HOP_LIMIT_AT, to.bytes, 1,
					   BPF_F_RECOMPUTE_CSUM);
	/* RFC 1624, equation 3. */
	check = ~fold16(fold32((__u64)(__u16)~p->check + (__u16)~from.word +
			       to.word));
	return bpf_skb_store_bytes(skb, TTL_AT, to.bytes, 2, 0) ||
	       bpf_skb_store_bytes(skb, TTL_AT + 2, &check, 2, 0);
}

#endif
