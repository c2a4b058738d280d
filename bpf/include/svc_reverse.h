/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a socket remembers: which frontend each backend it talks to stands for.
 *
 * The first entry is the connection's, written by connect; sendmsg uses the
 * others, and the first as well while the socket is not connected. One frontend
 * has one entry. Two frontends may have a backend in common: who receives is
 * told the one that was used last, and the peer's name is the connection's.
 */
#ifndef SVC_REVERSE_H
#define SVC_REVERSE_H

#include "svc_select.h"

#define CONNECTION 0

/* Whom a socket asked for, what it is doing, and what came of it. */
struct svc_request {
	struct svc_frontend_key key;
	__u32 service; /* of the frontend, once it is known */
	__u64 cookie; /* of the socket */
	struct svc_pick pick;
	struct svc_service_stats *stats; /* of the lane */
	enum svc_chosen_by chosen_by;
	int is_udp;
	int is_connect;
	int is_connected; /* sendmsg on a socket that has a peer */
};

static __always_inline __u32 *reverse_count(__u64 cookie)
{
	__u32 slot = cookie % SVC_REVERSE_COUNTS;

	return bpf_map_lookup_elem(&reverse_counts, &slot);
}

/* What a socket remembers, if anything. */
static __always_inline struct svc_reverse *find_reverse(const __u64 *cookie)
{
	const volatile __u32 *count = reverse_count(*cookie);

	if (!count || !*count)
		return 0;
	return bpf_map_lookup_elem(&reverse, cookie);
}

/* Counted before it is there, and until it has gone. */
static __always_inline int add_reverse(const __u64 *cookie,
				       const struct svc_reverse *fresh)
{
	__u32 *count = reverse_count(*cookie);

	if (!count)
		return 0;
	__sync_fetch_and_add(count, 1);
	if (!bpf_map_update_elem(&reverse, cookie, fresh, BPF_NOEXIST))
		return 1;
	__sync_fetch_and_add(count, -1);
	return 0;
}

/* Deleting takes a lock even if there is nothing: so it is looked for first. */
static __always_inline void drop_reverse(const __u64 *cookie)
{
	__u32 *count;

	if (!find_reverse(cookie) || bpf_map_delete_elem(&reverse, cookie))
		return;
	count = reverse_count(*cookie);
	if (count)
		__sync_fetch_and_add(count, -1);
}

/* Both 8-byte aligned: first in a struct that is, or at a multiple of 8 in it. */
static __always_inline int same_address(const void *one, const void *other)
{
	const __u64 *first = one, *second = other;

	return first[0] == second[0] && first[1] == second[1];
}

/* The order in which who receives looks: the connection's entry last. */
static __always_inline int nth(int number)
{
	return (number + 1) % SVC_REVERSE_ENTRIES;
}

static __always_inline int is_frontend(const struct svc_reverse_entry *entry,
				       const struct svc_request *req)
{
	return entry->service == req->service &&
	       entry->frontend_port == req->key.port &&
	       same_address(entry->frontend_address, req->key.address);
}

static __always_inline int is_backend(const struct svc_reverse_entry *entry,
				      const void *address, __u16 port)
{
	return entry->service && entry->backend_port == port &&
	       same_address(entry->backend_address, address);
}

/* Writes nothing that is there already. */
static __always_inline void fill_entry(struct svc_reverse_entry *entry,
				       const struct svc_request *req)
{
	if (is_frontend(entry, req) && entry->backend == req->pick.backend &&
	    entry->lane == req->pick.lane)
		return;
	__builtin_memcpy(entry->backend_address, req->pick.address, 16);
	__builtin_memcpy(entry->frontend_address, req->key.address, 16);
	entry->backend_port = req->pick.port;
	entry->frontend_port = req->key.port;
	entry->service = req->service;
	entry->lane = req->pick.lane;
	entry->backend = req->pick.backend;
}

/* Word by word: there is no room for a copy on the stack. */
static __always_inline void swap_entries(struct svc_reverse_entry *one,
					 struct svc_reverse_entry *other)
{
	__u64 *first = (__u64 *)one, *second = (__u64 *)other;

	for (unsigned int i = 0; i < sizeof(*one) / sizeof(*first); i++) {
		__u64 kept = first[i];

		first[i] = second[i];
		second[i] = kept;
	}
}

/* Makes an entry the one that counts among those with the same backend, by
 * changing places. The lock is held. */
static __always_inline void used_last(struct svc_reverse *reverse_of, int at)
{
	struct svc_reverse_entry *mine =
		&reverse_of->entries[at % SVC_REVERSE_ENTRIES];

	for (int n = 0; n < SVC_REVERSE_ENTRIES; n++) {
		struct svc_reverse_entry *other = &reverse_of->entries[nth(n)];
		if (nth(n) == at)
			return;
		if (is_backend(other, mine->backend_address,
			       mine->backend_port)) {
			swap_entries(other, mine);
			return;
		}
	}
}

/* A UDP socket's backend for this frontend, while it may still be chosen. */
static __always_inline __u32 remembered(const struct svc_request *req,
					__u32 block)
{
	struct svc_reverse *reverse_of;
	__u32 backend = 0;
	int at = -1;

	reverse_of = find_reverse(&req->cookie);
	if (!reverse_of)
		return 0;
	bpf_spin_lock(&reverse_of->lock);
	for (int n = 0; n < SVC_REVERSE_ENTRIES; n++) {
		struct svc_reverse_entry *entry = &reverse_of->entries[nth(n)];

		if (is_frontend(entry, req)) {
			backend = entry->backend;
			at = nth(n);
			break;
		}
	}
	if (!req->is_connect && at >= 0 &&
	    !(req->is_connected && at == CONNECTION))
		used_last(reverse_of, at);
	bpf_spin_unlock(&reverse_of->lock);
	return backend && is_member(block, backend) ? backend : 0;
}

/* The lock is held. */
static __always_inline void note(struct svc_reverse *reverse_of,
				 const struct svc_request *req)
{
	/* A connected socket keeps what its peer is called. */
	int entries = req->is_connected ? SVC_REVERSE_ENTRIES - 1 :
					  SVC_REVERSE_ENTRIES;
	int at = -1;

	if (req->is_connect) {
		fill_entry(&reverse_of->entries[CONNECTION], req);
		for (int n = 0; n < SVC_REVERSE_ENTRIES - 1; n++) {
			struct svc_reverse_entry *entry =
				&reverse_of->entries[nth(n)];

			if (is_backend(entry, req->pick.address,
				       req->pick.port))
				entry->service = 0;
		}
		return;
	}
	for (int n = 0; n < entries; n++) {
		if (is_frontend(&reverse_of->entries[nth(n)], req)) {
			at = nth(n);
			break;
		}
	}
	if (at < 0) {
		at = nth(reverse_of->next % entries);
		reverse_of->next++;
	}
	fill_entry(&reverse_of->entries[at % SVC_REVERSE_ENTRIES], req);
	used_last(reverse_of, at);
}

/* Note which frontend the backend stands for on this socket; 0: no room. */
static __always_inline int remember(const struct svc_request *req)
{
	struct svc_reverse *reverse_of, fresh = {};

	reverse_of = find_reverse(&req->cookie);
	if (!reverse_of) {
		int at = req->is_connect ? CONNECTION : nth(0);

		fresh.next = !req->is_connect;
		fill_entry(&fresh.entries[at], req);
		if (add_reverse(&req->cookie, &fresh))
			return 1;
		/* Full, or another thread of the same socket was faster. */
		reverse_of = bpf_map_lookup_elem(&reverse, &req->cookie);
		if (!reverse_of)
			return 0;
	}
	bpf_spin_lock(&reverse_of->lock);
	note(reverse_of, req);
	bpf_spin_unlock(&reverse_of->lock);
	return 1;
}

/* A socket talks to this address as itself now: nothing stands for it. A
 * connection keeps its name whatever the socket sends elsewhere. */
static __always_inline void forget(const struct svc_request *req)
{
	struct svc_reverse *reverse_of;

	reverse_of = find_reverse(&req->cookie);
	if (!reverse_of)
		return;
	bpf_spin_lock(&reverse_of->lock);
	for (int n = 0; n < SVC_REVERSE_ENTRIES; n++) {
		struct svc_reverse_entry *entry = &reverse_of->entries[nth(n)];

		if (is_backend(entry, req->key.address, req->key.port) &&
		    !(req->is_connected && nth(n) == CONNECTION))
			entry->service = 0;
	}
	bpf_spin_unlock(&reverse_of->lock);
}

/* Is this the frontend that the socket is connected through? Then its peer is
 * the backend: only that one's answers come in. */
static __always_inline int is_own_connection(const struct svc_request *req,
					     const void *peer, __u16 peer_port)
{
	struct svc_reverse *reverse_of;
	struct svc_reverse_entry *entry;
	int found;

	reverse_of = find_reverse(&req->cookie);
	if (!reverse_of)
		return 0;
	bpf_spin_lock(&reverse_of->lock);
	entry = &reverse_of->entries[CONNECTION];
	found = is_backend(entry, peer, peer_port) &&
		entry->frontend_port == req->key.port &&
		same_address(entry->frontend_address, req->key.address);
	bpf_spin_unlock(&reverse_of->lock);
	return found;
}

/* Does the service still exist? A deleted or re-used id names nobody. */
static __always_inline int is_alive(__u32 service, __u32 lane)
{
	for (int i = 0; i < SVC_TRIES; i++) {
		struct svc_block *block = current_block(lane, 0);

		/* None, or one that was replaced just now. */
		if (block)
			return block->service == service;
	}
	return 0;
}

/* Replace an address by the frontend it stands for on this socket, if any. */
static __always_inline int stands_for(__u64 cookie, int is_peer, void *address,
				      __u16 *port)
{
	struct svc_reverse *reverse_of;
	__u64 frontend[2] = {};
	__u16 frontend_port = 0;
	__u32 service = 0, lane = 0;

	reverse_of = find_reverse(&cookie);
	if (!reverse_of)
		return 0;
	bpf_spin_lock(&reverse_of->lock);
	for (int n = 0; n < SVC_REVERSE_ENTRIES; n++) {
		struct svc_reverse_entry *entry =
			&reverse_of->entries[is_peer ? n : nth(n)];

		if (is_backend(entry, address, *port)) {
			__builtin_memcpy(frontend, entry->frontend_address, 16);
			frontend_port = entry->frontend_port;
			service = entry->service;
			lane = entry->lane;
			break;
		}
	}
	bpf_spin_unlock(&reverse_of->lock);
	if (!service || !is_alive(service, lane))
		return 0;
	__builtin_memcpy(address, frontend, 16);
	*port = frontend_port;
	return 1;
}

#endif
