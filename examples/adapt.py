"""Adapt a retriever by judged queries of a collection, and keep it only if it became better.

The start is usually a published model, such as "sentence-transformers/all-MiniLM-L6-v2". To run
without a download, this script makes one of the encoder that comes with the package.
"""

from importlib.resources import files

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from modeling_condenser import adapt

encoder = Transformer(str(files("modeling_condenser") / "starter"), max_seq_length=32)
pooling = Pooling(encoder.get_embedding_dimension(), pooling_mode="mean")
SentenceTransformer(modules=[encoder, pooling, Normalize()]).save("runs/start")

adaptation = adapt(
    model="runs/start",
    collection="health",  # a collection with judged queries
    train_size=64,  # all by default
    output_dir="runs/adapted",
)
print(adaptation)
print(f"adapted: {adaptation.is_adapted}; written: {adaptation.model}")
