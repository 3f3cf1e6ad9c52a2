"""Retrieval: retriever or words + collection -> run.

`systems.py` names and opens whatever ranks passages: `bm25.py` by words, `dense.py` by vectors,
exactly (`exact.py`) or approximately (`approximate.py`). `runs.py` writes and reads runs as TREC
files; `fusion.py` fuses several into one.
"""
