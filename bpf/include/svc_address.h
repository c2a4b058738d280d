/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Addresses of 16 bytes, as every key has them: IPv4 is ::ffff:a.b.c.d. */
#ifndef SVC_ADDRESS_H
#define SVC_ADDRESS_H

#include "svc_types.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

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

static __always_inline void set_v4(__u8 *address, __u32 v4)
{
	__u32 *word = (__u32 *)address;

	word[0] = 0;
	word[1] = 0;
	word[2] = bpf_htonl(0xffff);
	word[3] = v4;
}

#endif
