"""Numbers of the kernel's bpf(2) interface (include/uapi/linux/bpf.h), as plain integers."""

from __future__ import annotations

# Map types: enum bpf_map_type.
MAP_HASH = 1
MAP_ARRAY = 2
MAP_PROG_ARRAY = 3
MAP_PERCPU_HASH = 5
MAP_PERCPU_ARRAY = 6
MAP_LRU_HASH = 9
MAP_LRU_PERCPU_HASH = 10
MAP_LPM_TRIE = 11
MAP_ARRAY_OF_MAPS = 12
MAP_HASH_OF_MAPS = 13
MAP_SOCKMAP = 15
MAP_SOCKHASH = 18
MAP_PERCPU_CGROUP_STORAGE = 21
MAP_SK_STORAGE = 24
MAP_RINGBUF = 27

# Flags of one update.
ANY = 0
NOEXIST = 1
EXIST = 2
LOCK = 4

# Flags of map creation and of opening.
F_NO_PREALLOC = 1 << 0
F_NO_COMMON_LRU = 1 << 1
F_RDONLY = 1 << 3
F_WRONLY = 1 << 4
F_RDONLY_PROG = 1 << 7
F_MMAPABLE = 1 << 10
F_INNER_MAP = 1 << 12

# Flags of attaching, updating a link and querying.
F_ALLOW_MULTI = 1 << 1
F_REPLACE = 1 << 2
F_BEFORE = 1 << 3
F_AFTER = 1 << 4
F_QUERY_EFFECTIVE = 1 << 0

# Program types: enum bpf_prog_type.
PROG_SOCKET_FILTER = 1
PROG_SCHED_CLS = 3
PROG_XDP = 6
PROG_CGROUP_SKB = 8
PROG_CGROUP_SOCK = 9
PROG_SOCK_OPS = 13
PROG_CGROUP_SOCK_ADDR = 18
PROG_SK_LOOKUP = 30
PROG_SYSCALL = 31

# Attach types: enum bpf_attach_type.
CGROUP_INET4_CONNECT = 10
CGROUP_INET6_CONNECT = 11
CGROUP_UDP4_SENDMSG = 14
CGROUP_UDP6_SENDMSG = 15
CGROUP_UDP4_RECVMSG = 19
CGROUP_UDP6_RECVMSG = 20
CGROUP_INET4_GETPEERNAME = 29
CGROUP_INET6_GETPEERNAME = 30
CGROUP_INET_SOCK_RELEASE = 34
SK_LOOKUP = 36
TCX_INGRESS = 46
TCX_EGRESS = 47

# Link types: enum bpf_link_type.
LINK_TRACING = 2
LINK_CGROUP = 3
LINK_NETNS = 5
LINK_XDP = 6
LINK_TCX = 11
LINK_NETKIT = 13

# Helper functions asked for by probes: enum bpf_func_id.
FUNC_SK_ASSIGN = 124
FUNC_MAP_LOOKUP_ELEM = 1

OBJ_NAME_LEN = 16
"""Bytes of an object's name in the kernel, the closing zero included."""
