"""What all stages share: recipes, run folders, atomic writes and progress bars.

In: a YAML file or a mapping of settings. Out: checked dataclasses, and a folder that belongs to one
run and is continued by it alone. Start reading in `recipe.py` and `run_folder.py`.
"""
