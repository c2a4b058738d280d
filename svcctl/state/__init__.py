"""The state directory: the only place that changes kernel state."""
