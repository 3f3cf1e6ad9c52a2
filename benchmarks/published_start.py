"""What adapting and pre-training do to a published model, on five collections.

    python -m benchmarks.published_start collections DATA OUT [--whole]
    python -m benchmarks.published_start run MODEL OUT COLLECTION --arms untouched adapt --sizes 128
    python -m benchmarks.published_start page OUT PAGE

DATA holds BEIR folders `docstrings`, `medquad`, `boolq` and `squad`; `health` comes with the
package. Each is reduced to some queries of each split, their judged passages, and a fixed random
sample of others, so figures must not be compared with those of whole collections; with `--whole`,
only queries of dev and test are sampled, where there are many. squad has no dev queries: half of
its test queries become dev queries, by a hash of their passage.

A run that was interrupted continues. Arms: `untouched`; `adapt` (by its dev queries) and `adapt
without dev queries`, kept whatever the verdict is; and the objectives of `_OBJECTIVES`, each for
the same number of steps. Sizes are numbers of labels, or `all`; 0, without fine-tuning, is always
measured.
With labels, `adapt` adapts what `untouched` became by fine-tuning, `adapt with labels` adapts the
model itself, with the labels as judged queries, and `mixed` fine-tunes it with labels and
distillation together.
"""

import argparse
import hashlib
import heapq
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from modeling_condenser.adaptation.adapt import VERDICT_FILE, adapt, read_adaptation
from modeling_condenser.collection.beir import CORPUS_FILE, QRELS_FOLDER, QUERIES_FILE
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation.significance import compare, correct
from modeling_condenser.evaluation.system_results import Evaluator, SystemResult
from modeling_condenser.files.atomic import write_json
from modeling_condenser.files.models import read_json
from modeling_condenser.files.run_folder import MODEL_FOLDER, describe_machine
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.retrieval.dense import EMBEDDINGS_FOLDER
from modeling_condenser.retrieval.fusion import choose_fusion
from modeling_condenser.retrieval.runs import read_run, write_run
from modeling_condenser.retrieval.systems import parse_system

from .mixed_finetuning import finetune_mixed

NAMES = ("health", "docstrings", "medquad", "boolq", "squad")
MEASURE, DEPTH = "nDCG@10", 100
ALL = "all"
Size = int | str
"""A number of labels, or `ALL`."""


@dataclass(frozen=True)
class Limits:
    """How much of a collection is kept: queries of each split, and passages that none judges."""

    dev: int
    test: int
    train: int | None
    others: int | None


REDUCED = Limits(dev=300, test=400, train=512, others=1800)
WHOLE = Limits(dev=1000, test=2000, train=None, others=None)
_OBJECTIVES: dict[str, dict[str, Any]] = {
    "mlm": {"objective": "mlm"},
    "condenser": {"objective": "condenser"},
    "ict": {"objective": "ict", "similarity": "cosine", "temperature": 0.05},
    "cocondenser": {"objective": "cocondenser", "similarity": "cosine", "temperature": 0.05},
    "tsdae": {"objective": "tsdae"},
}
_ADAPT = ("adapt", "adapt without dev queries")
_WITH_LABELS, _MIXED = "adapt with labels", "mixed"
ARMS = ("untouched", *_ADAPT, _WITH_LABELS, _MIXED, *_OBJECTIVES)


def make_collections(data: Path, out: Path, limits: Limits) -> None:
    """Write the collections to `out`."""
    for name in NAMES:
        if not (out / name).exists():
            source = name if name == "health" else str(data / name)
            print(f"{name}: {reduce(source, out / name, limits):,} passages")


def reduce(source: str, out: Path, limits: Limits) -> int:
    """Write a part of a collection; return its number of passages."""
    splits = {split: load_collection(source, split=split) for split in ("train", "test")}
    judged = {split: dict(own.qrels) for split, own in splits.items()}
    try:
        splits["dev"] = load_collection(source, split="dev")
        judged["dev"] = dict(splits["dev"].qrels)
    except ValueError:
        both, splits["dev"] = judged["test"], splits["test"]
        for split, half in (("dev", 0), ("test", 1)):
            judged[split] = {q: g for q, g in both.items() if _hash(min(g)) % 2 == half}
    texts = {q: text for own in splits.values() for q, text in own.queries.items()}
    kept = {
        split: {q: own[q] for q in _sample(own, getattr(limits, split))}
        for split, own in judged.items()
    }
    passages = splits["test"].passages
    ids = set(passages["_id"])
    wanted = {p for own in kept.values() for grades in own.values() for p in grades}
    wanted |= set(_sample(ids - wanted, limits.others))
    chosen = [row for row in passages if row["_id"] in wanted]
    (out / QRELS_FOLDER).mkdir(parents=True)
    _write_rows(out / CORPUS_FILE, chosen)
    names = [q for own in kept.values() for q in own]
    _write_rows(out / QUERIES_FILE, [{"_id": q, "text": texts[q]} for q in names])
    for split, own in kept.items():
        rows = [f"{q}\t{p}\t{grade}" for q, grades in own.items() for p, grade in grades.items()]
        text = "\n".join(["query-id\tcorpus-id\tscore", *rows, ""])
        (out / QRELS_FOLDER / f"{split}.tsv").write_text(text, "utf-8")
    return len(chosen)


def _sample(names: Iterable[str], most: int | None) -> list[str]:
    """The names with the smallest hashes; all without a limit."""
    return list(names) if most is None else heapq.nsmallest(most, names, key=_hash)


def _write_rows(file: Path, rows: Iterable[Any]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.write_text("".join(lines), "utf-8")


def _hash(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)


class Runs:
    """The arms of one collection."""

    def __init__(self, model: str, out: Path, name: str, *, steps: int = 50) -> None:
        self.model, self.out, self.steps = model, out / name, steps
        self.collection = str(out / "collections" / name)
        self.collections = {
            split: load_collection(self.collection, split=split) for split in ("dev", "test")
        }
        self.bm25 = {split: self.evaluate("bm25", "bm25", split) for split in ("test", "dev")}

    def evaluate(self, system: str, cell: str, split: str) -> SystemResult:
        folder = self.out / cell
        evaluator = Evaluator(
            self.collections[split],
            lambda _: (folder / split, folder),
            split=split,
            depth=DEPTH,
            measures=[MEASURE, "MRR@10"],
        )
        return evaluator.evaluate(parse_system(system))

    def run(self, arm: str, sizes: list[Size], seeds: list[int]) -> None:
        """Measure an arm without labels and with each number of them."""
        if arm not in (_WITH_LABELS, _MIXED):
            encoder = self.make(arm)
            self.measure(encoder, f"{arm}/0")
        for size, seed in ((size, seed) for size in sizes for seed in seeds):
            cell = f"{size}-{seed}"
            if arm == _WITH_LABELS:
                found = self.adapt(self.model, arm, cell, size, seed)
            elif arm == _MIXED:
                settings = self.finetuning(self.model, size, seed, self.out / arm / cell / "run")
                found = finetune_mixed(settings, self.embeddings("0"))
            elif arm in _ADAPT:
                start = self.out / ARMS[0] / cell / "run" / MODEL_FOLDER
                found = self.adapt(str(start), arm, cell)
            else:
                own = self.out / arm / cell / "run"
                found = str(finetune(self.finetuning(encoder, size, seed, own)))
            self.measure(found, f"{arm}/{cell}")

    def finetuning(self, encoder: str, size: Size, seed: int, out: Path) -> dict[str, Any]:
        """The settings of a fine-tuning."""
        return {
            "encoder": encoder,
            "collection": self.collection,
            "train_size": None if size == ALL else size,
            "subset_seed": seed,
            "seed": seed,
            "temperature": 0.05,
            "query_max_length": 64,
            "per_device_train_batch_size": 32,
            "num_train_epochs": 5,
            "learning_rate": 5e-5,
            "warmup_steps": 0.1,
            "load_best_model_at_end": False,
            "output_dir": str(out),
        }

    def embeddings(self, cell: str) -> Path:
        """The stored vectors of what `untouched` is in a cell."""
        return self.out / ARMS[0] / cell / EMBEDDINGS_FOLDER

    def adapt(self, model: str, arm: str, cell: str, size: Size = 0, seed: int = 0) -> str:
        corpus = self.collection
        if arm == _WITH_LABELS:
            corpus = str(self.with_labels(size, seed))
        elif arm != _ADAPT[0]:
            corpus = str(self.out / "passages")
            if not Path(corpus).exists():
                Path(corpus).mkdir()
                shutil.copy(Path(self.collection) / CORPUS_FILE, corpus)
        settings = {
            "model": model,
            "corpus": corpus,
            "output_dir": str(self.out / arm / cell / "made"),
            "embeddings": str(self.embeddings("0" if arm == _WITH_LABELS else cell)),
            "keep_adapted": True,
            "labels": arm == _WITH_LABELS,
        }
        return str(adapt(settings).model)

    def with_labels(self, size: Size, seed: int) -> Path:
        """The collection with `size` of its judgements for training."""
        if size == ALL:
            return Path(self.collection)
        folder = self.out / "labels" / f"{size}-{seed}"
        if not folder.exists():
            shutil.copytree(self.collection, folder)
            file = folder / QRELS_FOLDER / "train.tsv"
            title, *rows = file.read_text("utf-8").splitlines()
            chosen = np.random.default_rng(seed).permutation(len(rows))[:size]
            file.write_text("\n".join([title, *(rows[i] for i in sorted(chosen)), ""]), "utf-8")
        return folder

    def make(self, arm: str) -> str:
        """The folder of an arm's encoder."""
        if arm == ARMS[0]:
            return self.model
        if arm in _ADAPT:
            return self.adapt(self.model, arm, "0")
        encoder = self.out / arm / "encoder"
        if not encoder.is_dir():
            settings = {
                "encoder": self.model,
                "corpus": str(Path(self.collection) / CORPUS_FILE),
                "max_length": 128,
                "max_steps": self.steps,
                "per_device_train_batch_size": 32,
                "learning_rate": 3e-5,
                "warmup_steps": 0.1,
                "output_dir": str(self.out / arm / "0" / "made"),
                **_OBJECTIVES[arm],
            }
            export_encoder(pretrain(settings), encoder)
        return str(encoder)

    def measure(self, encoder: str, cell: str) -> None:
        """Write the figures of an encoder, alone and fused with BM25, as the dev queries choose."""
        file = self.out / cell / "figures.json"
        if file.is_file():
            return
        dev, test = (self.evaluate(encoder, cell, split) for split in ("dev", "test"))
        fusion = choose_fusion(
            read_run(self.bm25["dev"].run_file),
            read_run(dev.run_file),
            self.collections["dev"].qrels,
        )
        fused = self.out / cell / "fused.trec"
        write_run(
            fusion.fuse(read_run(self.bm25["test"].run_file), read_run(test.run_file), depth=DEPTH),
            fused,
            tag="fused",
        )
        both = self.evaluate(str(fused), f"{cell}/fused", "test")
        write_json(
            file,
            {
                "alone": test.evaluation.per_query[MEASURE],
                "fused": both.evaluation.per_query[MEASURE],
                "dev": dev.evaluation.means[MEASURE],
                "fusion": str(fusion),
                **describe_machine(),
            },
        )
        print(
            f"{self.out.name} {cell}: {test.evaluation.means[MEASURE]:.3f}, "
            f"fused {both.evaluation.means[MEASURE]:.3f}",
            flush=True,
        )


class Page:
    """The tables of all runs in a folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        files = sorted(out.glob("*/*/*/figures.json"))
        self.found = {file.parts[-4:-1]: read_json(file, {}) for file in files}
        self.names = [name for name in NAMES if any(key[0] == name for key in self.found)]
        self.sizes = sorted({_size(key[2]) for key in self.found}, key=_order)
        self.values = {
            (name, arm, size, how): values
            for name, arm, size in product(self.names, ARMS, self.sizes)
            for how in ("alone", "fused")
            if (values := self.mean(name, arm, size, how))
        }
        self.tests = correct(
            {
                key: compare(
                    self.mean(*key, like=ARMS[0]), self.mean(key[0], ARMS[0], *key[2:], like=key[1])
                )
                for key in self.values
                if key[1] != ARMS[0] and (key[0], ARMS[0], *key[2:]) in self.values
            }
        )

    def cells(self, name: str, arm: str, size: Size) -> list[str]:
        """The cells of an arm: one for each seed."""
        return [key[2] for key in self.found if key[:2] == (name, arm) and _size(key[2]) == size]

    def mean(
        self, name: str, arm: str, size: Size, how: str, *, like: str | None = None
    ) -> dict[str, float]:
        """Each query's mean over the seeds, or over those that another arm has, too."""
        names = self.cells(name, like or arm, size)
        keys = [key for cell in names if (key := (name, arm, cell)) in self.found]
        cells = [self.found[key][how] for key in keys]
        return {q: fmean(cell[q] for cell in cells) for q in cells[0]} if cells else {}

    def bm25(self, name: str) -> float:
        file = self.out / name / "bm25" / "test" / "metrics.json"
        return float(read_json(file, {})["evaluation"]["means"][MEASURE])

    def write(self, file: Path) -> None:
        """Replace what stands between the two marks of the page."""
        start, end = "<!-- tables -->\n", "<!-- end of tables -->"
        before, _, rest = file.read_text("utf-8").partition(start)
        parts = [self.table(size, how) for size in self.sizes for how in ("alone", "fused")]
        text = "\n".join([*parts, self.verdicts()])
        file.write_text(f"{before}{start}\n{text}\n{end}{rest.partition(end)[2]}", "utf-8")

    def table(self, size: Size, how: str) -> str:
        """Arms by collections; a mark where an arm differs significantly from the first one."""
        title = f"{MEASURE}, {size or 'no'} labels, " + ("alone" if how == "alone" else "with BM25")
        rows = [[title, *self.names, "mean"], ["---", *["---:"] * (len(self.names) + 1)]]
        if (size, how) == (0, "alone"):
            rows.append(self.row("BM25", {name: self.bm25(name) for name in self.names}))
        for arm in ARMS:
            figures = {
                name: fmean(self.values[key].values())
                for name in self.names
                if (key := (name, arm, size, how)) in self.values
            }
            marks = {name: self.mark((name, arm, size, how)) for name in figures}
            if figures:
                counts = sorted({len(self.cells(name, arm, size)) for name in figures})
                n_seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
                seeds = f", {n_seeds} seed{'s' * (counts[-1] > 1)}" if size else ""
                rows.append(self.row(f"{arm}{seeds}", figures, marks))
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)

    def row(
        self, title: str, figures: dict[str, float], marks: dict[str, str] | None = None
    ) -> list[str]:
        cells = [
            f"{figures[name]:.3f}{(marks or {}).get(name, '')}".lstrip("0")
            if name in figures
            else ""
            for name in self.names
        ]
        whole = len(figures) == len(self.names)
        return [title, *cells, f"{fmean(figures.values()):.3f}".lstrip("0") if whole else ""]

    def mark(self, key: tuple[str, str, Size, str]) -> str:
        test = self.tests.get(key)
        return f" {test.mark}" if test and test.is_significant else ""

    def verdicts(self) -> str:
        """Each verdict, beside what the test queries say of the same model."""
        rows = ["| | verdict | test queries (p uncorrected) |", "| --- | --- | --- |"]
        cells = sorted({key[2] for key in self.found}, key=lambda cell: (_order(_size(cell)), cell))
        for name, arm, cell in product(self.names, ARMS, cells):
            made = self.out / name / arm / cell / "made"
            if (name, arm, cell) not in self.found or not (made / VERDICT_FILE).is_file():
                continue
            start = self.found[name, ARMS[0], "0" if arm == _WITH_LABELS else cell]
            verdict = read_adaptation(made).verdict
            test = compare(self.found[name, arm, cell]["alone"], start["alone"])
            own, (size, _, seed) = verdict.comparison, cell.partition("-")
            title = f"{name}, {arm}" + (f", {size} labels, seed {seed}" if seed else "")
            rows.append(
                f"| {title} | {verdict.outcome}: {own.difference:+.3f}, "
                f"p = {own.p_value:.2g} | {test.difference:+.3f}, p = {test.p_value:.2g} |"
            )
        return "\n".join([*rows, ""])


def _size(cell: str) -> Size:
    size = cell.partition("-")[0]
    return size if size == ALL else int(size)


def _order(size: Size) -> float:
    return float("inf") if size == ALL else float(size)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("collections")
    verb.add_argument("data", type=Path)
    verb.add_argument("out", type=Path)
    verb.add_argument("--whole", action="store_true")
    verb = verbs.add_parser("run")
    verb.add_argument("model")
    verb.add_argument("out", type=Path)
    verb.add_argument("collection")
    verb.add_argument("--arms", nargs="+", default=["untouched", "adapt"])
    verb.add_argument("--sizes", nargs="*", type=_size, default=[])
    verb.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    verb.add_argument("--steps", type=int, default=50, help="of the objectives (default: 50)")
    verb = verbs.add_parser("page")
    verb.add_argument("out", type=Path)
    verb.add_argument("page", type=Path)
    options = parser.parse_args()
    if options.verb == "collections":
        make_collections(options.data, options.out, WHOLE if options.whole else REDUCED)
    elif options.verb == "page":
        Page(options.out).write(options.page)
    else:
        runs = Runs(options.model, options.out, options.collection, steps=options.steps)
        for arm in options.arms:
            runs.run(arm, options.sizes, options.seeds)


if __name__ == "__main__":
    main()
