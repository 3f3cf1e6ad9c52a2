"""Retrieval: rank the passages of a collection for queries, by BM25, vectors, or both."""
