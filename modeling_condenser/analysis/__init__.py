"""What condensing changes in a model, measured on a fixed sample: when it is ready, when to stop.

In: models, or a training that is running. Out: the worth of the dense vector to the head, the CLS
token's attention, the geometry of the vectors, and retrieval on a small collection.
"""
