"""Readiness: measures that show whether condensing works, and when more steps gain little."""
