"""The earlier name of `measures.measure_in_memory`, until its callers are renamed."""

from .measures import measure_in_memory as measure_small

__all__ = ["measure_small"]
