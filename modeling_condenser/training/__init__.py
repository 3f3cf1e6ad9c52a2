"""What all trainings share: complete checkpoints, resuming and pushes.

In come settings and a trainer, out goes a run folder with record, log and model. Start with
`run_training` in `run.py`; `trainer.py` is the base of the trainers.
"""
