"""What all stages share: recipes, models by name, run folders, atomic writes and progress bars.

In: a YAML file or a mapping of settings, and the name of a model. Out: checked dataclasses, an open
model, and a folder that belongs to one run. Start reading in `settings.py` and `models.py`.
"""
