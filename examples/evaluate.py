"""Compare an encoder, BM25 and both together on a collection, with significance tests."""

from modeling_condenser import evaluate

encoder = "starter,pooling=cls,similarity=cosine,passage_max_length=32"
report = evaluate(
    systems=[encoder, f"hybrid:{encoder}"],
    collection="health",
    baseline="bm25",
    measures=["MRR@10", "nDCG@10", "R@100"],
    output_dir="runs/evaluation",
)
print(report)

best = max(report.means, key=lambda system: report.means[system]["MRR@10"])
print(f"\nbest by MRR@10: {best}; groups of queries: {report.file}")
