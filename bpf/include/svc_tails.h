/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Programs that others jump to. What is rare is a program of its own, so that what
 * is not stays small. */
#ifndef SVC_TAILS_H
#define SVC_TAILS_H

#include "svc_packet_maps.h"
#include <linux/bpf.h>

int open_flow(struct __sk_buff *skb);
int answer(struct __sk_buff *skb);
int icmp_from(struct __sk_buff *skb);
int icmp_to(struct __sk_buff *skb);
int icmp_outside(struct __sk_buff *skb);
int open_outside(struct __sk_buff *skb);
int decapsulate(struct __sk_buff *skb);
int open_tunnel(struct __sk_buff *skb);
int answer_tunnel(struct __sk_buff *skb);
int icmp_tunnel(struct __sk_buff *skb);
int complain_back(struct __sk_buff *skb);
int icmp_leaving(struct __sk_buff *skb);
int encapsulate(struct __sk_buff *skb);

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
		[SVC_TAIL_OPEN_OUTSIDE] = (void *)&open_outside,
		[SVC_TAIL_DECAPSULATE] = (void *)&decapsulate,
		[SVC_TAIL_OPEN_TUNNEL] = (void *)&open_tunnel,
		[SVC_TAIL_ANSWER_TUNNEL] = (void *)&answer_tunnel,
		[SVC_TAIL_ICMP_TUNNEL] = (void *)&icmp_tunnel,
		[SVC_TAIL_COMPLAIN] = (void *)&complain_back,
		[SVC_TAIL_ICMP_LEAVING] = (void *)&icmp_leaving,
		[SVC_TAIL_ENCAPSULATE] = (void *)&encapsulate,
	},
};

#endif
