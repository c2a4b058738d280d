"""svcctl: steers connections on a Linux host with eBPF, without a daemon."""

__version__ = "0.1.0"
