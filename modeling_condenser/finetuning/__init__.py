"""Fine-tuning: an encoder is trained on labelled texts and becomes a retriever."""
