"""A static search page of a collection, for a static Space on the Hub.

In: a retriever and a collection. Out: a folder of HTML, JavaScript, ONNX and data that needs no
server. Start reading in `space.py`; `page/` holds what the browser runs.
"""
