/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where a translated packet goes: straight into another workload, out of an
 * interface, or up the host's stack, which routes what nobody here can.
 */
#ifndef SVC_ROUTE_H
#define SVC_ROUTE_H

#include "svc_packet_maps.h"
#include "svc_parse.h"
#include <linux/pkt_cls.h>

#define AF_INET 2
#define AF_INET6 10
#define PACKET_HOST 0
#define ROUTE_SECONDS 1000 /* of 2^20 ns */
#define INDEX_MASK ((1u << SVC_ROUTE_SHIFT) - 1)

/* `otherwise`: by an interface that is not attached, or leads outside while the
 * host's rules are to be asked. */
static __always_inline __u32 device_route(__u32 ifindex, __u32 otherwise,
					  int ask_host)
{
	struct svc_device *device = bpf_map_lookup_elem(&devices, &ifindex);
	__u32 kind = otherwise;

	if (device && device->flags & SVC_DEVICE_PEER)
		kind = SVC_ROUTE_PEER;
	else if (device && device->flags & SVC_DEVICE_NEIGHBOUR &&
		 !(ask_host && device->role == SVC_ROLE_HOST))
		kind = SVC_ROUTE_NEIGHBOUR;
	return kind == SVC_ROUTE_STACK ? 0 : kind << SVC_ROUTE_SHIFT | ifindex;
}

/* Where a packet comes in or goes out. */
enum hook {
	FROM_WORKLOAD,
	TO_WORKLOAD,
	FROM_OUTSIDE,
	TO_OUTSIDE,
	FROM_TUNNEL, /* from outside, the tunnel taken off */
};

static __always_inline void set_addresses(struct bpf_fib_lookup *fib, int is_v6,
					  const __u8 *source,
					  const __u8 *destination)
{
	if (is_v6) {
		__builtin_memcpy(fib->ipv6_src, source, 16);
		__builtin_memcpy(fib->ipv6_dst, destination, 16);
	} else {
		fib->ipv4_src = last_word(source);
		fib->ipv4_dst = last_word(destination);
	}
}

/*
 * Whether what is sent to a workload's packet's source goes out where that came
 * in. Who goes straight on is never met by the host's own check of sources: so
 * only those do that are beyond doubt, and the host decides on others.
 */
static __always_inline int comes_from_there(struct __sk_buff *skb,
					    const struct packet *p)
{
	struct bpf_fib_lookup fib = {
		.family = p->is_v6 ? AF_INET6 : AF_INET,
		.ifindex = skb->ifindex,
		.l4_protocol = p->key.protocol,
	};
	long found;

	set_addresses(&fib, p->is_v6, p->key.destination, p->key.source);
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	return (found == BPF_FIB_LKUP_RET_SUCCESS ||
		found == BPF_FIB_LKUP_RET_NO_NEIGH) &&
	       fib.ifindex == skb->ifindex;
}

static __always_inline int is_stale(const struct svc_flow *entry, __u64 now)
{
	return (__u32)(now >> 20) - entry->route_time >= ROUTE_SECONDS;
}

static __always_inline int swap_macs(struct __sk_buff *skb)
{
	__u16 macs[6], swapped[6];

	if (bpf_skb_load_bytes(skb, 0, macs, 12))
		return -1;
	swapped[0] = macs[3];
	swapped[1] = macs[4];
	swapped[2] = macs[5];
	swapped[3] = macs[0];
	swapped[4] = macs[1];
	swapped[5] = macs[2];
	return bpf_skb_store_bytes(skb, 0, swapped, 12, 0);
}

/* Out of where it came in, to who sent it; what was leaving, to the host. */
static __always_inline int send_back(struct __sk_buff *skb, __u32 hook)
{
	if (swap_macs(skb))
		return TC_ACT_SHOT;
	return bpf_redirect(skb->ifindex,
			    hook == TO_OUTSIDE ? BPF_F_INGRESS : 0);
}

static __always_inline int deliver(struct __sk_buff *skb, __u32 route)
{
	__u32 ifindex = route & INDEX_MASK;

	switch (route >> SVC_ROUTE_SHIFT) {
	case SVC_ROUTE_PEER:
		/* A frame that was for another MAC is dropped in the peer. */
		if (skb->pkt_type != PACKET_HOST)
			bpf_skb_change_type(skb, PACKET_HOST);
		return bpf_redirect_peer(ifindex, 0);
	case SVC_ROUTE_NEIGHBOUR:
		return bpf_redirect_neigh(ifindex, 0, 0, 0);
	case SVC_ROUTE_BACK:
		return send_back(skb, FROM_WORKLOAD);
	}
	return TC_ACT_UNSPEC;
}

#endif
