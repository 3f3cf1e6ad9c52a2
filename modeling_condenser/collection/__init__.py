"""Collections: passages, queries, and judgements or answers, which every later stage reads.

`load.py` opens one by its name, in any of the layouts in which collections are published;
`builtin.py` makes one on any machine without a download.
"""
