"""Other kernels: Debian's, booted under qemu with this machine's own file tree, running the quick tests."""
