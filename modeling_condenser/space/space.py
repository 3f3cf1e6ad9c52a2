"""Write a static search page of a collection, and publish it as a Space on the Hub.

The page holds everything that a search needs: passages, their int8 vectors, the scores of BM25, and
the encoder, which runs in the browser. Its rankings are those of `MODEL,precision=int8`, `bm25` and
`hybrid:MODEL,precision=int8,fusion=rrf` in this package.
"""

import json
import logging
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import faiss
import numpy as np
from datasets import Dataset
from huggingface_hub import SpaceCard, SpaceCardData, metadata_save

from modeling_condenser.collection.collection import fingerprint_passages
from modeling_condenser.collection.load import load_collection, load_passages
from modeling_condenser.encoding.embeddings import id_column
from modeling_condenser.publishing.card import CARD_FILE, read_card
from modeling_condenser.publishing.provenance import hub_name
from modeling_condenser.publishing.push import (
    PushReport,
    check_name,
    check_publishable,
    commit_folder,
    measure_files,
)
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.indices import build_once
from modeling_condenser.retrieval.searchers import open_searcher
from modeling_condenser.retrieval.systems import System, parse_system
from modeling_condenser.retrieval.words import choose_language
from modeling_condenser.runs.whole_files import read_json

from .npm_files import fetch_npm_files
from .onnx_export import Weights, write_encoder

logger = logging.getLogger(__name__)

SETTINGS_FILE = "space.json"  # which the page reads
MAX_PASSAGES = 100_000
N_EXAMPLES, LONGEST_EXAMPLE = 6, 90  # queries, characters
_PAGE, _CARD = Path(__file__).with_name("page"), Path(__file__).with_name("README.md.jinja")
_UNCHECKED = ("data/", "npm/")  # texts of others, which may hold paths, and pinned code


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
) -> PushReport:
    """Write a static search page of a collection into a folder, or publish the one that is there.

    Args:
        model: a retriever, or an encoder with its pooling: MODEL,pooling=mean.
        collection: folder or Hub name, of at most 100,000 passages.
        out: new or empty folder, or the page of an earlier call with the same settings, which is
            written again only if the collection has changed.
        split: of the example queries: up to six short ones, evenly spaced.
        title: of the page; by default it names the collection.
        weights: of the encoder, float16 (half the size of float32), float32, or int8 (a quarter,
            and faster).
        text_length: characters of a passage to show; all of its text is searched.
        embeddings: folder of the passages' embeddings, so that only new and changed passages are
            encoded for the next page; by default they are not kept.
        license: such as apache-2.0; by default that of the model's card.
        push: owner/name of a Space to publish the page as, in one commit.
        private: whether a new Space is private.
        token: by default HF_TOKEN, or the token of `hf auth login`.

    Raises:
        FileNotFoundError: there is no such model or collection.
        ValueError: a setting does not fit, the folder holds something else, or something must be
            corrected before publishing.
        OSError: the npm registry or the Hub failed.
    """
    if push is not None:
        check_name(push)
    if weights not in get_args(Weights) or text_length < 1:
        raise ValueError(
            f"weights is {weights!r} and text_length is {text_length}, expected float16, float32 or"
            " int8, and at least 1."
        )
    out, system = Path(out), _read_system(model)
    passages, examples = _load(collection, split)
    if len(passages) > MAX_PASSAGES:
        raise ValueError(
            f"{collection} has {len(passages):,} passages, but a browser loads all of them: at most"
            f" {MAX_PASSAGES:,} are supported. Take a part, or a database (docs/databases.md)."
        )
    retriever = replace(system.without("precision"), devices=["cpu"]).open()
    name, contract = Path(collection).resolve().name, retriever.contract
    settings: dict[str, Any] = {
        "title": title or f"Search in {name}",
        "about": f"{len(passages):,} passages of {name}, by the encoder {parse_system(model).name}",
        "model": retriever.fingerprint,
        "passages": fingerprint_passages(passages),
        "weights": weights,
        "text_length": text_length,
        "dimension": retriever.dimension,
        "query_prompt": contract.query_prompt,
        "query_max_length": contract.query_max_length,
        "examples": examples,
    }
    metadata = SpaceCardData(
        title=settings["title"],
        sdk="static",
        emoji="🔎",
        license=read_card(retriever.folder / CARD_FILE)[0].get("license"),
        models=_as_published(system.model),
        datasets=_as_published(collection),
    )

    def build(folder: Path) -> None:
        _check_unchanged(out)
        shutil.copytree(_PAGE, folder, dirs_exist_ok=True)
        (folder / "npm").mkdir()
        for file in fetch_npm_files():
            shutil.copyfile(file, folder / "npm" / file.name)
        write_encoder(folder / "encoder", retriever, weights=weights)
        with tempfile.TemporaryDirectory(prefix="condenser-space-") as scratch:
            place = Path(embeddings) if embeddings else None
            dense: Any = open_searcher(system, passages, Path(scratch), embeddings=place)
            write_page_data(folder / "data", passages, dense.index, text_length=text_length)
        card = SpaceCard.from_template(metadata, template_path=str(_CARD), about=settings["about"])
        text = f"{card}\n"
        if (out / CARD_FILE).is_file():  # which may have been edited
            earlier = read_json(out / SETTINGS_FILE, {})["about"]
            text = (out / CARD_FILE).read_text("utf-8").replace(earlier, settings["about"])
        (folder / CARD_FILE).write_text(text, encoding="utf-8")

    of_passages = ("passages", "about", "examples")
    build_once(out / SETTINGS_FILE, settings, build, of_passages=of_passages)
    stated, _ = read_card(out / CARD_FILE)
    if license and license != stated.get("license"):
        metadata_save(out / CARD_FILE, {**stated, "license": license})
    commit = None
    if push:
        check_publishable(out, unchecked=_UNCHECKED, kind="space")
        where: Any = {"kind": "space", "private": private, "token": token}
        commit = commit_folder(out, push, message="Push with condenser", stale=(), **where)
    return PushReport(out, measure_files(out), (out / CARD_FILE).read_text("utf-8"), commit)


def _check_unchanged(out: Path) -> None:
    """Raise a ValueError if somebody has changed the page that would be written again."""
    for file in filter(Path.is_file, _PAGE.rglob("*")):
        own = out / file.relative_to(_PAGE)
        if own.is_file() and own.read_bytes() != file.read_bytes():
            raise ValueError(
                f"The collection has changed, but {own} differs from what would be written again: "
                "name another folder, and copy your changes there."
            )


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
    short = [key for key, text in loaded.queries.items() if len(text) <= LONGEST_EXAMPLE]
    examples = []
    for key in short[:: -(-len(short) // N_EXAMPLES) or 1]:
        grades = loaded.qrels.get(key, {})
        relevant = [passage for passage, grade in grades.items() if grade > 0]
        examples.append({"query": loaded.queries[key], "relevant": relevant})
    return loaded.passages, examples


def _as_published(name: str) -> list[str] | None:
    """A Hub name as an entry of a card's metadata; None for a local folder."""
    found = None if Path(name).exists() else hub_name(name)
    return [found] if found else None


def write_page_data(folder: Path, passages: Dataset, index: Any, *, text_length: int) -> None:
    """Write passages, the scores of BM25, and vectors, for the page to read.

    passages.json   ids, titles and texts, in the order of the ids, which breaks ties
    words.json      V words that are not stopwords
    bm25.bin        V + 1 offsets (uint32), then of each word its passages' rows (uint32) from its
                    offset on, and then likewise their scores (float32)
    vectors.bin     D starts and D steps (float32), then N x D codes c (uint8) for start + c step

    `index` holds the vectors of the passages, by `build_quantised` with the precision int8. Texts
    are cut after `text_length` characters.
    """
    folder.mkdir()
    ids = id_column(passages).to_pylist()
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__))
    ordered = passages.select(order)
    n, texts = text_length, ordered["text"]
    shown = [text if len(text) <= n else f"{text[:n].rstrip()} …" for text in texts]
    columns = {"ids": sorted(ids), "titles": ordered["title"][:], "texts": shown}
    _write_json(folder / "passages.json", columns)

    bm25 = Bm25(ordered, language=choose_language(passages)).index
    words = sorted(bm25.vocab_dict, key=bm25.vocab_dict.__getitem__)
    _write_json(folder / "words.json", [word for word in words if word])  # bm25s adds ""
    parts = (bm25.scores[name] for name in ("indptr", "indices", "data"))
    _write_numbers(folder / "bm25.bin", "<u4 <u4 <f4", *parts)

    codes = faiss.vector_to_array(index.codes).reshape(len(ids), -1)[order]  # (N, D)
    starts, widths = faiss.vector_to_array(index.sq.trained).reshape(2, -1)
    steps = widths / 255  # faiss restores a code c as start + (c + 1/2) step
    _write_numbers(folder / "vectors.bin", "<f4 <f4 u1", starts + steps / 2, steps, codes)


def _write_json(file: Path, content: object) -> None:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    file.write_text(text, encoding="utf-8")


def _write_numbers(file: Path, dtypes: str, *parts: np.ndarray) -> None:
    pairs = zip(dtypes.split(), parts, strict=True)
    file.write_bytes(b"".join(part.astype(dtype).tobytes() for dtype, part in pairs))
