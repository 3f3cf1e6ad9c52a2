"""Write a static search page of a collection, and publish it as a Space on the Hub.

The page holds everything that a search needs: passages, their int8 vectors, the scores of BM25, and
the encoder, which runs in the browser. Its rankings are those of `MODEL,precision=int8`, `bm25` and
`hybrid:MODEL,precision=int8,fusion=rrf` in this package.
"""

import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import yaml
from datasets import Dataset
from huggingface_hub import CommitInfo
from jinja2 import Template

from modeling_condenser.collection.collection import Collection, fingerprint_passages
from modeling_condenser.collection.load import load_collection, load_passages
from modeling_condenser.encoding.embeddings import id_column
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.card import CARD_FILE, read_card
from modeling_condenser.hub.provenance import hub_name
from modeling_condenser.hub.push import commit_folder, find_refusals
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.dense import DenseSearcher
from modeling_condenser.retrieval.stored_index import build_once
from modeling_condenser.retrieval.systems import System, open_searcher, parse_system

from .npm_files import fetch_npm_files
from .onnx_export import Weights, export_onnx

logger = logging.getLogger(__name__)

IDENTITY_FILE = "space.json"
MAX_PASSAGES = 100_000
N_EXAMPLES, _LONGEST_EXAMPLE = 6, 90  # queries, characters
_PAGE, _CARD = Path(__file__).with_name("page"), Path(__file__).with_name("README.md.jinja")
_UNCHECKED = ("data/", "npm/")  # texts of others, which may hold paths, and pinned code


@dataclass(frozen=True)
class SpaceReport:
    """A written Space.

    Attributes:
        folder: of the page.
        sizes: path in the folder -> bytes.
        commit: the newest commit after a push; None without one.
    """

    folder: Path
    sizes: dict[str, int]
    commit: CommitInfo | None = None


def write_space(
    model: str,
    collection: str,
    out: str | Path,
    *,
    split: str = "test",
    title: str | None = None,
    weights: Weights = "float16",
    text_length: int = 600,
    embeddings: str | None = None,
    license: str | None = None,
    push: str | None = None,
    private: bool | None = None,
    token: str | None = None,
) -> SpaceReport:
    """Write a static search page of a collection into a folder, or publish the one that is there.

    Args:
        model: a retriever, or an encoder with its pooling: MODEL,pooling=mean.
        collection: folder or Hub name, of at most 100,000 passages.
        out: new or empty folder; or a page of an earlier call with the same settings, which is
            left as it is.
        split: whose queries are the examples: six short ones, evenly spaced.
        title: of the page; by default it names the collection.
        weights: of the encoder, float16 (half the size) or float32.
        text_length: characters of a passage that are shown; it is searched whole.
        embeddings: folder for the passages' embeddings, or with them; by default none is kept.
        license: such as apache-2.0; by default that of the model's card.
        push: owner/name of a Space to publish the page as, in one commit.
        private: whether a new Space is private.
        token: None for the one that is logged in, or HF_TOKEN.

    Raises:
        FileNotFoundError: there is no such model or collection.
        ValueError: a setting does not fit, the folder holds something else, or something must be
            corrected before publishing.
        OSError: the npm registry or the Hub failed.
    """
    out, system = Path(out), _read_system(model)
    passages, examples = _load(collection, split)
    if len(passages) > MAX_PASSAGES:
        raise ValueError(
            f"{collection} has {len(passages):,} passages, but a browser loads all of them: at most"
            f" {MAX_PASSAGES:,} are supported. Take a part, or a database (docs/databases.md)."
        )
    name = Path(collection).resolve().name
    retriever = system.without("precision").open(device="cpu")
    license = license or read_card(retriever.folder / CARD_FILE)[0].get("license")
    if push and not license:
        raise ValueError("no license is named: pass --license, such as --license apache-2.0")
    encoder = parse_system(model).name
    shown = {"title": title or f"Search in {name}", "text_length": text_length, "license": license}
    identity = {
        "retriever": retriever.fingerprint,
        "passages": fingerprint_passages(passages),
        "weights": weights,
        "split": split,
        **shown,
    }
    settings = {
        "title": shown["title"],
        "about": f"{len(passages):,} passages of {name}, by the encoder {encoder}.",
        "dimension": retriever.dimension,
        "queryPrompt": retriever.contract.query_prompt,
        "queryMaxLength": retriever.contract.query_max_length,
        "nEnding": _count_ending(retriever),
        "examples": examples,
    }
    metadata = {
        "title": shown["title"],
        "emoji": "🔎",
        "colorFrom": "blue",
        "colorTo": "gray",
        "sdk": "static",
        "license": license,
        "models": [hub_name(system.model)] if not Path(system.model).exists() else None,
        "datasets": [hub_name(collection)] if not Path(collection).exists() else None,
    }

    def build(folder: Path) -> None:
        _write_page(folder)
        _write_encoder(folder / "encoder", retriever, weights)
        with tempfile.TemporaryDirectory(prefix="condenser-space-") as scratch:
            place = Path(embeddings) if embeddings else None
            dense = open_searcher(system, passages, Path(scratch), embeddings=place)
            assert isinstance(dense, DenseSearcher)
            _write_data(folder / "data", passages, dense, text_length)
        _write_json(folder / "data" / "settings.json", settings)
        _write_card(folder / CARD_FILE, metadata, settings)

    build_once(out / IDENTITY_FILE, identity, build)
    files = {f.relative_to(out).as_posix(): f for f in sorted(out.rglob("*")) if f.is_file()}
    sizes = {path: file.stat().st_size for path, file in files.items()}
    if push is None:
        return SpaceReport(out, sizes)
    own = {path: file for path, file in files.items() if not path.startswith(_UNCHECKED)}
    if reasons := find_refusals(own):
        listed = "\n  - ".join(["", *reasons])
        raise ValueError(f"{out} cannot be published; nothing was sent:{listed}")
    where: Any = {"private": private, "token": token, "kind": "space"}
    commit = commit_folder(out, push, message="Push with condenser", stale=(), **where)
    return SpaceReport(out, sizes, commit)


def _read_system(model: str) -> System:
    """The encoder, with int8 vectors."""
    system = parse_system(model)
    settings = {"precision": "int8", **system.settings}
    if system.kind != "encoder" or settings["precision"] != "int8" or "dtype" in settings:
        raise ValueError(
            f"{model} cannot be searched in a page: name an encoder, without precision (which is"
            " int8) and dtype; the page adds bm25 and the hybrid."
        )
    return replace(system, settings=settings)


def _load(collection: str, split: str) -> tuple[Dataset, list[dict[str, Any]]]:
    """The passages, and example queries with the ids of their relevant passages."""
    try:
        loaded = load_collection(collection, split=split)
    except (FileNotFoundError, ValueError) as error:
        passages = load_passages(collection)
        logger.warning("The page has no example queries: %s", error)
        return passages, []
    return loaded.passages, _choose_examples(loaded)


def _choose_examples(collection: Collection) -> list[dict[str, Any]]:
    """At most six queries, evenly spaced among the short ones."""
    short = [query for query, text in collection.queries.items() if len(text) <= _LONGEST_EXAMPLE]
    places = dict.fromkeys(i * len(short) // N_EXAMPLES for i in range(N_EXAMPLES))
    return [
        {
            "query": collection.queries[query],
            "relevant": [p for p, g in collection.qrels.get(query, {}).items() if g > 0],
        }
        for query in (short[place] for place in places if short)
    ]


def _count_ending(retriever: Retriever) -> int:
    """How many special tokens stand behind a query."""
    tokens = retriever.model.tokenizer("rivers", return_special_tokens_mask=True)
    mask = tokens["special_tokens_mask"]
    return len(mask) - max(i for i, is_special in enumerate(mask, start=1) if not is_special)


def _write_page(folder: Path) -> None:
    for file in _PAGE.iterdir():
        shutil.copyfile(file, folder / file.name)
    (folder / "npm").mkdir()
    for file in fetch_npm_files():
        shutil.copyfile(file, folder / "npm" / file.name)


def _write_encoder(folder: Path, retriever: Retriever, weights: Weights) -> None:
    """Write what transformers.js opens."""
    (folder / "onnx").mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="condenser-tokenizer-") as scratch:
        retriever.model.tokenizer.save_pretrained(scratch)
        if not Path(scratch, "tokenizer.json").is_file():
            raise ValueError(
                f"The tokenizer of {retriever.folder} has no tokenizer.json, which transformers.js"
                " needs: save a fast tokenizer there."
            )
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(Path(scratch, name), folder / name)
    transformer: Any = retriever.model[0]
    _write_json(folder / "config.json", {"model_type": transformer.model.config.model_type})
    export_onnx(retriever, folder / "onnx" / "model.onnx", weights=weights)


def _write_data(folder: Path, passages: Dataset, dense: DenseSearcher, text_length: int) -> None:
    """Write passages, the scores of BM25 and the vectors, all in the order of the ids.

    bm25.bin      for V words: V + 1 offsets (uint32), then for each entry the passage's row
                  (uint32), then its score (float32)
    vectors.bin   for D dimensions: D starts and D steps (float32), then N x D codes (uint8)
    """
    folder.mkdir()
    ids = id_column(passages).to_pylist()
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__))
    ordered = passages.select(order)
    texts = [_shorten(text, text_length) for text in ordered["text"]]
    columns = {"ids": ordered["_id"][:], "titles": ordered["title"][:], "texts": texts}
    _write_json(folder / "passages.json", columns)

    bm25 = Bm25(ordered).index
    words = sorted(bm25.vocab_dict, key=bm25.vocab_dict.__getitem__)
    _write_json(folder / "words.json", [word for word in words if word])  # bm25s adds ""
    parts = [bm25.scores[name] for name in ("indptr", "indices", "data")]
    _write_numbers(folder / "bm25.bin", *zip(parts, ("<u4", "<u4", "<f4"), strict=True))

    index: Any = dense.index
    codes = faiss.vector_to_array(index.codes).reshape(len(ids), -1)[order]  # (N, D)
    starts, widths = faiss.vector_to_array(index.sq.trained).reshape(2, -1)
    steps = widths / 255
    starts = starts + steps / 2  # faiss restores a code c as start + (c + 1/2) step
    vectors = ((starts, "<f4"), (steps, "<f4"), (codes, "u1"))
    _write_numbers(folder / "vectors.bin", *vectors)


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length].rstrip() + " …"


def _write_numbers(file: Path, *parts: tuple[np.ndarray, str]) -> None:
    file.write_bytes(b"".join(part.astype(dtype).tobytes() for part, dtype in parts))


def _write_json(file: Path, content: object) -> None:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    file.write_text(text, encoding="utf-8")


def _write_card(file: Path, metadata: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    stated = {name: value for name, value in metadata.items() if value not in (None, [None])}
    written = yaml.safe_dump(stated, sort_keys=False, allow_unicode=True)
    template = Template(_CARD.read_text(encoding="utf-8"), keep_trailing_newline=True)
    card = template.render(metadata=written, title=settings["title"], settings=settings)
    file.write_text(card, encoding="utf-8")
