"""Fetch models from the Hub, and push to it."""
