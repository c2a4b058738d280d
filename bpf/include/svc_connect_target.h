/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which frontend an address means to a socket: its own, a node port's or a blocked
 * address's. It depends on whether the socket and the address are the node's.
 */
#ifndef SVC_CONNECT_TARGET_H
#define SVC_CONNECT_TARGET_H

#include "svc_address.h"
#include "svc_drop.h"
#include "svc_reverse.h"

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

/* All of loopback goes by its first address, which is in the map unless node
 * ports are limited to prefixes without it: as kube-proxy has it. */
static __always_inline int is_node_address(const __u8 *address)
{
	struct svc_node_key key = { .prefixlen = 128 };
	__u32 *whose;

	__builtin_memcpy(key.address, address, 16);
	if (is_loopback(address) && is_v4(address)) {
		key.address[13] = 0;
		key.address[14] = 0;
		key.address[15] = 1;
	}
	whose = bpf_map_lookup_elem(&node_addresses, &key);
	return whose && ((*whose & 0xff) == SVC_NODE_OWN ||
			 *whose & SVC_NODE_PORTS);
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
	if (may_be_node_port(conf, req->key.port)) {
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

#endif
