"""Readers of desired state: Kubernetes objects, svcctl's own files, and what other balancers save. No I/O."""
