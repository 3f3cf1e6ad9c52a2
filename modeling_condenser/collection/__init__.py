"""Collections: passages, queries, and judgements or answers.

In: a folder or Hub data set in a known layout, or files of any kind. Out: a `Collection`, or a new
folder in BEIR's layout. Start reading in `load.py`, which opens a collection, and in `collect.py`,
which makes one of files.
"""
