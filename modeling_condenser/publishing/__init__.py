"""Export encoders, check repositories, and push them to the Hub."""
