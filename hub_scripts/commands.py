"""The verbs of `condenser`: each reads its settings, calls one stage, and prints the result.

A verb's help is the docstring of its function. Stages are imported where they are called, so that
help starts at once.
"""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TRAINER_HELP = """the trainer's main fields:
  --output_dir                   folder of the run
  --max_steps                    steps of the optimizer
  --num_train_epochs             passes over the data, unless max_steps is set
  --learning_rate                the highest
  --warmup_steps                 steps, or share of all steps, in which the learning rate rises
  --per_device_train_batch_size  blocks or examples in a batch of one device
  --gradient_accumulation_steps  batches for one step
  --logging_steps, --save_steps  steps between log entries, and between checkpoints
  --bf16, --use_cpu              true or false
  --seed                         of weights, order and dropout
All fields of transformers' TrainingArguments are accepted too."""

Reader = Callable[..., dict[str, Any]]
"""`read_settings` of a verb and its words: takes the dataclasses of a stage, returns settings."""


def pretrain(read: Reader) -> None:
    """Pre-train an encoder on your text; the same command continues an interrupted run.

    condenser pretrain pretrain/own-text --encoder google-bert/bert-base-uncased \\
        --corpus my-documents.jsonl --output_dir runs/mine
    """
    from modeling_condenser.pretraining.arguments import (
        CondenserTrainingArguments,
        PretrainingRecipe,
    )

    settings = read(PretrainingRecipe, CondenserTrainingArguments, epilog=TRAINER_HELP)
    from modeling_condenser.pretraining.pretrain import pretrain as train

    callbacks = []
    if settings.get("readiness") is not None:
        from modeling_condenser.analysis.callback import readiness_callbacks

        callbacks = readiness_callbacks(settings)
    folder = train(**settings, callbacks=callbacks)
    if settings.get("prepare_only"):
        print(f"blocks: {folder}")
        return
    print(f"checkpoint: {folder}")
    _print_next("export", folder.parent, f"{folder.parent}-encoder")


def export(read: Reader) -> None:
    """Write the plain encoder of a pre-training run, or any model with an int8 file, to a folder.

    condenser export runs/mine my-encoder
    condenser export runs/retriever/model my-retriever --onnx int8
    """
    from modeling_condenser.files.models import INT8_FILE
    from modeling_condenser.publishing.export import ExportRecipe
    from modeling_condenser.publishing.export import export as stage

    out = stage(**read(ExportRecipe, positional=("checkpoint", "out")))
    print(f"encoder: {out}")
    if (out / INT8_FILE).is_file():
        words = ("search", f"{out},dtype=int8", "COLLECTION", "QUESTION")
        _print_next(*words, yours="COLLECTION and QUESTION")
    else:
        where = ("--collection", "COLLECTION", "--output_dir", f"{out}-finetuned")
        _print_next("finetune", "finetune/own-text", "--encoder", out, *where, yours="COLLECTION")


def finetune(read: Reader) -> None:
    """Fine-tune an encoder on labels, as a retriever or for pairs of sentences.

    condenser finetune finetune/own-text --encoder my-encoder --collection my-collection \\
        --output_dir runs/retriever
    """
    from transformers import TrainingArguments

    from modeling_condenser.finetuning.recipe import FinetuningRecipe

    settings = read(FinetuningRecipe, TrainingArguments, epilog=TRAINER_HELP)
    from modeling_condenser.files.contract import states_encoding
    from modeling_condenser.files.models import find_model_folder
    from modeling_condenser.finetuning.finetune import finetune as stage
    from modeling_condenser.publishing.provenance import read_provenance

    folder = stage(**settings)
    print(f"retriever: {folder}")
    if verdict := read_provenance(folder)[-1].run.get("verdict"):
        print(f"on dev queries {verdict}")
    data = settings.get("collection") or "COLLECTION"
    words, yours = [data, "--baseline", "bm25"], "" if settings.get("collection") else data
    if settings.get("objective") == "mse_cosine":
        words, yours = ["TEST_PAIRS.csv", "--task", "graded_pairs"], "TEST_PAIRS.csv"
    elif settings.get("objective") == "triplet" and settings.get("similarity") != "cosine":
        words, yours = ["TEST_TRIPLETS.csv", "--task", "triplets"], "TEST_TRIPLETS.csv"
    encoder = settings["encoder"]
    start = [encoder] if states_encoding(find_model_folder(encoder)) else []
    _print_next("evaluate", folder, *start, *words, yours=yours)


def encode(read: Reader) -> None:
    """Encode all passages of a collection; the same command continues an interrupted run.

    condenser encode my-encoder my-collection runs/embeddings
    condenser encode owner/encoder,pooling=mean my-collection runs/embeddings --devices cuda:0
    """
    from modeling_condenser.encoding.recipe import EncodingRecipe

    settings = read(EncodingRecipe, positional=("model", "collection", "out"))
    from modeling_condenser.encoding.encode import encode as stage

    made = stage(**settings)
    record = made.record
    print(f"embeddings: {made.folder}")
    print(f"  {made.n_passages:,} passages of {made.dimension} numbers")
    if speed := record["passages_per_second"]:  # nothing was left to encode otherwise
        memory = record["peak_accelerator_bytes"] or record["peak_memory_bytes"]
        print(f"  {record['seconds']:.1f} s, {speed:,.0f} passages a second, {memory / 1e9:.2f} GB")
    if table := settings.get("table"):
        n_files = len(list(Path(table).glob("*.parquet")))
        print(f"table: {table} ({n_files} parquet files)")


def mine(read: Reader) -> None:
    """Find hard negatives for fine-tuning, with BM25 or any retriever.

    condenser mine bm25 my-collection negatives/bm25
    condenser mine my-retriever my-collection negatives/hard --first_rank 30 --n_negatives 10
    condenser mine mine/rocketqa.yaml my-retriever my-collection negatives/denoised

    A system is bm25 (bm25,preset=msmarco-passage), an export, a sentence-transformers model, an
    encoder with a stated pooling (google-bert/bert-base-uncased,pooling=mean), or a TREC run file.
    """
    from modeling_condenser.finetuning.recipe import MiningRecipe
    from modeling_condenser.retrieval.dense import SearchSettings

    words = ("system", "collection", "output_dir")
    settings = read(MiningRecipe, SearchSettings, positional=words)
    from modeling_condenser.files.run_folder import read_run
    from modeling_condenser.finetuning.mine import mine as stage

    file = stage(**settings)
    facts = read_run(file.parent)
    print(f"{facts['queries']:,} queries, {facts['negatives']:,} negatives")
    print(
        f"{facts['queries_without_negatives']:,} without any, {facts['queries_with_fewer']:,} with "
        f"fewer than asked for, {facts['queries_without_positive']:,} left out without a positive"
    )
    dropped = [f"{name} {n:,}" for name, n in facts["dropped"].items()]
    print(f"dropped: {', '.join(dropped) or 'none'}")
    print(f"negatives: {file}")
    data = ("--collection", settings["collection"], "--negatives", file)
    where = ("--encoder", "ENCODER", *data, "--output_dir", f"{file.parent}-finetuned")
    _print_next("finetune", "finetune/own-text", *where, yours="ENCODER")


def adapt(read: Reader) -> None:
    """Adapt a retriever to your text without labels; the result is kept only if it is better.

    condenser adapt sentence-transformers/all-MiniLM-L6-v2 my-collection --output_dir runs/adapted

    The verdict is by the collection's dev queries, or else by queries made from the text.
    """
    from modeling_condenser.adaptation.recipe import AdaptationRecipe, MapSettings

    settings = read(AdaptationRecipe, MapSettings, positional=("model", "corpus"))
    from modeling_condenser.adaptation.adapt import adapt as stage

    done = stage(**settings)
    print(
        f"{done.verdict}\nwritten: {done.model} ({'adapted' if done.is_adapted else 'the start'})"
    )
    words = ("search", f"hybrid:{done.model}", settings["corpus"], "QUESTION")
    _print_next(*words, yours="QUESTION")


def evaluate(read: Reader) -> None:
    """Search with retrievers or BM25, measure, and test whether the systems differ.

    condenser evaluate my-retriever my-collection --baseline bm25
    condenser evaluate evaluate/open-qa a b my-collection --split nq-test

    A system is an export, a sentence-transformers model, an encoder with a stated pooling
    (google-bert/bert-base-uncased,pooling=mean), a TREC run file, or bm25 (bm25,k1=0.9,b=0.4).
    """
    from modeling_condenser.evaluation.evaluate import EvaluationRecipe
    from modeling_condenser.evaluation.evaluate import evaluate as stage
    from modeling_condenser.retrieval.dense import SearchSettings

    both, words = (EvaluationRecipe, SearchSettings), ("systems", "collection")
    report = stage(**read(*both, positional=words))
    print(f"{report}\n\nreport: {report.file}")


def search(read: Reader) -> None:
    """Show the best passages for queries.

    condenser search my-encoder my-collection "how do I sort a list" -k 10
    condenser search bm25 my-collection --json < questions.txt

    Without a query, queries are read from standard input, one per line. The first search encodes
    the collection and stores the embeddings where `condenser evaluate` does.
    """
    from modeling_condenser.retrieval.dense import SearchSettings

    from .search import SearchRecipe, run

    run(**read(SearchRecipe, SearchSettings, positional=("model", "collection", "query")))


def analyze(read: Reader) -> None:
    """Measure whether models are ready for fine-tuning, and when to stop pre-training.

    condenser analyze runs/mine what-happened --collection my-collection
    condenser analyze my-encoder runs/retriever/model what-changed --corpus my-documents.jsonl
    condenser analyze my-encoder runs/retriever/model figure-2 --recipe analyze/figure-2 \\
        --corpus my-documents.jsonl

    A model is a pre-training run (its checkpoints and its final model), a checkpoint, an export, a
    retriever, or any encoder, by folder or Hub name.
    """
    from modeling_condenser.analysis.recipe import AnalysisRecipe, Measuring

    settings = read(AnalysisRecipe, Measuring, positional=("models", "out"))
    from modeling_condenser.analysis.analyze import REPORT_FILE
    from modeling_condenser.analysis.analyze import analyze as stage

    table = stage(**settings).to_string(line_width=100, float_format="{:.4f}".format)
    print(f"{table}\n\nreport: {settings['out']}/{REPORT_FILE}")


def push(read: Reader) -> None:
    """Publish a model on the Hugging Face Hub, in one commit, after all checks.

    condenser push my-encoder owner/my-encoder --license apache-2.0 --dry-run
    condenser push runs/retriever owner/my-retriever --private
    condenser push runs/mine owner/my-condenser --revision experiment

    Pickles and tokens are refused; the card must name a license; and the repository must open in a
    process without this package installed. A dry run prints the model card and sends nothing. Files
    that are already on the Hub are not sent again.
    """
    from modeling_condenser.publishing.push import PushRecipe
    from modeling_condenser.publishing.push import push as stage

    report = stage(**read(PushRecipe, positional=("folder", "name")))
    if report.commit is None:
        print(f"{report.card}\n")
    _print_sizes(report.sizes)
    if report.commit is None:
        print("dry run: nothing was sent; the model card is above")
    else:
        url, name = report.commit.pr_url or report.commit.commit_url, report.commit.repo_url.repo_id
        print(f"pushed: {url}\npin it: {name}@{report.commit.oid}")


def _print_sizes(sizes: Mapping[str, int]) -> None:
    for path, size in sizes.items():
        print(f"{size:>14,} bytes  {path}")
    print(f"{sum(sizes.values()):>14,} bytes in {len(sizes)} files")


def collect(read: Reader) -> None:
    """Make a collection of your files: passages, and queries and judgements of your labels.

    condenser collect my-files my-collection
    condenser collect wiki handbook faq.csv my-collection --labels pairs.csv --model my-encoder

    Reads .txt, .md, .html, .pdf, .docx, .pptx, .epub, .csv, .tsv, .jsonl, .json and .parquet files.
    """
    from modeling_condenser.collection import collect as stage

    done = stage.collect(**read(stage.CollectRecipe, positional=("sources", "out")))
    print(f"{done}\ncollection: {done.folder}")
    if done.questions:
        # Few labels may all be in one split, and evaluations read `test`.
        largest = max(done.questions, key=done.questions.__getitem__)
        where = () if done.questions["test"] else ("--split", largest)
        _print_next("evaluate", "bm25", done.folder, *where)
    else:
        _print_next("search", "bm25", done.folder, "QUESTION", yours="QUESTION")


def _print_next(*words: object, yours: str = "") -> None:
    """Print the command that follows; `yours` is a word in it that the user replaces."""
    label = f"next, with your {yours}" if yours else "next"
    print(f"{label}: {shlex.join(['condenser', *map(str, words)])}")


COMMANDS: dict[str, Callable[[Reader], None]] = {
    function.__name__: function
    for function in (
        *(collect, search, evaluate, adapt, finetune, mine, pretrain, export),
        *(analyze, encode, push),
    )
}
