"""Commands: each file reads its settings, calls one stage, and prints the result."""
