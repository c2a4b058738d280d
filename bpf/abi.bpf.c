// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Built, read for its BTF, never loaded: BTF holds only what something refers
 * to, so what user space mirrors and no map mentions is referred to here. */
#include <linux/bpf.h>
#include "svc_dispatch_maps.h"
#include "svc_packet_maps.h"
#include "svc_service_maps.h"
#include "svc_state_maps.h"

#define ANCHOR(kind, name) const kind name *anchor_##name

ANCHOR(enum, svc_family);
ANCHOR(enum, svc_drop_reason);
ANCHOR(enum, svc_usage_index);
ANCHOR(enum, svc_program_index);
ANCHOR(enum, svc_attachment_kind);
ANCHOR(enum, svc_attachment_flag);
ANCHOR(enum, svc_role);
ANCHOR(enum, svc_swap_phase);
ANCHOR(struct, svc_reverse_entry);
ANCHOR(enum, svc_frontend_flag);
ANCHOR(enum, svc_verdict);
ANCHOR(enum, svc_client_kind);
ANCHOR(enum, svc_config_flag);
ANCHOR(enum, svc_node_class);
ANCHOR(enum, svc_node_flag);
ANCHOR(enum, svc_service_flag);
ANCHOR(enum, svc_frontend_kind);
ANCHOR(enum, svc_member_state);
ANCHOR(enum, svc_member_flag);
ANCHOR(enum, svc_flow_kind);
ANCHOR(enum, svc_flow_seen);
ANCHOR(enum, svc_route);
ANCHOR(enum, svc_device_flag);
ANCHOR(enum, svc_packet_flag);
ANCHOR(enum, svc_packet_event);
ANCHOR(enum, svc_tail);

char _license[] SEC("license") = "Dual BSD/GPL";
