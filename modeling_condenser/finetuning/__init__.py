"""Fine-tuning: an encoder is trained on labelled texts and becomes a retriever.

In: an encoder, and a collection's judgements or rows of texts. Out: a run folder, whose `model` is
a sentence-transformers model. Start reading in `finetune.py`; `mine.py` finds hard negatives.
"""
