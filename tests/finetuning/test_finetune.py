"""Which encoders can be fine-tuned, batches, and trainings: learnt by heart, resumed, shared."""

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import AutoModel

from modeling_condenser.collection.collection import sample_collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import compare
from modeling_condenser.files.models import EncodingContract
from modeling_condenser.files.run_folder import read_run
from modeling_condenser.finetuning.finetune import (
    RetrieverTrainer,
    finetune,
    load_dev_queries,
    open_trainable,
    rank_dev_queries,
)
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.provenance import read_provenance
from tests.encoding.making import save_modules
from tests.pretraining.short_runs import column, interrupted_at
from tests.pretraining.test_distributed import TORCHRUN, launch
from tests.publishing.making import make_run, plain_vectors, write_collection


@pytest.fixture(scope="module")
def encoder(bert_folder, tmp_path_factory):
    """An export, without dropout, with noisy weights and lengths of 48 and 56."""
    root = tmp_path_factory.mktemp("encoders")
    contract = EncodingContract(48, 56, title_separator=" : ")
    return export_encoder(make_run(bert_folder, root / "run"), root / "encoder", contract=contract)


@pytest.fixture(scope="module")
def settings(encoder, collection, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetuned") / "run"
    given = {"encoder": str(encoder), "collection": str(collection), "output_dir": str(folder)}
    contract = {"query_max_length": 16, "similarity": "cosine", "temperature": 0.05}
    schedule = {"per_device_train_batch_size": 20, "num_train_epochs": 12, "learning_rate": 3e-3}
    quick = {"logging_steps": 2, "use_cpu": True, "disable_tqdm": True, "seed": 3}
    return {**given, **contract, **schedule, **quick}


@pytest.fixture(scope="module")
def retriever(settings):
    return finetune(**settings)


def share_found_first(model: Path, collection: Path) -> float:
    """The share of training queries whose passage comes first, by sentence-transformers alone."""
    opened = SentenceTransformer(str(model), device="cpu")
    train = load_collection(collection, split="train")
    texts = [f"{p['title']} : {p['text']}" if p["title"] else p["text"] for p in train.passages]
    queries = opened.encode_query(list(train.queries.values()))
    first = opened.similarity(queries, opened.encode_document(texts)).argmax(1).tolist()
    found = zip(train.qrels.values(), train.passages[first]["_id"], strict=True)
    return float(np.mean([grades.get(passage, 0) > 0 for grades, passage in found]))


def test_training_lowers_the_loss_and_lifts_the_ranking(retriever, encoder, collection):
    log = json.loads((retriever.parent / "log.json").read_text())
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert len(losses) == 12
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    gain = share_found_first(retriever, collection) - share_found_first(encoder, collection)
    assert gain > 0.3


def check_vectors(retriever: Path, texts: list[str], pooling: str) -> None:
    """sentence-transformers gives the unit vectors that transformers alone gives."""
    model = SentenceTransformer(str(retriever), device="cpu")
    assert model.similarity_fn_name == "cosine"
    plain = plain_vectors(retriever, texts, 56, pooling)
    expected = torch.nn.functional.normalize(plain, dim=-1)
    assert torch.allclose(torch.tensor(model.encode_document(texts)), expected, atol=1e-5)


def test_a_retriever_opens_as_an_export_does(retriever, texts):
    names = {file.name for file in retriever.iterdir()}
    assert names >= {"README.md", "evaluate_retrieval.py", "model.safetensors", "modules.json"}
    model, info = AutoModel.from_pretrained(retriever, output_loading_info=True)
    assert type(model).__name__ == "BertModel"
    assert not info["missing_keys"] and not info["unexpected_keys"]
    expected = EncodingContract(16, 56, similarity="cosine", title_separator=" : ")
    assert EncodingContract.load(retriever) == expected
    saved = json.loads((retriever / "tokenizer.json").read_text())
    assert saved["truncation"] is None and saved["padding"] is None  # not those of the last batch
    check_vectors(retriever, texts[:6], "cls")


def test_provenance_names_both_stages(retriever):
    first, second = read_provenance(retriever)
    assert (first.name, second.name) == ("Pre-training", "Fine-tuning")
    assert (second.recipe["encoder"], second.recipe["temperature"]) == ("local: encoder", 0.05)
    assert (second.run["n_examples"], second.run["steps"]) == (40, 24)


def test_a_plain_encoder_learns_a_cross_encoders_scores(train, write_jsonl, texts):
    row = {"negative_1": "a museum", "negative_2": "a railway", "scores": [5.0, 2.0, 1.0]}
    data = write_jsonl([{"query": text[:30], "positive": text, **row} for text in texts[:24]])
    scored = {"objective": "kl", "similarity": "cosine", "n_negatives": 1}
    folder = train(**scored, data=str(data), passage_max_length=56)
    check_vectors(folder, texts[:6], "mean")


def test_a_wrong_setting_stops_before_the_folder_is_touched(settings, bert_folder, tmp_path):
    for wrong, message in (
        ({"encoder": str(bert_folder)}, "state pooling"),
        ({"matryoshka_dims": [4], "similarity": "dot"}, "is for similarity: cosine, .*got dot"),
        ({"prompts": {"query": "q: "}}, "prompts is not supported: set query_prompt"),
        ({"batch_sampler": "no_duplicates"}, "batch_sampler is not supported: .*shuffled"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha is not supported"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size .* set mini_batch_size"),
        ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy .* are shuffled"),
        ({"metric_for_best_model": "loss"}, "metric_for_best_model is not supported: nDCG@10"),
        ({"load_best_model_at_end": True, "save_strategy": "no"}, "needs .* checkpoints"),
        ({"train_size": 41}, "train_size is 41, but .* has 40 training examples"),
    ):
        with pytest.raises(ValueError, match=message):
            finetune(**{**settings, **wrong, "output_dir": str(tmp_path / "run")})
    assert not (tmp_path / "run").exists()


def test_other_rows_in_the_same_file_are_refused(train, write_jsonl, texts):
    rows = [{"query": text[:30], "positive": text} for text in texts[:8]]
    data = {"data": str(write_jsonl(rows)), "max_steps": 1}
    model = train(**data)
    record = (model.parent / "run.json").read_bytes()
    write_jsonl([*rows[:7], {"query": "a river", "positive": "It is near the market."}])
    with pytest.raises(ValueError, match="holds another run .model or data: "):
        train(**data)
    assert (model.parent / "run.json").read_bytes() == record
    write_jsonl(rows)
    assert train(**data) == model


def test_a_sentence_transformers_model_is_trained_without_its_normalisation(bert_folder, tmp_path):
    further = [modules.Pooling(32, pooling_mode="mean"), modules.Normalize()]
    folder = save_modules(tmp_path / "st", bert_folder, lambda _: further, length=40)
    opened = open_trainable(str(folder), similarity="dot")
    assert opened.contract == EncodingContract(40, 40, "mean", "dot", token_type_ids=True)
    assert [type(module) for module in opened.model] == [modules.Transformer, modules.Pooling]
    expected = SentenceTransformer(str(folder), device="cpu").encode(["a river"])
    vectors = opened.model.encode(["a river"], normalize_embeddings=True)
    assert torch.allclose(torch.tensor(vectors), torch.tensor(expected), atol=1e-6)
    # A dot product of normalised vectors is their cosine.
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    config |= {"similarity_fn_name": "dot"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    assert open_trainable(str(folder)).contract.similarity == "cosine"


@pytest.mark.parametrize(
    ("trained", "changes", "similarity", "temperature"),
    [
        ("cosine", {}, "cosine", 0.05),
        ("cosine", {"similarity": "dot"}, "dot", 1.0),
        (None, {}, "dot", 1.0),
        (None, {"objective": "triplet"}, "euclidean", None),
    ],
)
def test_the_similarity_of_an_encoder_is_kept_unless_the_recipe_names_another(
    train, bert_run, bert_folder, write_jsonl, tmp_path, trained, changes, similarity, temperature
):
    encoder = bert_folder
    if trained:
        contract = EncodingContract(16, 16, similarity=trained)
        encoder = export_encoder(bert_run, tmp_path / "export", contract=contract)
    rows = [{"query": f"q {i}", "positive": f"p {i}", "negative": f"n {i}"} for i in range(4)]
    model = train(encoder=str(encoder), data=str(write_jsonl(rows)), max_steps=1, **changes)
    assert Retriever(model).contract.similarity == similarity
    assert read_run(model.parent).get("temperature") == temperature


def test_a_record_of_another_tool_is_left_out(train, bert_folder, write_jsonl, tmp_path, caplog):
    start = Path(shutil.copytree(bert_folder, tmp_path / "start"))
    (start / "provenance.json").write_text('{"source": "of another tool"}')
    rows = [{"query": f"q {i}", "positive": f"p {i}"} for i in range(4)]
    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    model = train(encoder=str(start), data=str(write_jsonl(rows)), **settings)
    assert [stage.name for stage in read_provenance(model)] == ["Fine-tuning"]
    assert caplog.text.count("are not recorded") == 1


def test_encoders_that_an_export_cannot_hold_are_refused(bert_folder, bert_run, tmp_path):
    further = [modules.Pooling(32, "mean"), modules.Dense(32, 8)]
    folder = save_modules(tmp_path / "dense", bert_folder, lambda _: further)
    with pytest.raises(ValueError, match="the modules Transformer, Pooling, Dense and"):
        open_trainable(str(folder), similarity="dot")
    with pytest.raises(ValueError, match="is a Condenser checkpoint: .*condenser export"):
        open_trainable(str(bert_run / "model"))


def test_a_pooler_is_not_trained_and_a_new_one_becomes_the_identity(bert_folder):
    opened = open_trainable(str(bert_folder), pooling="cls")  # a masked LM has none
    pooler = opened.model[0].model.pooler
    assert pooler.dense.weight.equal(torch.eye(32)) and not pooler.dense.bias.any()
    assert not any(parameter.requires_grad for parameter in pooler.parameters())


@pytest.fixture
def trained_batches(monkeypatch):
    """The inputs of the loss, in the order of the training."""
    batches, original = [], RetrieverTrainer.compute_loss

    def compute_loss(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        batches.append(inputs)
        return original(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(RetrieverTrainer, "compute_loss", compute_loss)
    return batches


def test_each_column_is_cut_where_encoding_cuts_it(train, write_jsonl, trained_batches):
    text = "the river is near the old market and the engine is near the old museum " * 4
    rows = [{"query": text, "positive": f"{i} {text}", "negative": f"no {text}"} for i in range(4)]
    lengths = {"query_max_length": 8, "passage_max_length": 21}
    train(data=str(write_jsonl(rows)), max_steps=1, **lengths)
    columns = {name: ids for name, ids in trained_batches[0].items() if name.endswith("input_ids")}
    shapes = [ids.shape[1] for ids in columns.values()]
    assert shapes == [8, 21, 21]


def test_the_learning_rate_follows_the_size_of_the_encoder(train, bert_folder, write_jsonl):
    encoder = AutoModel.from_pretrained(bert_folder)
    embeddings = [m for m in encoder.modules() if isinstance(m, torch.nn.Embedding)]
    size = encoder.num_parameters() - sum(module.weight.numel() for module in embeddings)
    data = str(write_jsonl([{"query": f"q {i}", "positive": f"p {i}"} for i in range(4)]))
    for settings, expected in (
        ({}, 1e-5 * (86e6 / size) ** 0.5),
        ({"learning_rate": 3e-5}, 3e-5),
    ):
        run = train(str(expected), data=data, base_learning_rate=1e-5, **settings).parent
        assert read_run(run)["learning_rate"] == pytest.approx(expected, rel=0.05)


@pytest.fixture(scope="module")
def with_dev(collection, tmp_path_factory):
    """The collection, with its training queries as dev queries in almost the same words."""
    folder = shutil.copytree(collection, tmp_path_factory.mktemp("dev") / "collection")
    title, *judged = (folder / "qrels" / "train.tsv").read_text().splitlines()
    (folder / "qrels" / "dev.tsv").write_text("\n".join([title, *(f"dev-{row}" for row in judged)]))
    with (folder / "queries.jsonl").open("r+") as file:
        for row in list(map(json.loads, file)):
            row |= {"_id": f"dev-{row['_id']}", "text": f"{row['text']} please"}
            file.write(json.dumps(row) + "\n")
    return folder


def dev_entries(run: Path) -> dict[int, float]:
    log = json.loads((run / "log.json").read_text())
    return {entry["step"]: entry["eval_nDCG@10"] for entry in log if "eval_nDCG@10" in entry}


def test_the_best_weights_are_kept_and_judged_against_the_start(train, encoder, with_dev):
    settings = {"encoder": str(encoder), "collection": str(with_dev), "pooling": "cls"}
    settings |= {"learning_rate": 3e-3, "max_steps": 6, "save_steps": 2, "logging_steps": 1}
    whole = train("whole", **settings)
    figures = dev_entries(whole.parent)
    assert sorted(figures) == [0, 2, 4, 6]
    best_step = max(figures, key=figures.__getitem__)
    best = whole.parent / f"checkpoint-{best_step}" / "model.safetensors"
    assert load_file(best).keys() == load_file(whole / "model.safetensors").keys()
    assert best.read_bytes() == (whole / "model.safetensors").read_bytes()
    with interrupted_at(5):
        train("stopped", **settings)
    resumed = train("stopped", **settings)
    assert dev_entries(resumed.parent) == figures
    assert [read_run(model.parent)["best_step"] for model in (whole, resumed)] == 2 * [best_step]
    assert best.read_bytes() == (resumed / "model.safetensors").read_bytes()
    # The verdict is that of rankings by both models; the card and the provenance have it.
    dev = load_dev_queries(settings)
    assert dev is not None
    assert not dev.queries.keys() & load_collection(with_dev, split="train").queries.keys()
    small = sample_collection(dev, n_queries=200, n_passages=1000, seed=42)
    start = rank_dev_queries(Retriever(encoder, similarity="dot"), small)
    difference = compare(rank_dev_queries(Retriever(whole), small), start).difference
    assert figures[0] == pytest.approx(fmean(start.values()))
    for model in (whole, resumed):
        verdict = read_provenance(model)[-1].run["verdict"]
        assert read_run(model.parent)["verdict"] == verdict  # before a push
        assert f"{difference:+.3f}" in verdict
    outcome = verdict.partition(":")[0]
    assert f"Verdict against its start: {outcome}" in (whole / "README.md").read_text()


def test_timed_checkpoints_are_not_ranked_and_leave_the_best_one(
    train, encoder, with_dev, monkeypatch, tmp_path
):
    monkeypatch.setattr("modeling_condenser.training.run._MINUTES", 0)  # after each step
    settings = {"encoder": str(encoder), "collection": str(with_dev), "pooling": "cls"}
    settings |= {"learning_rate": 3e-3, "max_steps": 6, "eval_steps": 2}
    for name, stated in (("run", {}), ("stated", {"load_best_model_at_end": True})):
        with interrupted_at(5):
            train(name, **settings, **stated)
        assert [*tmp_path.glob(f"{name}/checkpoint-[35]")], name
    with pytest.raises(ValueError, match="eval_steps is 2, but save_steps 3: .* state one"):
        train("unequal", **settings, save_steps=3)
    model = train(**settings)
    figures = dev_entries(model.parent)
    assert sorted(figures) == [0, 2, 4, 6]
    best = model.parent / f"checkpoint-{max(figures, key=figures.__getitem__)}"
    assert (best / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_dev_queries_may_be_ranked_after_each_epoch(train, encoder, with_dev):
    settings = {"encoder": str(encoder), "collection": str(with_dev), "pooling": "cls"}
    model = train(**settings, max_steps=-1, num_train_epochs=2, eval_strategy="epoch")
    assert len(dev_entries(model.parent)) == 3 and 0 in dev_entries(model.parent)


def test_a_run_that_is_moved_after_its_last_step_ends_with_its_best_weights(
    train, encoder, with_dev, monkeypatch
):
    settings = {"encoder": str(encoder), "collection": str(with_dev), "pooling": "cls"}
    settings |= {"learning_rate": 3e-3, "max_steps": 6, "save_steps": 2}
    whole = train("whole", **settings)  # its best step is not the last
    monkeypatch.setattr(RetrieverTrainer, "_load_best_model", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train("stopped", **settings)
    monkeypatch.undo()
    stopped = whole.parents[1] / "stopped"
    stopped.rename(whole.parents[1] / "moved")
    model = train("moved", **settings)
    weights = (whole / "model.safetensors").read_bytes()
    assert (model / "model.safetensors").read_bytes() == weights


def test_the_start_is_kept_where_no_checkpoint_ranks_dev_queries_better(train, retriever, with_dev):
    settings = {"encoder": str(retriever), "collection": str(with_dev), "pooling": "cls"}
    model = train(**settings, learning_rate=1.0, max_steps=6)
    figures = dev_entries(model.parent)
    assert sorted(figures) == [0, 6] and figures[6] <= figures[0]
    expected, actual = (load_file(folder / "model.safetensors") for folder in (retriever, model))
    assert all(actual[name].equal(weight) for name, weight in expected.items())
    assert "no checkpoint is better than the start" in (model / "README.md").read_text()


@pytest.mark.parametrize(("max_steps", "expected"), [(12, 1), (40, 3), (10_000, 5)])
def test_rankings_read_no_more_texts_than_the_training(
    train, with_dev, monkeypatch, max_steps, expected
):
    """40 dev queries and 60 passages, and steps of 4 queries and 4 passages."""
    started = []
    monkeypatch.setattr(RetrieverTrainer, "train", lambda self, *_: started.append(self))
    monkeypatch.setattr(RetrieverTrainer, "write_model", lambda self: None)
    train(collection=str(with_dev), max_steps=max_steps)
    [trainer] = started
    share = trainer.args.eval_steps
    assert share == trainer.args.save_steps
    assert (round(1 / share) if share < 1 else 1) == expected


@pytest.mark.slow
def test_the_pushed_card_has_the_verdict(loopback_hub, train, encoder, with_dev):
    name = "owner/retriever"
    settings = {"encoder": str(encoder), "collection": str(with_dev), "pooling": "cls"}
    model = train(**settings, push_to_hub=True, hub_model_id=name)
    files = loopback_hub.repo(name).files()
    assert files["README.md"] == (model / "README.md").read_bytes()
    assert b"Verdict against its start: " in files["README.md"]
    assert not [file for file in files if file.endswith((".bin", ".pt", ".pth"))]


def test_without_dev_queries_or_on_request_the_last_weights_are_kept(
    train, collection, encoder, with_dev, caplog
):
    settings = {"encoder": str(encoder), "pooling": "cls"}
    for name, changes in (
        ("without", {"collection": str(collection)}),
        ("unused", {"collection": str(with_dev), "load_best_model_at_end": False}),
        ("unsaved", {"collection": str(with_dev), "save_strategy": "no"}),
    ):
        model = train(name, **settings, **changes)
        assert not dev_entries(model.parent)
        assert "verdict" not in read_provenance(model)[-1].run
        # A checkpoint at the end, and every five minutes.
        n_checkpoints = len([*model.parent.glob("checkpoint-*")])
        assert n_checkpoints == (0 if name == "unsaved" else 1)
    assert caplog.text.count("has 0 dev queries") == 1


def test_a_few_dev_queries_decide_nothing(train, encoder, with_dev, tmp_path, caplog):
    folder = shutil.copytree(with_dev, tmp_path / "collection")
    title, *lines = (folder / "qrels/dev.tsv").read_text().splitlines()
    few = sorted({line.split()[0] for line in lines})[:19]
    kept = [line for line in lines if line.split()[0] in few]
    (folder / "qrels/dev.tsv").write_text("\n".join([title, *kept]))
    model = train("few", encoder=str(encoder), pooling="cls", collection=str(folder))
    assert not dev_entries(model.parent)
    assert "has 19 dev queries" in caplog.text and "fewer than 20 decide nothing" in caplog.text


def test_other_dev_queries_are_other_data(train, encoder, with_dev, tmp_path):
    folder = shutil.copytree(with_dev, tmp_path / "collection")
    settings = {"encoder": str(encoder), "pooling": "cls", "collection": str(folder)}
    train("other", **settings)
    file = folder / "qrels/dev.tsv"
    file.write_text("\n".join(file.read_text().splitlines()[:-3]))
    with pytest.raises(ValueError, match="holds another run .*model or data"):
        train("other", **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"dataloader_num_workers": 2},
        {"mini_batch_size": 3},
        {"objective": "triplet", "n_negatives": 1},
    ],
)
def test_every_way_of_training_resumes_bit_equal(train, write_jsonl, texts, changes):
    """With dropout, and negatives that are drawn anew in each of 2 epochs of 3 steps."""
    rows = [
        {"query": texts[i][:40], "positive": texts[i], "negatives": texts[i + 60 : i + 70]}
        for i in range(12)
    ]
    settings = {"data": str(write_jsonl(rows)), "n_negatives": 2}
    settings |= {"query_max_length": 8, "passage_max_length": 16, "learning_rate": 1e-3}
    settings |= {"max_steps": -1, "num_train_epochs": 2, "logging_steps": 1}
    settings |= {"save_steps": 2, "save_total_limit": 1, **changes}
    whole = train("whole", **settings)
    with interrupted_at(5):
        train("stopped", **settings)
    stopped = whole.parents[1] / "stopped"
    assert not (stopped / "model").exists()
    (checkpoint,) = stopped.glob("checkpoint-*")
    assert checkpoint.name == "checkpoint-4"
    assert not (checkpoint / "README.md").exists()  # the library's card shows examples of the data
    resumed = train("stopped", **settings)
    first, second = (column(run.parent, "step", "loss", "grad_norm") for run in (whole, resumed))
    assert first == second and len(first) == 6
    weights = (whole / "model.safetensors").read_bytes()
    assert (resumed / "model.safetensors").read_bytes() == weights


@pytest.mark.slow
def test_two_devices_take_the_step_of_one_with_the_whole_batch(encoder, train, texts, tmp_path):
    # Queries share two positives, so that a query's positives are on the other device, too.
    passages = [{"_id": f"p{i}", "title": "", "text": texts[i + 30]} for i in range(12)]
    queries = [{"_id": f"q{i}", "text": texts[i][:30]} for i in range(24)]
    pairs = [(f"q{i}", f"p{i % 6 + more}", 1) for i in range(24) for more in (0, 6)]
    folder = write_collection(tmp_path / "c", passages, queries, train=pairs)
    settings = {"encoder": str(encoder), "collection": str(folder)}
    settings |= {"optim": "sgd", "learning_rate": 0.01, "lr_scheduler_type": "constant"}
    settings |= {"max_grad_norm": 0.0, "max_steps": 3, "dataloader_drop_last": True}
    one = train("one", **settings, pooling="cls", per_device_train_batch_size=8)
    two = {**settings, "output_dir": str(tmp_path / "two"), "per_device_train_batch_size": 4}
    two |= {"mini_batch_size": 2, "gather_across_devices": True, "ddp_backend": "gloo"}
    two |= {"use_cpu": True, "disable_tqdm": True}
    recipe = tmp_path / "two.yaml"
    recipe.write_text(yaml.safe_dump(two))
    launch(f"{TORCHRUN} --nproc-per-node 2 -m hub_scripts.main finetune {recipe}")
    start, first, second = (
        load_file(folder / "model.safetensors") for folder in (encoder, one, tmp_path / "two/model")
    )
    assert max((first[name] - start[name]).abs().max().item() for name in first) > 1e-3
    for name, weights in first.items():
        assert (second[name] - weights).abs().max().item() < 1e-5, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataloader_drop_last": True}, "ended after 0 steps"),
        ({"per_device_train_batch_size": 1}, "A batch is one pair, without negatives"),
        ({"train_size": 1}, "A batch is one pair, without negatives"),
    ],
)
def test_a_training_of_nothing_is_an_error(train, write_jsonl, tmp_path, changes, message):
    rows = [{"query": f"question {i}", "positive": f"answer {i // 2}"} for i in range(3)]
    with pytest.raises(ValueError, match=message):
        train(data=str(write_jsonl(rows)), **changes)
    assert not (tmp_path / "run" / "model").exists()
