"""Readiness: whether pre-training works, and when more steps gain little.

In: models or the checkpoints of a run, with texts and optionally a collection. Out: figures and a
report, or entries of a training log. Start reading in `readiness.py`, which measures one model;
`callback.py` calls it during a training, `analyze.py` afterwards.
"""
