"""Retrieval: rank the passages of a collection for queries.

`systems.py` names and opens anything that ranks passages: `bm25.py` by words, `dense.py` by
vectors, exactly (`exact.py`) or approximately (`approximate.py`), and TREC run files (`runs.py`).
`fusion.py` combines several runs into one.
"""
