"""Commands: each file parses its words, calls one stage, and reports."""
