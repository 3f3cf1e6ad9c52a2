"""Fine-tuning: an encoder is trained on labelled texts and becomes a retriever.

sentence-transformers trains. The result has the layout of an export.
"""
