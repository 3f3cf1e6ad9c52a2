"""Evaluation: search a collection with several systems, measure them, and test the differences.

In: names of systems, and a collection with judgements. Out: runs, measures of each query and a
`Report`. Start reading in `evaluate.py`; `measures.py` holds the definitions.
"""
