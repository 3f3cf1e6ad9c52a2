"""Training examples: labelled texts of any layout are read, checked and stored as one table.

Fine-tuning reads that table, which is memory-mapped.
"""
