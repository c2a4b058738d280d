/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The byte order of the target, bpfel or bpfeb. See asm/types.h here. */
#pragma once
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <linux/byteorder/little_endian.h>
#else
#include <linux/byteorder/big_endian.h>
#endif
