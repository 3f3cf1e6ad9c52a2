"""Hybrid systems: their names, their choice of a fusion, and that they search as their parts do."""

import shutil
from pathlib import Path

import pytest

from modeling_condenser.collection.load import load_collection, load_dev
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.retrieval.fusion import FUSIONS
from modeling_condenser.retrieval.hybrid import HybridSearcher, choose_fusion
from modeling_condenser.retrieval.runs import read_run
from modeling_condenser.retrieval.systems import open_searcher, parse_system


@pytest.mark.parametrize(
    ("bm25", "dense", "best"),
    [
        # Ranks of the relevant r: 2 and 2, behind different passages.
        ({"a": 9.0, "r": 8.0, "c": 0.0}, {"b": 9.0, "r": 8.0, "d": 0.0}, "rrf"),
        # r is far ahead for the encoder and last for BM25: a large weight finds it.
        ({"a": 9.0, "b": 5.0, "c": 1.0, "r": 0.9}, {"r": 9.0, "a": 2.0, "b": 1.0, "c": 0.0}, "0.6"),
    ],
)
def test_the_fusion_is_chosen_on_dev_queries(bm25, dense, best):
    runs = {"q": bm25}, {"q": dense}
    first = [next(iter(fusion.fuse(*runs)["q"])) for fusion in FUSIONS.values()]
    chosen = choose_fusion(*runs, {"q": {"r": 1}})
    assert chosen == FUSIONS[best] == list(FUSIONS.values())[first.index("r")]


def test_hybrid_search_fuses_the_runs_of_its_parts(bert_folder, collection, tmp_path):
    collection = Path(shutil.copytree(collection, tmp_path / "small"))
    shutil.copy(collection / "qrels/train.tsv", collection / "qrels/dev.tsv")
    word, out = f"{bert_folder},pooling=mean", tmp_path / "out"
    systems = ["bm25", word, f"hybrid:{word}", f"hybrid:{word},fusion=rrf"]
    report = evaluate(systems, collection, output_dir=out, progress=False)
    lexical_run, dense_run, fused, by_ranks = (read_run(r.run_file) for r in report.results)
    assert by_ranks == FUSIONS["rrf"].fuse(lexical_run, dense_run)
    loaded, dev = load_collection(collection), load_dev(collection, judged="test")
    lexical, dense = (
        open_searcher(parse_system(system), loaded.passages, tmp_path, progress=False)
        for system in systems[:2]
    )
    hybrid = HybridSearcher(lexical, dense)
    assert hybrid.tuned(None).fusion == hybrid.fusion == FUSIONS["0.5"]
    chosen = hybrid.tuned(dev).fusion
    assert dev is not None and fused == chosen.fuse(lexical_run, dense_run)
    assert report.results[2].record["fusion"] == str(chosen) in report.file.read_text()
    few = HybridSearcher(lexical, dense, chosen).search(loaded.queries, depth=3)
    assert few == {query: dict(list(run.items())[:3]) for query, run in fused.items()}
    # Encoded once, and the queries that are judged are not those that a choice is made on.
    folders = {file.parent.name for file in out.rglob("manifest.json")}
    assert len(folders) == 1
    assert load_dev(collection, judged="dev.small") is None
    # With other dev queries another fusion may be best, so the stored run is not taken.
    (collection / "qrels/dev.tsv").unlink()
    with pytest.raises(ValueError, match="another run, with a different dev"):
        evaluate(systems[2], collection, output_dir=out, progress=False)
