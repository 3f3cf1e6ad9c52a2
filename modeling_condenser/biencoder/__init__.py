"""Fine-tuning: encoder + labelled pairs -> retriever.

Reads a published encoder and a collection, trains through sentence-transformers, and writes a run
folder whose `model` is laid out like the export, so that everything that opens one opens the other.
"""
