"""Encoding: any encoder as a `Retriever`, and a collection's vectors as a folder of embeddings."""
