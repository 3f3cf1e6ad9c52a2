"""Pre-training: text -> blocks -> masked batches -> trainer -> checkpoint.

In: an encoder and documents without labels. Out: a run folder, whose `model` has the LM head and,
for Condenser, its head. Start reading in `pretrain.py`. A text goes this way:

    corpus.py (files of a recipe), rows.py (what a trainer is given)
      -> Dataset:         prepared.py stores the blocks of data.py; batches.py fills token budgets
      -> IterableDataset: streams.py and lanes.py cut, shuffle and fill batches while training
    examples.py makes these two for an objective of objectives.py
      -> `input_ids` and `mask_key` of each block or text of a pair
      -> collator.py adds special tokens, masks (masking.py, word_starts.py) and packs
      -> trainer.py, contrastive_trainer.py
"""
