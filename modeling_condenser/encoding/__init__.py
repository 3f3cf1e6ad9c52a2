"""Encoding: texts become vectors, as the contract of their encoder says.

In: the name of an encoder, and texts or the passages of a collection. Out: arrays, or a folder of
`Embeddings`. Start reading in `retriever.py`; `embeddings.py` runs it over a whole collection.
"""
