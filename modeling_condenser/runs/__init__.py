"""Runs: what every stage shares. Recipes are read and checked, run folders claimed and recorded.

Files, folders and checkpoints are whole or absent, however a process ends.
"""
