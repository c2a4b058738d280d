// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The dispatcher: which socket gets an incoming connection.
 *
 * Runs at sk_lookup, for each first packet that no connected socket takes. A
 * binding names a destination, a destination holds up to 16 sockets. Order:
 * full-length bindings before prefixes, longer prefixes before shorter ones,
 * at equal length the concrete port before port 0.
 *
 * No binding: the kernel goes on as if we were not here. A binding without a
 * live socket: refused and counted, never handed to whatever else listens on
 * that address; the operator said where this traffic belongs.
 */
#include <linux/bpf.h>
#include "svc_dispatch_maps.h"
#include <bpf/bpf_endian.h>

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define MAX_READS 4 /* of an entry that changes while it is read */

#define FULL_LENGTH 160 /* protocol, family, port: 32 bits; address: 128 */

static __always_inline int drop(__u32 reason)
{
	count_drop(reason);
	return SK_DROP;
}

static __always_inline __u32 key_check(const struct svc_exact_key *key)
{
	const __u32 *word = (const __u32 *)key;

	return word[0] * SVC_CHECK_0 + word[1] * SVC_CHECK_1 +
	       word[2] * SVC_CHECK_2 + word[3] * SVC_CHECK_3 +
	       word[4] * SVC_CHECK_4;
}

/* 1: found, 0: no such binding, -1: it would not hold still. */
static __always_inline int find_exact(const struct svc_exact_key *key,
				      __u32 *destination)
{
	__u32 check = key_check(key);

	for (int i = 0; i < MAX_READS; i++) {
		union {
			__u64 word;
			struct svc_exact entry;
		} read;
		const volatile __u64 *value;

		value = bpf_map_lookup_elem(&exact, key);
		if (!value)
			return 0;
		read.word = *value;
		if (read.entry.check == check) {
			*destination = read.entry.destination;
			return 1;
		}
	}
	return -1;
}

static __always_inline struct svc_ports *ports_of(__u32 protocol, __u32 port)
{
	__u32 index = (protocol == IPPROTO_UDP ? 65536 : 0) + (port & 0xffff);

	return bpf_map_lookup_elem(&ports, &index);
}

/* Without it the compiler makes the two families' loads one load from a
 * computed offset, which the verifier refuses. */
#define NOT_MERGED() asm volatile("" ::: "memory")

static __always_inline int fill_address(struct svc_binding_key *key,
					const struct bpf_sk_lookup *ctx)
{
	__u32 *address = (__u32 *)key->address;

	if (ctx->family == AF_INET) {
		key->family = SVC_IPV4;
		address[2] = bpf_htonl(0xffff);
		address[3] = ctx->local_ip4;
		NOT_MERGED();
		return 1;
	}
	if (ctx->family == AF_INET6) {
		key->family = SVC_IPV6;
		address[0] = ctx->local_ip6[0];
		address[1] = ctx->local_ip6[1];
		address[2] = ctx->local_ip6[2];
		address[3] = ctx->local_ip6[3];
		return 1;
	}
	return 0;
}

/* A listener that was shut down, or a UDP socket that has connected since it
 * was registered, is still in the map but cannot take anything. */
static __always_inline int is_live(const struct bpf_sock *sk, __u32 protocol)
{
	if (protocol == IPPROTO_TCP)
		return sk->state == BPF_TCP_LISTEN;
	return sk->state == BPF_TCP_CLOSE;
}

/* Keeps a number 8 bytes wide. The compiler would spill 4 of them to where a
 * pointer was, which the verifier grants only with CAP_PERFMON. */
#define ALL_OF(number) asm volatile("" : "+r"(number))

static __always_inline int give_to(struct bpf_sk_lookup *ctx, __u32 id)
{
	struct svc_dispatch_stats *stats;
	__u64 first = 0;
	__u32 *hint;

	stats = bpf_map_lookup_elem(&dispatch_stats, &id);
	if (!stats)
		return drop(SVC_DROP_BAD_DESTINATION);
	stats->lookups++;

	hint = bpf_map_lookup_elem(&hints, &id);
	if (hint)
		first = *hint;
	ALL_OF(first);

	for (__u32 i = 0; i < SVC_SOCKETS_PER_DESTINATION; i++) {
		__u32 slot = (first + i) % SVC_SOCKETS_PER_DESTINATION;
		__u32 index = id * SVC_SOCKETS_PER_DESTINATION + slot;
		struct bpf_sock *sk;
		long refused = 1;

		sk = bpf_map_lookup_elem(&sockets, &index);
		if (!sk)
			continue;
		if (is_live(sk, ctx->protocol))
			refused = bpf_sk_assign(ctx, sk, 0);
		bpf_sk_release(sk);
		if (!refused) {
			if (i && hint)
				*hint = slot;
			return SK_PASS;
		}
		stats->errors++;
	}
	stats->no_socket++;
	return drop(SVC_DROP_NO_SOCKET);
}

static __always_inline __u64 find_prefix(struct svc_binding_key *key, __u16 port)
{
	const volatile __u64 *value;

	key->port = port;
	value = bpf_map_lookup_elem(&bindings, key);
	return value ? *value : 0;
}

/* 1: `destination` is set, 0: no binding, -1: an entry would not hold still. */
static __always_inline int find_destination(const struct bpf_sk_lookup *ctx,
					    __u32 *destination)
{
	struct svc_binding_key key = {};
	struct svc_exact_key *full = (struct svc_exact_key *)&key.protocol;
	union {
		__u64 word;
		struct svc_binding entry;
	} concrete = {}, wildcard = {};
	struct svc_ports *own, *every;
	__u16 port = ctx->local_port;
	int found;

	own = ports_of(ctx->protocol, port);
	every = ports_of(ctx->protocol, 0);
	if (!own || !every)
		return 0;
	if (!own->exact && !own->trie && !every->exact && !every->trie)
		return 0;

	/* Not as an initializer, which would make a .rodata without variables:
	 * Linux 5.10 refuses the whole BTF for it, and old layouts are read by BTF. */
	key.prefixlen = FULL_LENGTH;
	key.protocol = ctx->protocol;
	if (!fill_address(&key, ctx))
		return 0;

	if (own->exact) {
		key.port = port;
		found = find_exact(full, destination);
		if (found)
			return found;
	}
	if (every->exact) {
		key.port = 0;
		found = find_exact(full, destination);
		if (found)
			return found;
	}

	/* The stored prefixlen is at least 32, so a found word is never 0. */
	if (own->trie)
		concrete.word = find_prefix(&key, port);
	if (every->trie)
		wildcard.word = find_prefix(&key, 0);
	if (!concrete.word && !wildcard.word)
		return 0;
	*destination = wildcard.entry.prefixlen > concrete.entry.prefixlen ?
			       wildcard.entry.destination :
			       concrete.entry.destination;
	return 1;
}

SEC("sk_lookup")
int dispatch(struct bpf_sk_lookup *ctx)
{
	__u32 destination = 0;
	int found;

	/* Another sk_lookup program has chosen already: its word stands. */
	if (ctx->sk)
		return SK_PASS;
	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return SK_PASS;

	found = find_destination(ctx, &destination);
	if (!found)
		return SK_PASS;
	if (found < 0)
		return drop(SVC_DROP_UNSTABLE);
	return give_to(ctx, destination);
}

char _license[] SEC("license") = "Dual BSD/GPL";
