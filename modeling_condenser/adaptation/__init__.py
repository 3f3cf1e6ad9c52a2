"""Adapt a retriever's query vectors to a collection by judged queries, if they prove it.

In: a sentence-transformers model, passages and judged queries. Out: a model of the same form, and
verdicts. Start reading in `adapt.py`.
"""
