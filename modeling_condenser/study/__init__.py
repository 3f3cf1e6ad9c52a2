"""Studies: several ways of pre-training from one start, fine-tuned alike and compared."""
