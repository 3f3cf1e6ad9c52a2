"""Where the files of a model are, and its encoding contract."""
