/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps that every state directory has, whatever is attached. Programs read none
 * of them but count in drop_stats; the sizes given here are final. */
#ifndef SVC_STATE_MAPS_H
#define SVC_STATE_MAPS_H

#include "svc_drop.h"
#include "svc_types.h"
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct svc_meta);
} meta SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SVC_USAGE_MAPS);
	__type(key, __u32);
	__type(value, struct svc_usage);
} usage SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SVC_WRITERS);
	__type(key, __u32);
	__type(value, struct svc_writer);
} writers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SVC_PROGRAM_SLOTS);
	__type(key, __u32);
	__type(value, struct svc_program);
} programs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct svc_attachment_key);
	__type(value, struct svc_attachment);
} attachments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct svc_attach_rule_key);
	__type(value, struct svc_attach_rule);
} attach_rules SEC(".maps");

#endif
