"""The `condenser` command: its verbs, and `main`, which runs one.

A verb reads its settings, calls one stage, and prints the result. Its help is the docstring of its
function. Stages are imported where they are called, so that help starts at once.
"""

import argparse
import importlib.metadata
import inspect
import logging
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
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

# These verbs start without torch; opening an encoder imports and registers the model.
_WITHOUT_MODEL = ("collect", "evaluate", "mine", "search")


def pretrain(read: Reader) -> None:
    """Pre-train an encoder on your text; the same command continues an interrupted run.

    condenser pretrain pretrain/own-text --encoder google-bert/bert-base-uncased \\
        --corpus my-documents.jsonl --output_dir runs/mine
    """
    from modeling_condenser.pretraining.arguments import (
        CondenserTrainingArguments,
        PretrainingRecipe,
    )
    from modeling_condenser.pretraining.objectives import describe_objectives

    epilog = f"objectives:\n{describe_objectives()}\n{TRAINER_HELP}"
    settings = read(PretrainingRecipe, CondenserTrainingArguments, epilog=epilog)
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
        from modeling_condenser.retrieval.systems import System

        _print_next("search", System(str(out), {"dtype": "int8"}).text, "COLLECTION", "QUESTION")
    else:
        where = ("--collection", "COLLECTION", "--output_dir", f"{out}-finetuned")
        _print_next("finetune", "finetune/own-text", "--encoder", out, *where)


def finetune(read: Reader) -> None:
    """Fine-tune an encoder on labels, as a retriever or for pairs of sentences.

    condenser finetune finetune/own-text --encoder my-encoder --collection my-collection \\
        --output_dir runs/retriever
    """
    from transformers import TrainingArguments

    from modeling_condenser.finetuning.recipe import FinetuningRecipe

    settings = read(FinetuningRecipe, TrainingArguments, epilog=TRAINER_HELP)
    from modeling_condenser.files.models import (
        find_model_folder,
        read_contract,
        states_encoding,
    )
    from modeling_condenser.finetuning.finetune import finetune as stage
    from modeling_condenser.publishing.provenance import KEEPS_START, read_provenance

    folder = stage(**settings)
    print(f"retriever: {folder}")
    stages = read_provenance(folder)
    if not stages:  # a further machine of torchrun, where nothing is written
        return
    run = stages[-1].run
    if verdict := run.get("verdict"):
        print(f"on dev queries {verdict}")
    if KEEPS_START in run:
        _print_next("search", f"hybrid:{folder}", settings["collection"], "QUESTION")
    elif collection := settings.get("collection"):
        encoder = settings["encoder"]
        start = [encoder] if states_encoding(find_model_folder(encoder)) else []
        split = ("--split", "SPLIT") if settings.get("split") else ()
        # Of triplets, whose Euclidean distances no search has.
        is_euclidean = read_contract(folder).get("similarity") == "euclidean"
        system = f"{folder},similarity=cosine" if is_euclidean else folder
        _print_next("evaluate", system, *start, collection, *split, "--baseline", "bm25")


def encode(read: Reader) -> None:
    """Encode all passages of a collection; the same command continues an interrupted run.

    condenser encode my-encoder my-collection runs/embeddings
    condenser encode owner/encoder,pooling=mean my-collection runs/embeddings --devices cuda:0
    """
    from modeling_condenser.encoding.encode import EncodingRecipe
    from modeling_condenser.encoding.encode import encode as stage

    settings = read(EncodingRecipe, positional=("model", "collection", "out"))
    made = stage(**settings)
    record = made.record
    print(f"embeddings: {made.folder}")
    print(f"  {made.n_passages:,} passages of {made.dimension} numbers")
    if speed := record["passages_per_second"]:  # nothing was left to encode otherwise
        print(f"  {record['seconds']:.1f} s, {speed:,.0f} passages a second")
    if table := settings.get("table"):
        n_files = len(list(Path(table).glob("*.parquet")))
        print(f"table: {table} ({n_files} parquet files)")


def mine(read: Reader) -> None:
    """Find hard negatives for fine-tuning, with BM25 or any retriever.

    condenser mine bm25 my-collection negatives/bm25
    condenser mine my-retriever my-collection negatives/hard --first_rank 30 --n_negatives 10
    condenser mine mine/msmarco-passage my-retriever my-collection negatives/hard

    A system is bm25 (bm25,preset=msmarco-passage), an export, a sentence-transformers model, an
    encoder with a stated pooling (google-bert/bert-base-uncased,pooling=mean), or a TREC run file.
    """
    from modeling_condenser.finetuning.recipe import MiningRecipe
    from modeling_condenser.retrieval.systems import SearchSettings

    words = ("system", "collection", "output_dir")
    settings = read(MiningRecipe, SearchSettings, positional=words)
    from modeling_condenser.files.run_folder import read_run
    from modeling_condenser.finetuning.mine import mine as stage

    file = stage(**settings)
    mined = read_run(file.parent)
    print(f"{mined['queries']:,} queries, {mined['negatives']:,} negatives")
    print(
        f"{mined['queries_without_negatives']:,} without any, {mined['queries_with_fewer']:,} with "
        f"fewer than asked for, {mined['queries_without_positive']:,} left out without a positive"
    )
    dropped = [f"{name} {n:,}" for name, n in mined["dropped"].items()]
    print(f"dropped: {', '.join(dropped) or 'none'}")
    print(f"negatives: {file}")
    split = ("--split", settings["split"]) if "split" in settings else ()
    collection = ("--collection", settings["collection"], *split)
    data = (*collection, "--negatives", file, "--n_negatives", 1)
    where = ("--encoder", "ENCODER", *data, "--output_dir", f"{file.parent}-finetuned")
    _print_next("finetune", "finetune/own-text", *where)


def adapt(read: Reader) -> None:
    """Adapt a retriever by judged queries of your text; the result is kept only if it is better.

    condenser adapt sentence-transformers/all-MiniLM-L6-v2 my-collection --output_dir runs/adapted

    Cross-validation over the judged queries decides, with the dev queries if there are some.
    """
    from modeling_condenser.adaptation.recipe import AdaptationRecipe

    settings = read(AdaptationRecipe, positional=("model", "collection", "output_dir"))
    from modeling_condenser.adaptation.adapt import adapt as stage

    done = stage(**settings)
    written = "the start"
    if done.is_adapted:
        written = "adapted" if done.sides == "query" else "adapted: encode all passages again"
    print(f"{done}\nwritten: {done.model} ({written})")
    _print_next("search", done.system, settings["collection"], "QUESTION")


def evaluate(read: Reader) -> None:
    """Search with retrievers or BM25, measure, and test whether the systems differ.

    condenser evaluate my-retriever my-collection --baseline bm25
    condenser evaluate evaluate/open-qa a b my-collection --split nq-test

    A system is an export, a sentence-transformers model, an encoder with a stated pooling
    (google-bert/bert-base-uncased,pooling=mean), a TREC run file, or bm25 (bm25,k1=0.9,b=0.4).
    """
    from modeling_condenser.evaluation.evaluate import EvaluationRecipe
    from modeling_condenser.evaluation.evaluate import evaluate as stage
    from modeling_condenser.retrieval.systems import SearchSettings

    settings = read(EvaluationRecipe, SearchSettings, positional=("systems", "collection"))
    report = stage(**settings)
    print(f"{report}\n\nreport: {report.file}")


def search(read: Reader) -> None:
    """Show the best passages for queries.

    condenser search my-encoder my-collection "how do I sort a list" -k 10
    condenser search bm25 my-collection --json < questions.txt

    Without a query, queries are read from standard input, one per line. The first search encodes
    the collection and stores the embeddings where `condenser evaluate` does.
    """
    from modeling_condenser.retrieval.systems import SearchSettings

    from .search import SearchRecipe, run

    run(**read(SearchRecipe, SearchSettings, positional=("model", "collection", "query")))


def analyze(read: Reader) -> None:
    """Measure whether models are ready for fine-tuning, and when to stop pre-training.

    condenser analyze runs/mine what-happened --collection my-collection
    condenser analyze my-encoder runs/retriever/model what-changed --corpus my-documents.jsonl
    condenser analyze my-encoder runs/retriever/model entropies --texts 1000 \\
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
    condenser push runs/retriever owner/my-retriever --license apache-2.0 --private
    condenser push runs/mine owner/my-condenser --license apache-2.0 --revision experiment

    Pickles and tokens are refused; the card must name a license; and the repository must open in a
    process without this package installed. A dry run prints the model card and sends nothing. Files
    that are already on the Hub are not sent again.
    """
    from modeling_condenser.publishing.push import PushRecipe
    from modeling_condenser.publishing.push import push as stage

    report = stage(**read(PushRecipe, positional=("folder", "name")))
    if report.commit is None:
        print(f"{report.card}\n")
    for path, size in report.sizes.items():
        print(f"{size:>14,} bytes  {path}")
    print(f"{sum(report.sizes.values()):>14,} bytes in {len(report.sizes)} files")
    if report.commit is None:
        print("dry run: nothing was sent; the model card is above")
    else:
        url, name = report.commit.commit_url, report.commit.repo_url.repo_id
        print(f"pushed: {url}\npin it: {name}@{report.commit.oid}")


def collect(read: Reader) -> None:
    """Make a collection of your files: passages, and queries and judgements of your labels.

    condenser collect my-files my-collection
    condenser collect wiki handbook faq.csv my-collection --labels pairs.csv --model my-encoder

    Reads .txt, .rst, .md, .html, .pdf, .docx, .pptx, .epub, .csv, .tsv, .jsonl, .json and
    .parquet files.
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
        _print_next("search", "bm25", done.folder, "QUESTION")


def _print_next(*words: object) -> None:
    """Print the command that follows; the user replaces words in capitals."""
    print(f"next: {shlex.join(['condenser', *map(str, words)])}")


COMMANDS: dict[str, Callable[[Reader], None]] = {
    function.__name__: function
    for function in (
        *(collect, search, evaluate, adapt, finetune, mine, pretrain, export),
        *(analyze, encode, push),
    )
}


def main(words: list[str] | None = None) -> int:
    """Run a verb with the words behind `condenser`, by default those of this process.

    Returns:
        The exit status: 0, 2 after an error that the user can correct, or 130 if the user
        interrupted. With CONDENSER_DEBUG=1 the error is raised.
    """
    verb, rest = _parse(words)
    _configure_logging()
    if words is None:
        for stream in (sys.stdin, sys.stdout):  # of Windows, if they are files
            getattr(stream, "reconfigure", lambda **_: None)(encoding="utf-8")
    if words is None and not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "10")  # seconds, in a log file
    # Blocks are built in several processes, each of which tokenizes with one thread.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if words is None and os.environ.get("RANK", "0") != "0":  # the first process speaks for all
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for the rest of the process
    if verb in _WITHOUT_MODEL or {"-h", "--help"} & set(rest):
        os.environ["CONDENSER_LAZY"] = "1"  # no torch, which takes seconds
    try:
        _run(verb, rest)
    except KeyboardInterrupt:
        return _end_interrupted()
    except Exception as error:
        if _was_interrupted(error):
            return _end_interrupted()
        if not isinstance(error, ValueError | OSError):
            raise
        if os.environ.get("CONDENSER_DEBUG"):
            raise
        sys.stderr.write(f"error: {error}\n")
        return 2
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()  # its threads can abort a process that exits
    return 0


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether an error comes of an interruption, as where processes of `datasets` are ended."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _end_interrupted() -> int:
    sys.stderr.write("interrupted: what was stored is kept for the same command\n")
    return 130  # as shells do


def _parse(words: list[str] | None) -> tuple[str, list[str]]:
    """The verb, and the words behind it."""
    abouts = {verb: inspect.getdoc(function) or "" for verb, function in COMMANDS.items()}
    lines = [f"  {verb:<10}{about.splitlines()[0]}" for verb, about in abouts.items()]
    parser = argparse.ArgumentParser(
        prog="condenser",
        usage="condenser VERB [RECIPE.yaml] [WORD ...] [--field value ...]",
        description="Pre-train encoders for retrieval, fine-tune and publish them, search with "
        "them, and measure it all.",
        epilog="\n".join(["verbs:", *lines, "", "`condenser VERB --help` lists its fields."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"condenser {importlib.metadata.version('condenser')}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("verb", choices=COMMANDS, metavar="VERB", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    if not (sys.argv[1:] if words is None else words):
        parser.print_help()
        parser.exit(2)
    arguments = parser.parse_args(words)
    return arguments.verb, arguments.words


def _configure_logging() -> None:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("modeling_condenser").setLevel(logging.INFO)
    logging.getLogger("huggingface_hub").propagate = False  # it has a handler of its own
    logging.getLogger("pdfminer").setLevel(logging.ERROR)  # its warnings do not name the file


def _run(verb: str, words: list[str]) -> None:
    from tqdm.contrib.logging import logging_redirect_tqdm  # tqdm reads the environment

    from modeling_condenser.files.settings import read_settings

    os.environ.pop("CONDENSER_LAZY", None)  # processes that the verb starts would read it
    function = COMMANDS[verb]
    # In a terminal, a message goes above a bar, not behind it.
    with logging_redirect_tqdm() if sys.stderr.isatty() else nullcontext():
        function(partial(read_settings, verb, words, about=inspect.getdoc(function)))


if __name__ == "__main__":
    sys.exit(main())
