"""Reads Kubernetes' Services, EndpointSlices and Nodes as a kube-proxy would: `desired`."""

from svcctl.model.sources.kubernetes.planning import desired

__all__ = ["desired"]
