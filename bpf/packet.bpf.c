// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The packet path: packets of services that never passed a socket call here.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include "svc_packet_maps.h"
#include "svc_select.h"

int open_flow(struct __sk_buff *skb);
int answer(struct __sk_buff *skb);
int icmp_from(struct __sk_buff *skb);
int icmp_to(struct __sk_buff *skb);
int icmp_outside(struct __sk_buff *skb);

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

#define STUB(name)                                                             \
	SEC("tc")                                                              \
	int name(struct __sk_buff *skb)                                        \
	{                                                                      \
		return skb->len ? TC_ACT_UNSPEC : TC_ACT_UNSPEC;               \
	}

STUB(open_flow)
STUB(answer)
STUB(icmp_from)
STUB(icmp_to)
STUB(icmp_outside)
STUB(from_workload)
STUB(to_workload)
STUB(from_outside)
STUB(to_outside)

char _license[] SEC("license") = "Dual BSD/GPL";
