"""Collections: passages, queries, and judgements or answers.

`load.py` opens a collection from a folder or from the Hub; `builtin.py` builds one without a
download.
"""
