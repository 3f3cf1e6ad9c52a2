"""Recipes, data only: what a person edits. Read with `modeling_condenser.files.settings`."""
