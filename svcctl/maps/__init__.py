"""Typed maps: model values <-> bytes of the pinned maps."""
