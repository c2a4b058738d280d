/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The whole decision on one connection or datagram: frontend, then what the socket
 * remembers, affinity or chance; what is counted, and what is remembered of it.
 */
#ifndef SVC_CONNECT_BALANCE_H
#define SVC_CONNECT_BALANCE_H

#include "svc_connect_target.h"

static __always_inline void refuse_empty(const struct svc_block *block,
					 struct svc_service_stats *stats)
{
	if (block->verdict == SVC_VERDICT_DROP) {
		__sync_fetch_and_add(&stats->dropped, 1);
		count_drop(SVC_DROP_VERDICT);
	} else {
		__sync_fetch_and_add(&stats->no_backend, 1);
		count_drop(SVC_DROP_NO_BACKEND);
	}
}

/* The families have blocks of their own, so a client has an entry for each. */
static __always_inline void client_of(struct bpf_sock_addr *ctx,
				      const struct svc_request *req,
				      struct svc_affinity_key *client)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);

	client->service = req->service;
	client->kind = SVC_CLIENT_COOKIE;
	__builtin_memcpy(client->client, &cookie, sizeof(cookie));
	client->client[8] = is_v4(req->key.address) ? SVC_IPV4 : SVC_IPV6;
}

/* One try at a backend. Counts and remembers nothing that is not final. */
static __always_inline int choose(struct bpf_sock_addr *ctx,
				  const struct svc_config *conf,
				  const struct svc_target *target,
				  struct svc_request *req)
{
	struct svc_affinity_key client = {};
	struct svc_block *block;
	__u32 seconds, earlier = 0, lane = target->lane;

	req->stats = bpf_map_lookup_elem(&service_stats, &lane);
	block = current_block(lane, target->flags & SVC_FRONTEND_LOCAL);
	if (!req->stats || !block)
		return SVC_FOUND_CHANGED;
	if (target->flags & SVC_FRONTEND_FILTERED) {
		__sync_fetch_and_add(&req->stats->dropped, 1);
		count_drop(SVC_DROP_FILTERED);
		return SVC_FOUND_REFUSE;
	}
	if (!block->slots) {
		refuse_empty(block, req->stats);
		return SVC_FOUND_REFUSE;
	}
	req->service = block->service;
	req->pick.lane = lane;
	req->chosen_by = BY_CHANCE;
	seconds = block->affinity_seconds;
	if (!seconds && req->is_udp && !req->is_connect)
		seconds = conf->udp_affinity_seconds;
	if (seconds)
		client_of(ctx, req, &client);

	/* A flow stays where it is; a new connection goes by affinity first. */
	if (req->is_udp && !(req->is_connect && seconds))
		earlier = remembered(req, block->block);
	if (earlier && read_backend(earlier, &req->pick)) {
		if (seconds)
			touch_affinity(&client, earlier);
		req->chosen_by = BY_SOCKET;
		return SVC_FOUND_BACKEND;
	}
	if (block->lut)
		req->pick.hash = svc_hash_cookie(req->cookie);
	if (!seconds)
		return pick_new(block, &req->pick);
	return pick_affine(block, &client, seconds, &req->pick,
			   &req->chosen_by);
}

/* A backend was found: count what is a new connection, and remember it. */
static __always_inline void settle(const struct svc_request *req)
{
	struct svc_service_stats *stats = req->stats;

	if (!stats || (req->chosen_by == BY_SOCKET && !req->is_connect))
		return;
	__sync_fetch_and_add(&stats->connections, 1);
	if (req->chosen_by == BY_SOCKET)
		__sync_fetch_and_add(&stats->remembered, 1);
	if (req->chosen_by == BY_AFFINITY)
		__sync_fetch_and_add(&stats->affinity, 1);
	count_pick(&req->pick);
	if (!remember(req))
		__sync_fetch_and_add(&stats->reverse_full, 1);
}

static __always_inline int refuse_unstable(const struct svc_target *target)
{
	struct svc_service_stats *stats;
	__u32 lane = target->lane;

	stats = bpf_map_lookup_elem(&service_stats, &lane);
	if (lane && stats)
		__sync_fetch_and_add(&stats->unstable, 1);
	count_drop(SVC_DROP_UNSTABLE);
	return SVC_FOUND_REFUSE;
}

/*
 * Nothing of an earlier try is left, to the verifier's knowledge too: else it
 * follows every way through each of the tries after every way through the one
 * before. All of this is inlined, for kernels before 6.8: their verifier
 * believes constants that a called function reads through a pointer to its
 * caller's stack to be the same on every way, and removes what it has not seen
 * used.
 */
static __always_inline void start_over(struct svc_request *req,
				       struct svc_target *target)
{
	__builtin_memset(target, 0, sizeof(*target));
	__builtin_memset(&req->pick, 0, sizeof(req->pick));
	req->stats = 0;
	req->service = 0;
	req->chosen_by = BY_CHANCE;
	asm volatile("" : : "r"(req), "r"(target) : "memory");
}

/* The whole decision; req->pick is set when it is SVC_FOUND_BACKEND. */
static __always_inline int balance(struct bpf_sock_addr *ctx,
				   struct svc_request *req)
{
	struct svc_config *conf = configuration();
	struct svc_target target = {};
	int found = SVC_FOUND_CHANGED;

	if (!conf)
		return SVC_FOUND_NOTHING;
	if (req->is_udp && conf->flags & SVC_CONFIG_EXCLUDE_UDP)
		return SVC_FOUND_NOTHING;
	if (conf->flags & SVC_CONFIG_HOST_ONLY && !is_node_socket(ctx, conf))
		return SVC_FOUND_NOTHING;

#pragma clang loop unroll(disable)
	for (int i = 0; i < SVC_TRIES && found == SVC_FOUND_CHANGED; i++) {
		start_over(req, &target);
		found = find_target(ctx, conf, req, &target);
		if (found == SVC_FOUND_BACKEND)
			found = choose(ctx, conf, &target, req);
	}
	if (found == SVC_FOUND_BACKEND)
		settle(req);
	else if (found == SVC_FOUND_NOTHING)
		forget(req);
	else if (found == SVC_FOUND_CHANGED)
		return refuse_unstable(&target);
	return found;
}

/* What a datagram to an address comes to on a socket that has a peer. Only the
 * peer's answers come in, so there is no other backend to choose. */
static __always_inline int by_connection(struct svc_request *req,
					 const __u8 *peer, __u16 peer_port)
{
	req->is_connected = 1;
	/* Control data without an address makes the kernel ask about the peer
	 * of a v4-mapped socket: a backend already, and not to be replaced. */
	if (req->key.port == peer_port && same_address(req->key.address, peer))
		return SVC_FOUND_NOTHING;
	if (!is_own_connection(req, peer, peer_port))
		return SVC_FOUND_CHANGED;
	__builtin_memcpy(req->pick.address, peer, 16);
	req->pick.port = peer_port;
	return SVC_FOUND_BACKEND;
}

#endif
