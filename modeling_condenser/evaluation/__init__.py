"""Evaluation: systems + collection -> measures, tests, and a report that can be checked.

`evaluate.py` is the stage; `ranking.py` searches, `system_results.py` measures, `findings.py` tests
everything that `report.py` then writes.
"""
