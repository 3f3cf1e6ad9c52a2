"""The evaluation stage: recipes, what it writes, and what it refuses."""

import json
import re
import shlex
from pathlib import Path

import pytest

from hub_scripts.main import main
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.evaluation.system_results import evaluate_system
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.retrieval.runs import read_run, write_run
from tests.publishing.making import make_collection, make_run


@pytest.fixture(scope="module")
def retriever(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(bert_folder, tmp_path_factory.mktemp("runs") / "run")
    folder = tmp_path_factory.mktemp("retrievers") / "retriever"
    return export_encoder(run, folder, contract=EncodingContract(8, 24))


@pytest.fixture(scope="module")
def collection(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_collection(tmp_path_factory.mktemp("collections") / "small", texts)


def test_systems_of_every_kind_stand_in_one_report(
    retriever: Path, bert_folder: Path, collection: Path, tmp_path: Path
) -> None:
    theirs = write_run({"q40": {"p40": 2.0, "p41": 1.0}}, tmp_path / "theirs.trec", tag="x")
    settings = {
        "systems": [str(retriever), f"{bert_folder},pooling=mean,name=plain", str(theirs)],
        "baseline": "bm25",
        "collection": str(collection),
        "output_dir": str(tmp_path / "out"),
        "measures": ["MRR@10", "R@20"],
        "seed": 3,
    }
    outcome = evaluate(settings, progress=False)
    folder = tmp_path / "out" / "small" / "test"
    assert outcome.file == folder / "report.md"
    written = json.loads((folder / "report.json").read_text())
    results = outcome.report.results
    assert [result.system for result in results] == ["bm25", "retriever", "plain", "theirs"]
    assert outcome.report.baseline == "bm25"
    for result in results:
        alone = evaluate_system(
            {"retriever": retriever, "theirs": theirs}.get(result.system, "bm25")
            if result.system != "plain"
            else f"{bert_folder},pooling=mean",
            collection,
            tmp_path / "alone" / result.system,
            measures=["MRR@10", "R@20"],
            progress=False,
        )
        assert result.evaluation == alone.evaluation
    # Of 20 queries the given run answers one, at rank 1.
    assert results[3].evaluation.means == {"MRR@10": 1 / 20, "R@20": 1 / 20}
    assert str(tmp_path) not in (folder / "report.md").read_text() + json.dumps(written)
    assert (folder.parent / "embeddings" / "retriever" / "embeddings" / "manifest.json").is_file()


def test_the_reports_command_gives_the_report_again(
    retriever: Path,
    collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {
        "systems": [str(retriever)],
        "baseline": "bm25,k1=0.5",
        "collection": str(collection),
        "output_dir": str(tmp_path / "out"),
        "measures": ["nDCG@10", "R(rel=1)@5"],
        "depth": 20,
        "seed": 4,
    }
    outcome = evaluate(settings, progress=False)
    # Where the names of the command mean the same things.
    place = tmp_path / "place"
    place.mkdir()
    (place / "retriever").symlink_to(retriever)
    (place / "small").symlink_to(collection)
    monkeypatch.chdir(place)
    assert outcome.report.command.startswith("condenser evaluate retriever small ")
    assert main(shlex.split(outcome.report.command)[1:]) == 0
    again = place / "runs" / "evaluation" / "small" / "test"
    ours = outcome.file.parent
    for name in ("per_query.tsv", "retriever/run-20.trec"):
        assert (again / name).read_text() == (ours / name).read_text()
    for system in ("retriever", "bm25-0.5"):
        files = [folder / system / "metrics.json" for folder in (again, ours)]
        assert files[0].read_text() == files[1].read_text()
    printed = capsys.readouterr().out
    means = outcome.report.results[1].evaluation.means
    assert f"nDCG@10     {means['nDCG@10']:.4f}" in printed
    assert re.search(r"from bm25-0.5, p [=<] [01]\.\d+", printed)
    assert "report: runs/evaluation/small/test/report.md" in printed


def test_the_results_of_our_models_stand_on_their_cards_with_the_command(
    retriever: Path, collection: Path, tmp_path: Path
) -> None:
    settings = {"collection": str(collection), "output_dir": str(tmp_path / "out")}
    evaluate({**settings, "systems": [str(retriever)], "baseline": "bm25"}, progress=False)
    card = (retriever / "README.md").read_text()
    assert "condenser evaluate OWNER/NAME small --baseline bm25 --split test" in card
    assert "### small, test" in card and "| MRR@10 |" in card
    # What was evaluated otherwise than its contract says is another system.
    changed = f"{retriever},similarity=cosine"
    evaluate({**settings, "systems": [changed]}, progress=False)
    assert (retriever / "README.md").read_text() == card


def test_two_systems_of_one_name_are_told_apart_or_refused(
    retriever: Path, collection: Path, tmp_path: Path
) -> None:
    settings = {"collection": str(collection), "output_dir": str(tmp_path / "out")}
    other = tmp_path / "other" / "retriever"
    other.parent.mkdir()
    other.symlink_to(retriever)
    systems = [str(retriever), str(other)]
    if other.resolve().name == "retriever":
        with pytest.raises(ValueError, match="have the same name 'retriever'.*name=OTHER"):
            evaluate({**settings, "systems": systems}, progress=False)
    same = [str(retriever), str(retriever)]
    outcome = evaluate({**settings, "systems": same}, progress=False)
    assert [r.system for r in outcome.report.results] == ["retriever"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"systems": []}, "names no systems"),
        ({"depht": 3}, "no field 'depht'.*'depth'"),
        ({"task": "ranking"}, "task is 'ranking', expected one of 'retrieval'"),
        ({"measures": ["Hit@20"]}, "Hit@20 cannot be measured: small has no answers"),
        ({"measures": ["MRRR@10"]}, "MRRR@10"),
        ({"depth": 0}, "depth is 0, expected at least 1"),
        ({"split": "dev"}, "split 'dev'"),
    ],
)
def test_what_does_not_fit_is_refused(
    collection: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    settings = {
        "systems": ["bm25"],
        "collection": str(collection),
        "output_dir": str(tmp_path / "out"),
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        evaluate(settings, progress=False)


def test_an_approximate_index_reports_its_recall(
    retriever: Path, collection: Path, tmp_path: Path
) -> None:
    settings = {
        "systems": [str(retriever)],
        "collection": str(collection),
        "output_dir": str(tmp_path / "out"),
        "depth": 10,
        "index": "IVF4,Flat",
        "search_parameters": "nprobe=1",
    }
    outcome = evaluate(settings, progress=False)
    [system] = outcome.report.results
    exact = evaluate_system(retriever, collection, tmp_path / "exact", depth=10, progress=False)
    found, expected = read_run(system.run_file), read_run(exact.run_file)
    shares = [len(found[q].keys() & expected[q].keys()) / 10 for q in expected]
    assert system.record["recall_against_exact"] == pytest.approx(sum(shares) / len(shares))
    assert 0 < system.record["recall_against_exact"] < 1
    assert "recall" in outcome.file.read_text()
