// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The connect balancer: which backend of a service a connection goes to.
 *
 * Runs in the system call, before there is a packet: connect and sendmsg rewrite
 * the address, recvmsg and getpeername give the service's address back. After a
 * TCP connect there is no more work. A destination that is no service is never
 * refused and never changed.
 *
 * connect and sendmsg exist twice: kernels before 6.1 have no bpf_set_retval in
 * these hooks, and a refusal is EPERM there; elsewhere EHOSTUNREACH.
 */
#include <linux/bpf.h>
#include "svc_reverse.h"
#include <bpf/bpf_endian.h>

#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define EHOSTUNREACH 113

#define REFUSE 0
#define PASS 1

static __always_inline struct svc_config *configuration(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&config, &zero);
}

static __always_inline int is_node_socket(struct bpf_sock_addr *ctx,
					  const struct svc_config *conf)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);

	if (conf->flags & SVC_CONFIG_NODE_IS_INIT)
		return cookie == bpf_get_netns_cookie(0);
	return cookie == conf->node_cookie;
}

static __always_inline int is_v4(const __u8 *address)
{
	const __u32 *word = (const __u32 *)address;

	return !word[0] && !word[1] && word[2] == bpf_htonl(0xffff);
}

static __always_inline int is_loopback(const __u8 *address)
{
	const __u32 *word = (const __u32 *)address;

	if (is_v4(address))
		return address[12] == 127;
	return !word[0] && !word[1] && !word[2] && word[3] == bpf_htonl(1);
}

/* The kernel turns the zero address into loopback after this hook. */
static __always_inline void zero_is_loopback(__u8 *address)
{
	__u32 *word = (__u32 *)address;

	if (word[3])
		return;
	if (is_v4(address))
		word[3] = bpf_htonl(0x7f000001);
	else if (!word[0] && !word[1] && !word[2])
		word[3] = bpf_htonl(1);
}

static __always_inline int is_node_address(const __u8 *address)
{
	struct svc_node_key key = { .prefixlen = 128 };
	__u32 *class;

	if (is_loopback(address))
		return 1;
	__builtin_memcpy(key.address, address, 16);
	class = bpf_map_lookup_elem(&node_addresses, &key);
	return class && *class == SVC_NODE_OWN;
}

/* The frontend an address means to this socket; SVC_FOUND_BACKEND if there is
 * one. */
static __always_inline int find_target(struct bpf_sock_addr *ctx,
				       const struct svc_config *conf,
				       const struct svc_request *req,
				       struct svc_target *target)
{
	struct svc_frontend_key other = {};
	int found = find_frontend(&req->key, target);

	if (found == SVC_FOUND_BACKEND && target->flags & SVC_FRONTEND_HOST &&
	    !is_node_socket(ctx, conf))
		return SVC_FOUND_NOTHING;
	if (found != SVC_FOUND_NOTHING)
		return found;
	if (conf->node_ports) {
		/* The zero address of the family stands for every node address. */
		other.port = req->key.port;
		other.protocol = req->key.protocol;
		if (is_v4(req->key.address)) {
			other.address[10] = 0xff;
			other.address[11] = 0xff;
		}
		found = find_frontend(&other, target);
		if (found == SVC_FOUND_CHANGED)
			return found;
		if (found == SVC_FOUND_BACKEND && is_node_socket(ctx, conf) &&
		    is_node_address(req->key.address))
			return found;
	}
	if (conf->blocked) {
		__builtin_memcpy(other.address, req->key.address, 16);
		other.port = 0;
		other.protocol = 0;
		found = find_frontend(&other, target);
		if (found == SVC_FOUND_CHANGED)
			return found;
		if (found == SVC_FOUND_BACKEND) {
			count_drop(SVC_DROP_BLOCKED);
			return SVC_FOUND_REFUSE;
		}
	}
	return SVC_FOUND_NOTHING;
}

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
	if (!seconds)
		return pick_random(block, &req->pick);
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

static __always_inline int protocol_of(struct bpf_sock_addr *ctx,
				       struct svc_request *req)
{
	__u32 protocol = ctx->protocol;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	req->key.protocol = protocol;
	req->is_udp = protocol == IPPROTO_UDP;
	req->key.port = bpf_ntohs((__u16)ctx->user_port);
	return req->key.port != 0;
}

static __always_inline void set_v4(__u8 *address, __u32 v4)
{
	__u32 *word = (__u32 *)address;

	word[0] = 0;
	word[1] = 0;
	word[2] = bpf_htonl(0xffff);
	word[3] = v4;
}

static __always_inline int refused(int errno_helper)
{
	if (errno_helper)
		bpf_set_retval(-EHOSTUNREACH);
	return REFUSE;
}

static __always_inline int outgoing4(struct bpf_sock_addr *ctx, int is_connect,
				     int errno_helper)
{
	struct svc_request req = { .is_connect = is_connect };
	struct bpf_sock *sk = ctx->sk;
	int found = SVC_FOUND_CHANGED;

	/* sendmsg without an address but with control data: family and address
	 * are 0, and so is the port. */
	if (!protocol_of(ctx, &req))
		return PASS;
	set_v4(req.key.address, ctx->user_ip4);
	zero_is_loopback(req.key.address);
	req.cookie = bpf_get_socket_cookie(ctx);
	if (!is_connect && sk && sk->dst_port) {
		__u64 peer[2];

		set_v4((__u8 *)peer, sk->dst_ip4);
		found = by_connection(&req, (__u8 *)peer,
				      bpf_ntohs(sk->dst_port));
	}
	if (found == SVC_FOUND_CHANGED)
		found = balance(ctx, &req);
	if (found == SVC_FOUND_REFUSE)
		return refused(errno_helper);
	/* A lane has backends of its own family only. */
	if (found == SVC_FOUND_BACKEND && is_v4(req.pick.address)) {
		__u32 *word = (__u32 *)req.pick.address;

		ctx->user_ip4 = word[3];
		ctx->user_port = bpf_htons(req.pick.port);
	}
	return PASS;
}

static __always_inline int outgoing6(struct bpf_sock_addr *ctx, int is_connect,
				     int errno_helper)
{
	struct svc_request req = { .is_connect = is_connect };
	__u32 *word = (__u32 *)req.key.address;
	struct bpf_sock *sk = ctx->sk;
	int found = SVC_FOUND_CHANGED;

	if (!protocol_of(ctx, &req))
		return PASS;
	word[0] = ctx->user_ip6[0];
	word[1] = ctx->user_ip6[1];
	word[2] = ctx->user_ip6[2];
	word[3] = ctx->user_ip6[3];
	/* Of a socket bound to a v4-mapped address, zero is IPv4's. */
	if (is_connect && sk && !(word[0] | word[1] | word[2] | word[3]) &&
	    sk->src_ip6[2] == bpf_htonl(0xffff))
		word[2] = bpf_htonl(0xffff);
	zero_is_loopback(req.key.address);
	req.cookie = bpf_get_socket_cookie(ctx);
	if (!is_connect && sk && sk->dst_port) {
		__u64 peer[2];

		word = (__u32 *)peer;
		word[0] = sk->dst_ip6[0];
		word[1] = sk->dst_ip6[1];
		word[2] = sk->dst_ip6[2];
		word[3] = sk->dst_ip6[3];
		found = by_connection(&req, (__u8 *)peer,
				      bpf_ntohs(sk->dst_port));
	}
	if (found == SVC_FOUND_CHANGED)
		found = balance(ctx, &req);
	if (found == SVC_FOUND_REFUSE)
		return refused(errno_helper);
	if (found == SVC_FOUND_BACKEND) {
		word = (__u32 *)req.pick.address;
		ctx->user_ip6[0] = word[0];
		ctx->user_ip6[1] = word[1];
		ctx->user_ip6[2] = word[2];
		ctx->user_ip6[3] = word[3];
		ctx->user_port = bpf_htons(req.pick.port);
	}
	return PASS;
}

static __always_inline int incoming4(struct bpf_sock_addr *ctx, int is_peer)
{
	__u16 port = bpf_ntohs((__u16)ctx->user_port);
	__u64 address[2];

	set_v4((__u8 *)address, ctx->user_ip4);
	if (stands_for(bpf_get_socket_cookie(ctx), is_peer, address, &port) &&
	    is_v4((__u8 *)address)) {
		__u32 *word = (__u32 *)address;

		ctx->user_ip4 = word[3];
		ctx->user_port = bpf_htons(port);
	}
	return PASS;
}

static __always_inline int incoming6(struct bpf_sock_addr *ctx, int is_peer)
{
	__u16 port = bpf_ntohs((__u16)ctx->user_port);
	__u64 address[2];
	__u32 *word = (__u32 *)address;

	word[0] = ctx->user_ip6[0];
	word[1] = ctx->user_ip6[1];
	word[2] = ctx->user_ip6[2];
	word[3] = ctx->user_ip6[3];
	if (stands_for(bpf_get_socket_cookie(ctx), is_peer, address, &port)) {
		ctx->user_ip6[0] = word[0];
		ctx->user_ip6[1] = word[1];
		ctx->user_ip6[2] = word[2];
		ctx->user_ip6[3] = word[3];
		ctx->user_port = bpf_htons(port);
	}
	return PASS;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return outgoing4(ctx, 1, 1);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return outgoing6(ctx, 1, 1);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return outgoing4(ctx, 0, 1);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return outgoing6(ctx, 0, 1);
}

SEC("cgroup/connect4")
int connect4_eperm(struct bpf_sock_addr *ctx)
{
	return outgoing4(ctx, 1, 0);
}

SEC("cgroup/connect6")
int connect6_eperm(struct bpf_sock_addr *ctx)
{
	return outgoing6(ctx, 1, 0);
}

SEC("cgroup/sendmsg4")
int sendmsg4_eperm(struct bpf_sock_addr *ctx)
{
	return outgoing4(ctx, 0, 0);
}

SEC("cgroup/sendmsg6")
int sendmsg6_eperm(struct bpf_sock_addr *ctx)
{
	return outgoing6(ctx, 0, 0);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return incoming4(ctx, 0);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return incoming6(ctx, 0);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return incoming4(ctx, 1);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return incoming6(ctx, 1);
}

/* What a socket had goes with it, however it used its address. */
SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	drop_reverse(&cookie);
	return PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
