/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* BPF registers, pointers and long are 64 bits. See asm/types.h here. */
#pragma once
#define __BITS_PER_LONG 64
#include <asm-generic/bitsperlong.h>
