"""Retrieval: rank the passages of a collection for queries, by BM25, vectors, or both.

In: the name of a system, passages and queries. Out: a run, the scores of the best passages of each
query. Start reading in `systems.py`, which reads the name of a system and opens it.
"""
