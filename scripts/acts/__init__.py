"""The acts of `make demo`."""
