"""libbpf through ctypes. Knows nothing of svcctl."""
