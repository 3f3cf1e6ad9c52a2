"""The `condenser` command: its grammar, and a function for each verb."""
