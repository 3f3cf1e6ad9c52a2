"""Measures: runs, vectors of pairs and judgements -> values -> whether two systems differ."""
