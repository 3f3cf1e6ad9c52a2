"""Readiness: measures that show whether pre-training works, and when more steps gain little."""
