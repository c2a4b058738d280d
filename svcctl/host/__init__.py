"""The host: namespaces, processes, sockets, locks, mounts."""
