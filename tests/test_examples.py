"""The scripts in examples/: run as a user would."""

import ast
import re
import runpy
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoModel, ModernBertModel

import modeling_condenser
from modeling_condenser.collection import load
from modeling_condenser.files.models import EncodingContract

ROOT = Path(__file__).parent.parent
NAMES = ("search", "condense", "from_scratch", "fine_tune", "evaluate", "adapt")
# What each prints, as a pattern.
PRINTED = {
    "search": r"\n  0\.\d{3}  \w",
    "condense": r"'train_loss': .*\nruns/condensed-encoder encodes 100 texts into vectors of 256 ",
    "from_scratch": r"retriever +MRR@10( +0\.\d{4}){3} +[+-]0\.\d{4} +\d\.\d{4} +[▲▼○]",
    "fine_tune": r"fine-tune +MRR@10( +0\.\d{4}){4} +\d\.\d{4} +[▲▼○]",
    "evaluate": r"\nbest by MRR@10: ",
    "adapt": r"hybrid: .* nDCG@10 (.*\n)*adapted: (True|False); written: runs/adapted/model\n",
}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_imports_the_public_names_alone(name):
    tree = ast.parse((ROOT / "examples" / f"{name}.py").read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    [own] = [node for node in nodes if str(node.module).startswith("modeling_condenser")]
    assert own.module == "modeling_condenser"
    assert {alias.name for alias in own.names} <= set(modeling_condenser.__all__)


@pytest.fixture
def few_passages(tmp_path, monkeypatch):
    """Makes `health` a collection of every 24th judgement and their passages; its folder."""
    whole, folder = Path(load.resolve_collection_name("health")), tmp_path / "few"
    (folder / "qrels").mkdir(parents=True)
    judged: set[str] = set()
    for file in (whole / "qrels").iterdir():
        rows = pd.read_csv(file, sep="\t", dtype=str)[::24]
        rows.to_csv(folder / "qrels" / file.name, sep="\t", index=False)
        judged |= set(rows["corpus-id"])
    passages = pd.read_json(whole / "corpus.jsonl.gz", lines=True, dtype=False)
    kept = passages[passages["_id"].isin(judged)]
    kept.to_json(folder / "corpus.jsonl", orient="records", lines=True)
    shutil.copy(whole / "queries.jsonl.gz", folder)
    names = {"health": str(folder)}
    monkeypatch.setattr(load, "resolve_collection_name", lambda name: names.get(name, str(name)))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_without_a_download(name, tmp_path, monkeypatch, capsys, few_passages):
    monkeypatch.chdir(tmp_path)
    source = (ROOT / "examples" / f"{name}.py").read_text()
    for long, short in (("max_steps=20", "max_steps=5"), ("train_size=256", "train_size=64")):
        source = source.replace(long, short)
    exec(compile(source, name, "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(PRINTED[name], printed), printed


@pytest.mark.slow
def test_the_example_from_scratch_makes_a_modernbert_too(tmp_path, monkeypatch, few_passages):
    monkeypatch.chdir(tmp_path)
    source = (ROOT / "examples" / "from_scratch.py").read_text()
    changed = source.replace('KIND = "bert"', 'KIND = "modernbert"').replace("20,", "3,")
    assert changed != source
    exec(compile(changed.replace("train_size=256", "train_size=64"), "from_scratch", "exec"), {})
    encoder = AutoModel.from_pretrained("runs/from-scratch/retriever/model")
    assert isinstance(encoder, ModernBertModel)


@pytest.mark.slow
def test_the_demo_prints_its_tables_and_repeats_nothing(tmp_path, monkeypatch, capfd, few_passages):
    out, sizes = tmp_path / "demo", ["--fraction", "0.01", "--labels", "64"]
    words = ["demo.py", "--collection", str(few_passages), "--output_dir", str(out), *sizes]
    monkeypatch.setattr("sys.argv", words)
    tables = []
    for _ in range(2):
        runpy.run_path(str(ROOT / "examples" / "demo.py"), run_name="__main__")
        printed = capfd.readouterr()
        tables.append(printed.out.partition("In brackets")[0])
    assert printed.err.count("is finished.") == 4 and tables[0] == tables[1]
    [file] = out.glob("evaluation/*/test/per_query.tsv")
    values = pd.read_csv(file, sep="\t").filter(like=" MRR@10")
    bm25, mlm, _, recommended, *_ = values.mean()
    rows = [" ".join(line.split()) for line in tables[0].split("\n")]
    assert f"bm25 {bm25:.3f} {bm25:.3f}" in rows and f"mlm {mlm:.3f}" in "\n".join(rows)
    [row] = [row for row in rows if row.startswith(f"recommended {recommended:.3f}")]
    assert re.search(rf" \({re.escape(f'{recommended - mlm:+.3f}')}, p = [01]\.\d{{3}}\)", row)


@pytest.mark.slow
def test_milvus_finds_what_brute_force_finds(tmp_path, monkeypatch, capsys):
    pymilvus = pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    random, ids = np.random.default_rng(0), [f"p{i}" for i in range(60)]
    vectors, query = random.standard_normal((60, 16)), random.standard_normal(16)
    embeddings = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), 16)
    texts = [f"Passage {i} is about topic{i % 20}" for i in range(60)]
    columns = {"id": ids, "embedding": embeddings, "title": [f"T{i}" for i in range(60)]}
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table({**columns, "text": texts}), tmp_path / "table" / "data.parquet")
    example = runpy.run_path(str(ROOT / "examples" / "milvus.py"))
    client = pymilvus.MilvusClient(str(tmp_path / "milvus.db"))
    example["load"](client, "passages", tmp_path / "table")

    def search(*fields, k=60):
        hits = example["search"](client, "passages", "topic3 of 23", query, k=k, fields=fields)
        return [hit["id"] for hit in hits]

    by_vectors, by_words = search("embedding"), search("bm25")
    assert by_vectors == [ids[row] for row in np.argsort(-vectors @ query)]
    assert by_words[0] == "p23" and {*by_words[1:]} == {"p3", "p43"}
    scores = Counter[str]()
    for ranking in (by_vectors, by_words):
        scores.update({name: 1 / (61 + rank) for rank, name in enumerate(ranking)})
    assert search("embedding", "bm25", k=3) == [name for name, _ in scores.most_common(3)]
    text = client.get("passages", ["p7"], output_fields=["text"])[0]["text"]
    assert text == "T7\nPassage 7 is about topic7"

    client.delete("passages", ["p7"])  # as if the call that loads the table had been killed
    words = [str(tmp_path / "table"), "none", "topic3", "--uri", str(tmp_path / "milvus.db")]
    monkeypatch.setattr("sys.argv", ["milvus.py", *words])
    for similarity, message in (
        ("dot", "passages has 59 of 60 passages: add --replace."),
        ("euclidean", "none compares by Euclidean distance"),
    ):
        stub = SimpleNamespace(contract=EncodingContract(8, 8, similarity=similarity))
        monkeypatch.setitem(example["main"].__globals__, "Retriever", lambda _, stub=stub: stub)
        with pytest.raises(SystemExit):
            example["main"]()
        assert message in capsys.readouterr().err
