"""Retriever and collection in; run file, measures and a comparison with a baseline out.

A *collection* (`collection.py`) is a BEIR folder: passages, queries and qrels; `builtin.py` makes
one on any machine without a download. Two searchers turn queries into a *run*: `bm25.py` by words,
`index.py` by inner products of embeddings. `runs.py` writes and reads runs as TREC files,
`measures.py` scores a run against qrels, `significance.py` says whether two systems differ.
"""
