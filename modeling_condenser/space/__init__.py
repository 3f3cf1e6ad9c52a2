"""A static search page of a collection, for a static Space on the Hub."""
