"""Pre-training: text -> blocks -> masked batches -> trainer -> checkpoint.

In: an encoder and documents without labels. Out: a run folder, whose `model` has the LM head and,
for Condenser, its head. Start reading in `pretrain.py`; then `data.py`, `collator.py` and
`trainer.py` follow a text in this order.
"""
