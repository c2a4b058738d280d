/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a flow to a slot of a Maglev table: a pure function, the same on every
 * node and in either byte order. svcctl/model/flow_hash.py is its twin.
 */
#ifndef SVC_MAGLEV_H
#define SVC_MAGLEV_H

#include <bpf/bpf_endian.h>

/* An odd number with its bits well spread: 2^64 over the golden ratio. */
#define SVC_HASH_FACTOR 0x9e3779b97f4a7c15ULL

static __always_inline __u64 svc_hash_word(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * SVC_HASH_FACTOR;
	return hash ^ (hash >> 32);
}

/* Stirs so that the upper bits depend on every bit. */
static __always_inline __u64 svc_hash_end(__u64 hash)
{
	hash *= SVC_HASH_FACTOR;
	hash ^= hash >> 29;
	return hash * SVC_HASH_FACTOR;
}

/* Addresses are 16 bytes aligned to 4, ports in host byte order. */
static __always_inline __u64 svc_hash_flow(const __u8 *client,
					   const __u8 *frontend,
					   __u16 client_port,
					   __u16 frontend_port, __u8 protocol)
{
	const __u32 *c = (const __u32 *)client, *f = (const __u32 *)frontend;
	__u64 hash = 0;

	hash = svc_hash_word(hash, (__u64)bpf_ntohl(c[0]) << 32 | bpf_ntohl(c[1]));
	hash = svc_hash_word(hash, (__u64)bpf_ntohl(c[2]) << 32 | bpf_ntohl(c[3]));
	hash = svc_hash_word(hash, (__u64)bpf_ntohl(f[0]) << 32 | bpf_ntohl(f[1]));
	hash = svc_hash_word(hash, (__u64)bpf_ntohl(f[2]) << 32 | bpf_ntohl(f[3]));
	hash = svc_hash_word(hash, (__u64)client_port << 32 |
					   (__u64)frontend_port << 16 | protocol);
	return svc_hash_end(hash);
}

/* Of a socket that has no address yet. */
static __always_inline __u64 svc_hash_cookie(__u64 cookie)
{
	return svc_hash_end(svc_hash_word(0, cookie));
}

/* `size` below 2^32: the upper half of the hash, scaled. */
static __always_inline __u32 svc_lut_slot(__u64 hash, __u32 size)
{
	return ((hash >> 32) * size) >> 32;
}

#endif
