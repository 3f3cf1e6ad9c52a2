"""Repositories: what a published model says of itself.

How it encodes (the contract), which stages made it (the provenance), what it reached (the results),
and the model card, which is made from these.
"""
