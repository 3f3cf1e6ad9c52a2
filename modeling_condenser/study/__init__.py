"""Studies: several ways of pre-training from one start, fine-tuned alike and compared.

In: an encoder, a collection, and the settings of each arm. Out: a folder of runs, and a page of
tables and pictures. Start reading in `study.py`; `recipe.py` lists the settings.
"""
