/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Fragments of IPv4: those after the first have no ports, and follow it. */
#ifndef SVC_FRAGMENT_H
#define SVC_FRAGMENT_H

#include "svc_conntrack.h"

/* The first fragment's ports, for those that follow. */
static __always_inline void fragment_key(const struct packet *p,
					 struct svc_fragment_key *key)
{
	key->source = last_word(p->key.source);
	key->destination = last_word(p->key.destination);
	key->id = p->id;
	key->protocol = p->key.protocol;
	key->pad = 0;
}

static __always_inline void remember_fragment(const struct packet *p, __u64 now)
{
	struct svc_fragment value = {
		.source_port = p->key.source_port,
		.destination_port = p->key.destination_port,
		.seen_ns = now,
	};
	struct svc_fragment_key key;

	fragment_key(p, &key);
	bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
}

/* 0: its first fragment was not seen. */
static __always_inline int recall_fragment(const struct svc_packet_config *conf,
					   struct packet *p, __u64 now)
{
	struct svc_fragment_key key;
	struct svc_fragment *first;

	fragment_key(p, &key);
	first = bpf_map_lookup_elem(&fragments, &key);
	if (!first || is_idle(first->seen_ns, now, conf->fragment_ms * MS))
		return 0;
	p->key.source_port = first->source_port;
	p->key.destination_port = first->destination_port;
	return 1;
}

/* 0: a later fragment of nothing we know. */
static __always_inline int follow_fragment(const struct svc_packet_config *conf,
					   struct packet *p)
{
	__u64 now = bpf_ktime_get_ns();

	if (p->fragment == FRAGMENT_LATER)
		return recall_fragment(conf, p, now);
	remember_fragment(p, now);
	return 1;
}

#endif
