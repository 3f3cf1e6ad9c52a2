"""Adapt a retriever to a collection without labels, and say whether it became better.

In: a sentence-transformers model or an export, and passages. Out: a model of the same form, and a
verdict. Start reading in `adapt.py`.
"""
