"""Fine-tuning: encoder + labelled texts -> retriever.

Reads an encoder and a collection, or training data of its own, trains through
sentence-transformers, and writes a run folder whose `model` is laid out like the export, so that
everything that opens one opens the other.
"""
