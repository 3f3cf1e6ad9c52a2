"""Recipes, run folders, complete checkpoints and atomic writes, shared by all stages."""
