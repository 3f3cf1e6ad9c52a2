"""Evaluation: search a collection with several systems, measure them, and report the differences.

`evaluate.py` runs a recipe. `system_results.py` searches and measures one system, `report.py`
compares the systems and writes the report.
"""
