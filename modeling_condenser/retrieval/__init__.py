"""Retrieval: retriever + collection -> embeddings -> index -> run -> measures -> report.

Two searchers turn queries into a *run*: `bm25.py` by words, `index.py` by inner products of the
vectors that `encoding.py` makes. `runs.py` writes and reads runs as TREC files, `measures.py`
scores a run against qrels, `significance.py` says whether two systems differ, `evaluate.py` is the
stage; `fingerprints.py` tells what a stored result belongs to.
"""
