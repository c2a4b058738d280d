// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The maps of a state directory itself. There is no program here. */
#include <linux/bpf.h>
#include "svc_state_maps.h"

char _license[] SEC("license") = "Dual BSD/GPL";
