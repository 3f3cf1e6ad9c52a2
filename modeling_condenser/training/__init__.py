"""What pre-training and fine-tuning share: a run folder, resuming, and one push at the end.

In come settings and a trainer, out goes a run folder with record, log and model. Start with
`run_training` in `run.py`; `trainer.py` is the base of the trainers.
"""
