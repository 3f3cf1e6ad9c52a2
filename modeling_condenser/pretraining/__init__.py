"""Pre-training: text -> blocks -> masked batches -> Trainer -> checkpoint.

Reads a corpus (Hub name or local files) and an encoder, writes a run folder with a checkpoint that
holds backbone, LM head and Condenser head.
"""
