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
#include "svc_select.h"
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

/* Before BPF_F_... there was no way to say it: the compiler must not merge
 * context loads of two branches into one from a computed offset. */
#define NOT_MERGED() asm volatile("" ::: "memory")

struct request {
	struct svc_frontend_key key;
	struct svc_pick pick;
	__u64 cookie; /* of the socket */
	int is_udp;
	int is_connect;
};

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

/* 1: found, 0: no service, -1: would not hold still, -2: a blocked address. */
static __always_inline int find_target(struct bpf_sock_addr *ctx,
				       const struct svc_config *conf,
				       const struct request *req,
				       struct svc_target *target)
{
	struct svc_frontend_key other = {};
	int found = find_frontend(&req->key, target);

	if (found)
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
		if (found < 0)
			return found;
		if (found && is_node_socket(ctx, conf) &&
		    is_node_address(req->key.address))
			return 1;
	}
	if (conf->blocked) {
		__builtin_memcpy(other.address, req->key.address, 16);
		other.port = 0;
		other.protocol = 0;
		found = find_frontend(&other, target);
		if (found > 0)
			return -2;
		return found;
	}
	return 0;
}

/* A UDP socket's earlier choice for this frontend, while its backend may still
 * be chosen. */
static __always_inline __u32 remembered(const struct request *req, __u32 block,
					__u32 service)
{
	struct svc_reverse *reverse_of;
	__u32 backend = 0;

	reverse_of = bpf_map_lookup_elem(&reverse, &req->cookie);
	if (!reverse_of)
		return 0;
	bpf_spin_lock(&reverse_of->lock);
	for (int i = 0; i < SVC_REVERSE_ENTRIES; i++) {
		struct svc_reverse_entry *entry = &reverse_of->entries[i];

		if (entry->service == service &&
		    entry->frontend_port == req->key.port &&
		    !__builtin_memcmp(entry->frontend_address,
				      req->key.address, 16))
			backend = entry->backend;
	}
	bpf_spin_unlock(&reverse_of->lock);
	return backend && is_member(block, backend) ? backend : 0;
}

static __always_inline void fill_entry(struct svc_reverse_entry *entry,
				       const struct request *req)
{
	__builtin_memcpy(entry->backend_address, req->pick.address, 16);
	__builtin_memcpy(entry->frontend_address, req->key.address, 16);
	entry->backend_port = req->pick.port;
	entry->frontend_port = req->key.port;
	entry->service = req->pick.service;
	entry->lane = req->pick.lane;
	entry->backend = req->pick.backend;
}

static __always_inline int same_backend(const struct svc_reverse_entry *entry,
					const __u8 *address, __u16 port)
{
	return entry->service && entry->backend_port == port &&
	       !__builtin_memcmp(entry->backend_address, address, 16);
}

/* Note which frontend the backend stands for on this socket. What is noted
 * already is not written again; a backend has one frontend, the last one used. */
static __always_inline int remember(const struct request *req)
{
	struct svc_reverse *reverse_of, fresh = {};
	int slot = -1;

	reverse_of = bpf_map_lookup_elem(&reverse, &req->cookie);
	if (!reverse_of) {
		fill_entry(&fresh.entries[0], req);
		fresh.next = 1;
		return bpf_map_update_elem(&reverse, &req->cookie, &fresh,
					   BPF_NOEXIST) == 0;
	}
	bpf_spin_lock(&reverse_of->lock);
	for (int i = 0; i < SVC_REVERSE_ENTRIES; i++) {
		struct svc_reverse_entry *entry = &reverse_of->entries[i];

		if (same_backend(entry, req->pick.address, req->pick.port)) {
			if (entry->service != req->pick.service ||
			    entry->frontend_port != req->key.port ||
			    __builtin_memcmp(entry->frontend_address,
					     req->key.address, 16))
				fill_entry(entry, req);
			slot = i;
			break;
		}
	}
	if (slot < 0) {
		__u32 next = reverse_of->next % SVC_REVERSE_ENTRIES;

		fill_entry(&reverse_of->entries[next], req);
		reverse_of->next = next + 1;
	}
	bpf_spin_unlock(&reverse_of->lock);
	return 1;
}

/* A socket now talks to this address as itself: nothing stands for it. */
static __always_inline void forget(const struct request *req)
{
	struct svc_reverse *reverse_of;

	reverse_of = bpf_map_lookup_elem(&reverse, &req->cookie);
	if (!reverse_of)
		return;
	bpf_spin_lock(&reverse_of->lock);
	for (int i = 0; i < SVC_REVERSE_ENTRIES; i++) {
		struct svc_reverse_entry *entry = &reverse_of->entries[i];

		if (same_backend(entry, req->key.address, req->key.port))
			entry->service = 0;
	}
	bpf_spin_unlock(&reverse_of->lock);
}

/* One try. Counts and remembers only what is final. */
static __always_inline int choose(struct bpf_sock_addr *ctx,
				  const struct svc_config *conf,
				  const struct svc_target *target,
				  struct request *req)
{
	struct svc_block *block;
	struct svc_service_stats *stats;
	__u32 seconds, earlier = 0, lane = target->lane;
	int found, affine = 0;

	stats = bpf_map_lookup_elem(&service_stats, &lane);
	block = current_block(lane, target->flags & SVC_FRONTEND_LOCAL);
	if (!stats || !block)
		return SVC_FOUND_CHANGED;
	if (target->flags & SVC_FRONTEND_FILTERED) {
		__sync_fetch_and_add(&stats->dropped, 1);
		count_drop(SVC_DROP_FILTERED);
		return SVC_FOUND_REFUSE;
	}
	if (!block->slots) {
		if (block->verdict == SVC_VERDICT_DROP) {
			__sync_fetch_and_add(&stats->dropped, 1);
			count_drop(SVC_DROP_VERDICT);
		} else {
			__sync_fetch_and_add(&stats->no_backend, 1);
			count_drop(SVC_DROP_NO_BACKEND);
		}
		return SVC_FOUND_REFUSE;
	}
	req->pick.service = block->service;
	req->pick.lane = lane;

	if (req->is_udp)
		earlier = remembered(req, block->block, block->service);
	seconds = block->affinity_seconds;
	if (!seconds && req->is_udp && !req->is_connect)
		seconds = conf->udp_affinity_seconds;
	if (earlier && read_backend(earlier, &req->pick)) {
		/* The same flow as before, not a new connection. */
		if (req->is_connect) {
			__sync_fetch_and_add(&stats->connections, 1);
			__sync_fetch_and_add(&stats->remembered, 1);
			count_pick(earlier);
		}
		return SVC_FOUND_BACKEND;
	}
	if (seconds) {
		struct svc_affinity_key client = {};
		__u64 cookie = bpf_get_netns_cookie(ctx);

		client.kind = SVC_CLIENT_COOKIE;
		__builtin_memcpy(client.client, &cookie, sizeof(cookie));
		found = pick_affine(block, &client, seconds, &req->pick, &affine);
	} else {
		found = pick_random(block, &req->pick);
	}
	if (found != SVC_FOUND_BACKEND)
		return found;
	__sync_fetch_and_add(&stats->connections, 1);
	if (affine)
		__sync_fetch_and_add(&stats->affinity, 1);
	count_pick(req->pick.backend);
	if (!remember(req))
		__sync_fetch_and_add(&stats->reverse_full, 1);
	return SVC_FOUND_BACKEND;
}

/* The whole decision; req->pick is set when it is SVC_FOUND_BACKEND. */
static __always_inline int balance(struct bpf_sock_addr *ctx,
				   struct request *req)
{
	struct svc_config *conf = configuration();
	struct svc_target target = {};
	int found;

	if (!conf)
		return SVC_FOUND_NOTHING;
	if (req->is_udp && conf->flags & SVC_CONFIG_EXCLUDE_UDP)
		return SVC_FOUND_NOTHING;
	if (conf->flags & SVC_CONFIG_HOST_ONLY && !is_node_socket(ctx, conf))
		return SVC_FOUND_NOTHING;
	zero_is_loopback(req->key.address);
	req->cookie = bpf_get_socket_cookie(ctx);

	for (int i = 0; i < SVC_TRIES; i++) {
		found = find_target(ctx, conf, req, &target);
		if (found == -2) {
			count_drop(SVC_DROP_BLOCKED);
			return SVC_FOUND_REFUSE;
		}
		if (found > 0 && target.flags & SVC_FRONTEND_HOST &&
		    !is_node_socket(ctx, conf))
			found = 0;
		if (!found) {
			if (req->is_connect)
				forget(req);
			return SVC_FOUND_NOTHING;
		}
		if (found > 0) {
			found = choose(ctx, conf, &target, req);
			if (found != SVC_FOUND_CHANGED)
				return found;
		}
	}
	count_drop(SVC_DROP_UNSTABLE);
	return SVC_FOUND_REFUSE;
}

static __always_inline int protocol_of(struct bpf_sock_addr *ctx,
				       struct request *req)
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
	struct request req = { .is_connect = is_connect };
	int found;

	/* sendmsg without an address but with control data: family and address
	 * are 0, and so is the port. */
	if (!protocol_of(ctx, &req))
		return PASS;
	set_v4(req.key.address, ctx->user_ip4);
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
	struct request req = { .is_connect = is_connect };
	__u32 *word = (__u32 *)req.key.address;
	int found;

	if (!protocol_of(ctx, &req))
		return PASS;
	word[0] = ctx->user_ip6[0];
	word[1] = ctx->user_ip6[1];
	word[2] = ctx->user_ip6[2];
	word[3] = ctx->user_ip6[3];
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

/* The frontend that an address stands for on this socket, if its service still
 * exists: a deleted or re-used id names nobody. */
static __always_inline int stands_for(struct bpf_sock_addr *ctx, __u8 *address,
				      __u16 *port)
{
	struct svc_reverse *reverse_of;
	struct svc_block *block;
	__u8 frontend[16];
	__u64 cookie;
	__u16 frontend_port = 0;
	__u32 service = 0, lane = 0;

	cookie = bpf_get_socket_cookie(ctx);
	reverse_of = bpf_map_lookup_elem(&reverse, &cookie);
	if (!reverse_of)
		return 0;
	bpf_spin_lock(&reverse_of->lock);
	for (int i = 0; i < SVC_REVERSE_ENTRIES; i++) {
		struct svc_reverse_entry *entry = &reverse_of->entries[i];

		if (same_backend(entry, address, *port)) {
			__builtin_memcpy(frontend, entry->frontend_address, 16);
			frontend_port = entry->frontend_port;
			service = entry->service;
			lane = entry->lane;
			break;
		}
	}
	bpf_spin_unlock(&reverse_of->lock);
	if (!service)
		return 0;
	block = current_block(lane, 0);
	if (!block || block->service != service)
		return 0;
	__builtin_memcpy(address, frontend, 16);
	*port = frontend_port;
	return 1;
}

static __always_inline int incoming4(struct bpf_sock_addr *ctx)
{
	__u8 address[16];
	__u16 port = bpf_ntohs((__u16)ctx->user_port);

	set_v4(address, ctx->user_ip4);
	if (stands_for(ctx, address, &port) && is_v4(address)) {
		__u32 *word = (__u32 *)address;

		ctx->user_ip4 = word[3];
		ctx->user_port = bpf_htons(port);
	}
	return PASS;
}

static __always_inline int incoming6(struct bpf_sock_addr *ctx)
{
	__u8 address[16];
	__u32 *word = (__u32 *)address;
	__u16 port = bpf_ntohs((__u16)ctx->user_port);

	word[0] = ctx->user_ip6[0];
	word[1] = ctx->user_ip6[1];
	word[2] = ctx->user_ip6[2];
	word[3] = ctx->user_ip6[3];
	if (stands_for(ctx, address, &port)) {
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
	return incoming4(ctx);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return incoming6(ctx);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return incoming4(ctx);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return incoming6(ctx);
}

/* What a socket had goes with it, however it used its address. */
SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	bpf_map_delete_elem(&reverse, &cookie);
	return PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
