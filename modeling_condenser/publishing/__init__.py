"""What a published model has beside its weights, and pushes to the Hub.

In come a checkpoint or an encoder, the stages that made it and its results; out goes a repository
with provenance, card and evaluation script. Start with `export.py`, then `push.py`.
"""
