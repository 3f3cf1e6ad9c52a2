"""The trainers' base: complete checkpoints, resuming, pushes; training in a run folder."""
