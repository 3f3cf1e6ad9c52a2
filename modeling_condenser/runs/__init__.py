"""Recipes, run folders, checkpoints, and files that are written whole: shared by all stages."""
