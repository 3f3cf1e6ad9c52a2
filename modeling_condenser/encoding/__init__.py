"""Encoding: encoder + texts -> vectors, and a collection's vectors as a folder that can't be lost.

`retriever.py` opens any encoder and turns texts into vectors; `encode.py` is the stage that encodes
a collection in shards, with as many processes and devices as there are; `embeddings.py` opens what
it left.
"""
