"""Tests, by layer: unit, golden, e2e, cluster."""
