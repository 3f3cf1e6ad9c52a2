"""Mining: retriever or BM25 + labelled queries -> hard negatives for fine-tuning."""
