"""Mining: hard negatives for fine-tuning, from what a retriever finds."""
