"""Search a collection with several systems, measure them, and report the differences."""
