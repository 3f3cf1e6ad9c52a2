"""Studies: models and several ways of training them, fine-tuned alike and compared in one table.

In: one or more starts, a collection, and the settings of each arm. Out: a folder of runs, and a
page of tables and pictures. Start reading in `study.py`; `recipe.py` lists the settings.
"""
