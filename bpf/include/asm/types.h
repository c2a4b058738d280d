/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The headers of this directory stand in for those of the build machine's
 * architecture, which clang does not find for a BPF target and which would
 * answer for the wrong machine if it did: BPF is 64 bits wide, and of the
 * byte order of the target. So an object is the same wherever it is built.
 */
#include <asm-generic/types.h>
