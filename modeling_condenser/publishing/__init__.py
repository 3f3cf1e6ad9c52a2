"""What a published model has beside its weights, and pushes to the Hub."""
