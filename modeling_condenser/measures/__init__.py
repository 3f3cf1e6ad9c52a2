"""Measures of runs and similarities, and tests of whether two systems differ."""
