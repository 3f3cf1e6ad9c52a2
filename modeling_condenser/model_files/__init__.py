"""Where the files of a model are, and how it encodes.

In comes a name (a folder, a run, "starter" or `owner/name` on the Hub), out go a folder and its
`EncodingContract`. Start with `find_model_folder` in `model_folder.py`.
"""
