"""Pre-training: text -> blocks -> masked batches -> Trainer -> checkpoint."""
