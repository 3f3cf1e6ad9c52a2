"""Collections: passages, queries and relevance judgements, which every later stage reads.

A collection is a BEIR folder (`beir.py` opens one); `builtin.py` makes one on any machine without a
download.
"""
