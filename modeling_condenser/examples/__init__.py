"""Examples: labelled texts of any layout -> training examples, checked and stored once.

Files, Hub data sets, collections with judgements and mined negatives all become one memory-mapped
table, from which fine-tuning reads.
"""
