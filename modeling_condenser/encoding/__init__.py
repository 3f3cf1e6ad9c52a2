"""Encoding: any encoder as a `Retriever`, and a collection's vectors as a folder.

`opening.py` opens encoders, `retriever.py` turns texts into vectors, `encode.py` encodes a
collection in shards, and `embeddings.py` opens the resulting folder.
"""
