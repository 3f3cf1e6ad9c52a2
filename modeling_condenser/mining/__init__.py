"""Mining: hard negatives for fine-tuning, from what a retriever finds.

In: a system that ranks passages, and the judged queries of a collection. Out: a file with one line
for each query. Start reading in `miner.py`, which chooses negatives; `mine.py` runs it.
"""
