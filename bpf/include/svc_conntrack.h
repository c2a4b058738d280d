/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows: finding one, whether it is still one, and what a packet says of it.
 * svcctl/model/conntrack.py is the same as a model: times and states.
 */
#ifndef SVC_CONNTRACK_H
#define SVC_CONNTRACK_H

#include "svc_packet_maps.h"
#include "svc_parse.h"

#define MS 1000000ULL
#define SEEN_GRAIN (16 * MS)
#define RECENT_SEQUENCES (1u << 20)

static __always_inline void count_event(__u32 event)
{
	__u64 *count = bpf_map_lookup_elem(&packet_stats, &event);

	if (count)
		(*count)++;
}

static __always_inline struct svc_packet_config *packet_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&packet_config, &zero);
}

/* Keeps the compiler from holding all factors in registers at once, for which it
 * would need more of the stack than there is. */
#define ONE_BY_ONE(sum) asm volatile("" : "+r"(sum))

static __always_inline __u64 key_sum(const struct svc_flow_key *key)
{
	const __u64 *k = (const __u64 *)key;
	__u64 sum = k[0] * SVC_FLOW_CHECK_0 + k[1] * SVC_FLOW_CHECK_1;

	ONE_BY_ONE(sum);
	sum += k[2] * SVC_FLOW_CHECK_2 + k[3] * SVC_FLOW_CHECK_3;
	ONE_BY_ONE(sum);
	return sum + k[4] * SVC_FLOW_CHECK_4;
}

static __always_inline __u32 flow_check(const struct svc_flow_key *key,
					const struct svc_flow *flow)
{
	const __u64 *f = (const __u64 *)flow;
	__u64 sum = key_sum(key);

	sum += f[0] * SVC_FLOW_CHECK_5 + f[1] * SVC_FLOW_CHECK_6;
	ONE_BY_ONE(sum);
	sum += f[2] * SVC_FLOW_CHECK_7 + f[3] * SVC_FLOW_CHECK_8;
	ONE_BY_ONE(sum);
	sum += f[4] * SVC_FLOW_CHECK_9 + f[5] * SVC_FLOW_CHECK_10;
	ONE_BY_ONE(sum);
	return (sum + flow->backend * SVC_FLOW_CHECK_11) >> 32;
}

/* The bucket of a key, and what stands for the key in it. */
static __always_inline struct svc_filter_bucket *
filter_bucket(const struct svc_flow_key *key, __u32 *mark)
{
	__u64 sum = key_sum(key);
	__u32 bucket = sum >> 48;

	*mark = (__u32)(sum ^ sum >> 32) | 1;
	return bpf_map_lookup_elem(&flow_filter, &bucket);
}

/*
 * Before an entry of `halfopen` is made, and whenever it is used. It moves to the
 * front in time, so that only what is idle is pushed out, and leaves no copy behind,
 * which would take another's place. From the back on, and without ever taking
 * another's mark away before it is elsewhere: others look meanwhile.
 */
static __always_inline void mark_recent(const struct svc_flow_key *key)
{
	__u32 mark;
	struct svc_filter_bucket *bucket = filter_bucket(key, &mark);
	volatile __u32 *recent;
	int at = SVC_FILTER_MARKS - 1; /* whose place it takes: its own, or the last */

	if (!bucket)
		return;
	recent = bucket->recent;
	if (recent[0] == mark || recent[1] == mark || recent[2] == mark)
		return;
	bpf_spin_lock(&bucket->lock);
#pragma unroll
	for (int i = 3; i < SVC_FILTER_MARKS - 1; i++)
		if (recent[i] == mark)
			at = i;
#pragma unroll
	for (int i = SVC_FILTER_MARKS - 1; i; i--)
		if (i <= at)
			recent[i] = recent[i - 1];
	recent[0] = mark;
	bpf_spin_unlock(&bucket->lock);
}

/* 0: there is none in `halfopen`. */
static __always_inline int may_be_recent(const struct svc_flow_key *key)
{
	__u32 mark;
	const struct svc_filter_bucket *bucket = filter_bucket(key, &mark);
	const volatile __u32 *recent;
	int found = 0;

	if (!bucket)
		return 0;
	recent = bucket->recent;
#pragma unroll
	for (int i = 0; i < SVC_FILTER_MARKS; i++)
		found |= recent[i] == mark;
	return found;
}

/* 1 if the copy is whole: the element may be another's by now. */
static __always_inline int copy_flow(const struct svc_flow_key *key,
				     const struct svc_flow *entry,
				     struct svc_flow *flow)
{
	const volatile __u64 *from = (const volatile __u64 *)entry;
	__u64 *to = (__u64 *)flow;

	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
	to[4] = from[4];
	to[5] = from[5];
	to[6] = from[6];
	return flow->check == flow_check(key, flow);
}

/* An element that was given away between look-up and copy is not there. */
#define READ_FLOW(table, key, flow)                                            \
	({                                                                     \
		struct svc_flow *read_ = bpf_map_lookup_elem(&table, key);     \
		if (read_ && !copy_flow(key, read_, flow)) {                   \
			read_ = bpf_map_lookup_elem(&table, key);              \
			if (read_ && !copy_flow(key, read_, flow))             \
				read_ = 0;                                     \
		}                                                              \
		read_;                                                         \
	})

/* The key of the other direction. Who needs one is given the room for it: there is
 * little on the stack. */
static __always_inline void other_key(const struct svc_flow_key *key,
				      const struct svc_flow *flow,
				      struct svc_flow_key *other)
{
	copy_address(other->source, flow->destination);
	copy_address(other->destination, flow->source);
	other->source_port = flow->destination_port;
	other->destination_port = flow->source_port;
	other->protocol = key->protocol;
	other->pad[0] = 0;
	other->pad[1] = 0;
	other->pad[2] = 0;
}

/* The entry of the other direction, from that of this one; `kind` has REPLY the
 * other way round. */
static __always_inline void make_other(const struct svc_flow_key *key,
				       const struct svc_flow *flow,
				       const struct svc_flow_key *other_key,
				       struct svc_flow *other)
{
	copy_address(other->source, key->destination);
	copy_address(other->destination, key->source);
	other->source_port = key->destination_port;
	other->destination_port = key->source_port;
	other->kind = flow->kind ^ SVC_FLOW_REPLY;
	other->lane = flow->lane;
	other->service = flow->service;
	other->backend = flow->backend;
	other->check = flow_check(other_key, other);
}

static __always_inline struct svc_flow *
lookup_flow(const struct svc_flow_key *key, int half)
{
	return half ? bpf_map_lookup_elem(&halfopen, key) :
		      bpf_map_lookup_elem(&flows, key);
}

/* How long a flow may be idle. `seen` and `other`: enum svc_flow_seen. */
static __always_inline __u64 idle_limit(const struct svc_packet_config *conf,
					const struct svc_flow_key *key,
					const struct svc_flow *flow,
					const struct svc_flow *entry, int half)
{
	__u8 seen = entry->seen, other = entry->other;
	__u32 ms;

	if (key->protocol == IPPROTO_UDP)
		ms = conf->udp_ms;
	else if ((seen | other) & SVC_SEEN_RST)
		ms = conf->reset_ms;
	else if (seen & other & SVC_SEEN_FIN ||
		 (flow->kind & SVC_FLOW_ONE_SIDED &&
		  (seen | other) & SVC_SEEN_FIN))
		ms = conf->fins_ms;
	else if (half)
		ms = conf->syn_ms;
	else if (entry->reset_ns)
		ms = conf->after_reset_ms;
	else
		ms = conf->established_ms;
	return ms * MS;
}

/* Another CPU may have noted a later time than ours. */
static __always_inline int is_idle(__u64 seen_ns, __u64 now, __u64 limit)
{
	__s64 age = now - seen_ns;

	return age > 0 && (__u64)age > limit;
}

/* A flow is as old as the later of its directions. */
static __always_inline int has_expired(const struct svc_packet_config *conf,
				       const struct svc_flow_key *key,
				       const struct svc_flow *flow,
				       const struct svc_flow *entry, int half,
				       __u64 now, struct svc_flow_key *reverse)
{
	__u64 limit = idle_limit(conf, key, flow, entry, half);
	struct svc_flow *other;

	if (!is_idle(entry->seen_ns, now, limit))
		return 0;
	other_key(key, flow, reverse);
	other = lookup_flow(reverse, half);
	return !other || is_idle(other->seen_ns, now, limit);
}

/* The backend's FIN may be one that never comes by here. */
static __always_inline int has_ended(const struct svc_flow *flow,
				     const struct svc_flow *entry)
{
	__u8 other = flow->kind & SVC_FLOW_ONE_SIDED ? SVC_SEEN_FIN :
						       entry->other;

	return entry->seen & other & SVC_SEEN_FIN;
}

/* What a SYN may follow as a new connection. */
static __always_inline int is_closed(const struct svc_flow *flow,
				     const struct svc_flow *entry)
{
	return (entry->seen | entry->other) & SVC_SEEN_RST ||
	       has_ended(flow, entry);
}

/* Both directions, wherever they are. */
static __always_inline void forget_flow(const struct svc_flow_key *key,
					const struct svc_flow *flow,
					struct svc_flow_key *reverse)
{
	other_key(key, flow, reverse);
	bpf_map_delete_elem(&flows, key);
	bpf_map_delete_elem(&flows, reverse);
	bpf_map_delete_elem(&halfopen, key);
	bpf_map_delete_elem(&halfopen, reverse);
}

/* FIN and RST go into both directions' entries; whatever follows a RST says that
 * it was not the end. */
static __always_inline void note_end(const struct packet *p,
				     const struct svc_flow *flow,
				     struct svc_flow *entry, int half,
				     __u64 now, struct svc_flow_key *reverse)
{
	struct svc_flow *other;

	other_key(&p->key, flow, reverse);
	other = lookup_flow(reverse, half);
	if (p->tcp & TCP_RST) {
		entry->seen |= SVC_SEEN_RST;
		entry->reset_ns = now;
		if (other) {
			other->other |= SVC_SEEN_RST;
			other->reset_ns = now;
		}
		return;
	}
	entry->seen &= ~SVC_SEEN_RST;
	entry->other &= ~SVC_SEEN_RST;
	if (p->tcp & TCP_FIN)
		entry->seen |= SVC_SEEN_FIN;
	if (other) {
		other->seen &= ~SVC_SEEN_RST;
		other->other &= ~SVC_SEEN_RST;
		if (p->tcp & TCP_FIN)
			other->other |= SVC_SEEN_FIN;
	}
}

/* The backend answers: the client's entry is told, and what it will acknowledge.
 * Of a flow that was picked up any answer will do. */
static __always_inline void note_reply(const struct packet *p,
				       const struct svc_flow *flow,
				       struct svc_flow *entry,
				       struct svc_flow_key *reverse)
{
	struct svc_flow *other;

	if (p->key.protocol == IPPROTO_TCP) {
		if ((p->tcp & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK) &&
		    !(flow->kind & SVC_FLOW_PICKED_UP && p->tcp & TCP_ACK))
			return;
	} else if (entry->seen & SVC_SEEN_REPLY) {
		return;
	}
	other_key(&p->key, flow, reverse);
	other = lookup_flow(reverse, 1);
	entry->seen |= SVC_SEEN_REPLY;
	if (other) {
		other->sequence = p->sequence + !!(p->tcp & TCP_SYN);
		other->other |= SVC_SEEN_REPLY;
	}
}

/*
 * The client has answered the answer: the flow is real. Both entries are copied
 * to `flows` and left where they were, so that a packet of the same flow on
 * another CPU, which has just not found it there, finds it here; they go when
 * others need the room.
 */
static __always_inline void move_flow(const struct packet *p,
				      const struct svc_flow *flow,
				      struct svc_flow *entry,
				      struct svc_flow_key *reverse)
{
	struct svc_flow *other;
	int one_sided = flow->kind & SVC_FLOW_ONE_SIDED;

	if (!one_sided && !(entry->other & SVC_SEEN_REPLY))
		return;
	if (p->key.protocol == IPPROTO_TCP &&
	    ((p->tcp & (TCP_ACK | TCP_SYN | TCP_RST)) != TCP_ACK ||
	     (!one_sided &&
	      p->acknowledged - entry->sequence >= RECENT_SEQUENCES)))
		return;
	other_key(&p->key, flow, reverse);
	other = lookup_flow(reverse, 1);
	if (!other)
		return;
	if (bpf_map_update_elem(&flows, reverse, other, BPF_ANY) ||
	    bpf_map_update_elem(&flows, &p->key, entry, BPF_ANY))
		return;
	other->seen |= SVC_SEEN_MOVED;
	entry->seen |= SVC_SEEN_MOVED;
	count_event(SVC_PACKET_ANSWERED);
}

#endif
