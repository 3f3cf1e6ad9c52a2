"""Collections: passages, queries, and judgements or answers."""
