"""Load vectors and texts into Milvus, and search them by meaning and by words.

    pip install -c constraints.txt -e ".[milvus]"
    condenser encode my-retriever my-collection vectors --table table
    python examples/milvus.py table my-retriever "what I am looking for" --uri milvus.db

The URI is a file, for Milvus Lite, or a server as in http://HOST:19530, whose token is in the
environment variable MILVUS_TOKEN. The first call loads the table; `--replace` loads it again, which
vectors of another model need.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
from pymilvus import AnnSearchRequest, DataType, Function, FunctionType, MilvusClient, RRFRanker

from modeling_condenser import Retriever

LONGEST = 65_535  # bytes of a Milvus string
BATCH = 500  # passages in a request
FIELDS = ("embedding", "bm25")  # what can be searched


def load(client: MilvusClient, name: str, table: Path) -> None:
    """Create a collection, and load the Parquet files of `condenser encode --table` into it."""
    passages = ds.dataset(table)
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", DataType.VARCHAR, max_length=LONGEST, is_primary=True)
    # A server also knows analyzer_params={"type": "english"}, with stems and without stopwords.
    schema.add_field("text", DataType.VARCHAR, max_length=LONGEST, enable_analyzer=True)
    size = passages.schema.field("embedding").type.list_size
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=size)
    schema.add_field("bm25", DataType.SPARSE_FLOAT_VECTOR)  # Milvus fills it
    schema.add_function(Function("bm25", FunctionType.BM25, ["text"], ["bm25"]))
    indices = client.prepare_index_params()
    # Vectors of cosine similarity have length 1, so the inner product is right for all retrievers.
    indices.add_index("embedding", index_type="AUTOINDEX", metric_type="IP")
    indices.add_index("bm25", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
    client.create_collection(name, schema=schema, index_params=indices)
    for batch in passages.to_batches(batch_size=BATCH):
        rows = batch.to_pylist()
        for row in rows:
            text = f"{row.pop('title')}\n{row['text']}".strip()
            row["text"] = text.encode()[:LONGEST].decode(errors="ignore")
        client.insert(name, rows)
    client.flush(name)


def search(
    client: MilvusClient,
    name: str,
    query: str,
    vector: np.ndarray,
    *,
    k: int = 5,
    fields: Sequence[str] = FIELDS,
) -> list[dict]:
    """Find the k best passages in one field, or in both, fused by their ranks."""
    data = {"embedding": vector, "bm25": query}
    if len(fields) == 1:
        [field] = fields
        [hits] = client.search(
            name, [data[field]], anns_field=field, limit=k, output_fields=["text"]
        )
    else:
        requests = [AnnSearchRequest([data[field]], field, {}, limit=100) for field in fields]
        [hits] = client.hybrid_search(name, requests, RRFRanker(), limit=k, output_fields=["text"])
    return list(hits)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path, help="the folder of `condenser encode --table`")
    parser.add_argument("retriever", help="the model that encoded it")
    parser.add_argument("query")
    parser.add_argument("--settings", type=json.loads, default={}, help="its settings, as JSON")
    parser.add_argument("--uri", default="milvus.db", help="(default: milvus.db)")
    parser.add_argument("--name", default="passages", help="of the collection in Milvus")
    parser.add_argument("--fields", nargs="+", choices=FIELDS, default=FIELDS)
    parser.add_argument("--replace", action="store_true")
    options = parser.parse_args()
    retriever = Retriever(options.retriever, **options.settings)
    if retriever.contract.similarity == "euclidean":
        parser.error(
            f"{options.retriever} compares by Euclidean distance, but this example by inner "
            "products: name a retriever with the similarity dot or cosine."
        )
    client = MilvusClient(options.uri, token=os.environ.get("MILVUS_TOKEN", ""))
    if options.replace and client.has_collection(options.name):
        client.drop_collection(options.name)
    if not client.has_collection(options.name):
        load(client, options.name, options.table)
    else:  # it may be of a killed call
        n_loaded = client.get_collection_stats(options.name)["row_count"]
        if n_loaded != (n_rows := ds.dataset(options.table).count_rows()):
            parser.error(f"{options.name} has {n_loaded} of {n_rows} passages: add --replace.")
    client.load_collection(options.name)
    [vector] = retriever.encode_queries([options.query])
    for hit in search(client, options.name, options.query, vector, fields=options.fields):
        print(f"{hit['distance']:.3f}  {hit['id']}  {' '.join(hit['entity']['text'].split())[:70]}")


if __name__ == "__main__":
    main()
