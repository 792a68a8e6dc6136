"""Benchmarks: what a listener hears, measured from outside, over the same protocol as any client."""
