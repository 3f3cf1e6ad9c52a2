"""Benchmarks of speed and memory, and programs that make the bundled data."""
