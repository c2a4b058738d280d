"""Measurements: each figure beside a peer measured in the same run, interleaved, never asserted by a test."""
