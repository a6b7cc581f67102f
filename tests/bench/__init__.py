"""Benchmarks: what the gateway costs beside its peers, and its parts alone. README.md says how to read them."""
