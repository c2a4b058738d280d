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
#include "svc_connect_balance.h"

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define EHOSTUNREACH 113

#define REFUSE 0
#define PASS 1

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
