"""Builds a collection from files of documents: passages of whole sentences, in BEIR's layout."""

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import regex

from modeling_condenser.files.models import (
    UNLIMITED,
    find_model_folder,
    module_paths,
    read_contract,
)
from modeling_condenser.files.run_folder import atomic_folder, folder_lock, read_json, write_json
from modeling_condenser.files.settings import parse_settings

from .collection import hash_text
from .conversion import HTML_ENDINGS, TEXT_COLUMNS, Document, DocumentReader, find_files
from .labels import WrittenDocument, read_labels, write_labels
from .load import CORPUS_FILE, FACTS_FILE, QRELS_FOLDER, QUERIES_FILE
from .rows import plain_ending, plain_name
from .sentences import SPACELESS, cut_at_sentences
from .shared_text import SharedText

_WRITTEN = {CORPUS_FILE, QUERIES_FILE, QRELS_FOLDER, FACTS_FILE}
_LEAST_TOKENS, _MAX_WORDS, _MAX_TOKENS = 16, 180, 256  # 180 English words are about 256 tokens
_SHOWN_KINDS = 5
_PIECE = re.compile(r".{1,100000}(?=\s|\Z)|.{1,100000}", re.DOTALL)  # cut before a blank
# A character of a script without spaces is a word, and so are 20 characters without a space.
_WORD = regex.compile(rf"(?:[{SPACELESS}]|[^\s{SPACELESS}]{{1,20}})\p{{M}}*+")


@dataclass(frozen=True)
class CollectRecipe:
    """What is read, and how it is cut into passages.

    A text file (.txt, .rst, .md, .html, .pdf, .docx, .pptx, .epub) is one document, a table (.csv,
    .tsv, .jsonl, .json, .parquet) has one in each row.

    Attributes:
        sources: folders with files at any depth, or files.
        out: folder of the collection, new or that of an earlier call.
        labels: table with the columns question, and passage (a quote of its text), file or id; read
            as documents, too, only if `sources` names it.
        label_columns: our names -> the table's names, such as {question: Frage, passage: Antwort}.
        max_tokens: of a passage with its title; without a model, words; 256 tokens or 180 words by
            default. A Chinese, Japanese or Thai character is a word.
        model: folder or Hub name of the encoder whose tokens are counted, at most as many as it
            reads.
        text_column: of tables, before text, content and body; the first that a row has is read.
        title_column: of tables, before title; "" for no titles.
        id_column: of tables, before _id and id; without ids, rows have their numbers, which change
            when a row goes.
        encoding: of text that is not UTF-8; found out by default.
    """

    sources: list[str]
    out: str
    labels: str | None = None
    label_columns: dict[str, str] = field(default_factory=dict)
    max_tokens: int | None = None
    model: str | None = None
    text_column: list[str] = field(default_factory=list)
    title_column: str = "title"
    id_column: str = "_id"
    encoding: str | None = None


@dataclass(repr=False)  # a notebook shows the summary
class Collected:
    """What was read, and what was left out.

    Attributes:
        folder: of the collection.
        files, documents, passages: how many were read and written.
        without_text: documents that have no passages.
        questions: split -> queries with judgements.
        left_out: why a label was left out -> how many were.
        unread: file -> why it was not read, or not to its end.
        pages_without_text: file -> pages of a PDF that have no text, such as scanned ones.
        shared_text: first line of a paragraph that many pages of HTML begin or end with, such as a
            menu -> from how many it was left out.
        copies: id of a passage that is left out -> that of the same one, which is kept.
    """

    folder: str
    files: int = 0
    documents: int = 0
    passages: int = 0
    without_text: int = 0
    questions: dict[str, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    unread: dict[str, str] = field(default_factory=dict)
    pages_without_text: dict[str, int] = field(default_factory=dict)
    shared_text: Counter[str] = field(default_factory=Counter)
    copies: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        kinds = Counter(plain_ending(Path(name)) or "no ending" for name in self.unread)
        unread = ", ".join(f"{kind} {n:,}" for kind, n in kinds.most_common(_SHOWN_KINDS))
        lines = [
            f"files      {self.files:>9,}  {len(self.unread):,} not read or not to their end"
            + (f" ({unread})" if unread else ""),
            f"documents  {self.documents:>9,}  {self.without_text:,} without text",
            f"passages   {self.passages:>9,}  {len(self.copies):,} copies left out",
        ]
        if n_pages := sum(self.pages_without_text.values()):
            lines.append(f"PDF        {n_pages:>9,}  pages without text")
        if n_shared := self.shared_text.total():
            lines.append(f"HTML       {n_shared:>9,}  paragraphs of menus and footers left out")
        if self.questions:
            splits = ", ".join(f"{split} {n:,}" for split, n in self.questions.items())
            lines.append(f"questions  {sum(self.questions.values()):>9,}  {splits}")
        lines += [f"labels left out {n:,}: {why}" for why, n in self.left_out.items()]
        return "\n".join(lines)

    __repr__ = __str__


def collect(**settings: Any) -> Collected:
    """Write the passages of files as a collection, whose settings are those of `CollectRecipe`.

    Raises:
        FileNotFoundError: a folder, a file or the model does not exist.
        ValueError: `out` or a source holds something else, a setting is wrong, or there is no
            document; or no label has a passage: then the passages are written all the same, unless
            `out` has queries, which are kept with its passages.
    """
    (recipe,) = parse_settings(settings, CollectRecipe)
    target = Path(recipe.out)
    _check(recipe, target)
    cut = _open_cutter(recipe)
    sources = {Path(source).resolve() for source in recipe.sources}
    no_documents = {target.resolve(), Path(recipe.labels or recipe.out).resolve()}
    files = find_files(recipe.sources, without=no_documents - sources)
    _refuse_collections(files.values())
    labels = None
    if recipe.labels:
        labels = read_labels(recipe.labels, recipe.label_columns, recipe.encoding)
    done = Collected(recipe.out, files=len(files))
    columns = (*recipe.text_column, *TEXT_COLUMNS)
    reader = DocumentReader(columns, recipe.title_column, recipe.id_column, recipe.encoding)
    with folder_lock(target), atomic_folder(target) as folder:
        _check(recipe, target)  # again, as another call may have ended meanwhile
        documents = _without_shared_text(reader.read(files), folder / "documents.jsonl", done)
        with (folder / CORPUS_FILE).open("w", encoding="utf-8") as corpus:
            written = _write_passages(corpus, documents, cut, done)
        done.unread, done.pages_without_text = reader.unread, reader.pages_without_text
        _check_columns(recipe, reader.columns)
        if not done.passages:
            reasons = [f"{name}: {why}" for name, why in islice(done.unread.items(), 3)]
            raise ValueError(
                f"There are no documents in {', '.join(recipe.sources)}: {len(files)} files, "
                f"{len(done.unread)} of which cannot be read ({'; '.join(reasons) or 'none'})."
            )
        if labels is not None:
            done.questions = write_labels(folder, labels, written, done.left_out, recipe.sources)
            if not done.questions and (target / QUERIES_FILE).is_file():
                raise _no_label(recipe, done, "keeps its passages and queries")
        write_json(folder / FACTS_FILE, vars(done))
    if labels is not None and not done.questions:
        raise _no_label(recipe, done, "has all passages, but no queries")
    return done


def _no_label(recipe: CollectRecipe, done: Collected, state: str) -> ValueError:
    left_out = ", ".join(f"{why}: {n:,}" for why, n in done.left_out.items())
    return ValueError(
        f"No label of {recipe.labels} has a passage in the collection ({left_out}). {recipe.out} "
        f"{state}: correct the labels, and collect again."
    )


def _check(recipe: CollectRecipe, target: Path) -> None:
    """Check that nothing will be lost, before hours of reading."""
    try:
        codecs.lookup(recipe.encoding or "utf-8")
    except LookupError as error:
        raise ValueError(str(error)) from error
    if target.is_dir() and any(target.iterdir()) and not (target / FACTS_FILE).is_file():
        raise ValueError(
            f"{target} is not empty and was not written by `collect`. The last word names the "
            "folder to write: choose a new one."
        )
    others = {file.name for file in target.glob("[!.]*")} - _WRITTEN
    if others:
        raise ValueError(
            f"{target} also has {', '.join(sorted(others))}, which would be lost: move it."
        )
    if recipe.labels and target.resolve() in Path(recipe.labels).resolve().parents:
        raise ValueError(f"{recipe.labels} is in {target}, which is replaced: move it elsewhere.")
    if (target / QUERIES_FILE).is_file() and not recipe.labels:
        raise ValueError(f"{target} has queries, which would be lost: give --labels again.")


def _refuse_collections(files: Iterable[Path]) -> None:
    """Raise a ValueError if a collection is among the documents, which has their texts again."""
    for file in files:
        if file.name == FACTS_FILE:
            raise ValueError(
                f"{file.parent} is a collection that `collect` wrote: name folders of documents, "
                "and last the folder to write."
            )


def _check_columns(recipe: CollectRecipe, columns: set[str]) -> None:
    """Raise a ValueError if no table has a column that the user named."""
    wanted = {*recipe.text_column, recipe.title_column, recipe.id_column} - {"", "title", "_id"}
    if missing := sorted(wanted - columns):
        known = ", ".join(sorted(columns)) or "none, as there are no tables"
        raise ValueError(f"No table has a column {missing[0]!r}. Columns are {known}.")


Cut = Callable[[str, str], Iterator[tuple[str, str]]]
"""Title and text of a section -> titles and texts of its passages."""


def _open_cutter(recipe: CollectRecipe) -> Cut:
    tokenizer: Any = None
    wanted = recipe.max_tokens
    longest, n_special, prompt, separator = _MAX_WORDS if wanted is None else wanted, 0, "", " "
    if recipe.model:
        from transformers import AutoTokenizer  # takes seconds

        folder = find_model_folder(recipe.model)
        tokenizer = AutoTokenizer.from_pretrained(folder / module_paths(folder)[0])
        contract = read_contract(folder)
        prompt = contract.get("passage_prompt", prompt)
        separator = contract.get("title_separator", separator)
        limit = contract.get("passage_max_length") or tokenizer.model_max_length
        if limit > UNLIMITED:
            config = read_json(folder / module_paths(folder)[0] / "config.json", {})
            # RoBERTa and its kind leave the first two positions unused.
            limit = (config.get("max_position_embeddings") or limit) - 2
        longest = min(_MAX_TOKENS if wanted is None else wanted, limit)
        n_special = tokenizer.num_special_tokens_to_add()

    def token_starts(text: str) -> list[int]:
        if tokenizer is None or not tokenizer.is_fast:  # which does not say where tokens begin
            count = tokenizer.tokenize if tokenizer else lambda word: [word]
            return [word.start() for word in _WORD.finditer(text) for _ in count(word[0])]
        options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
        starts = list[int]()
        for piece in _PIECE.finditer(text):  # of a whole book, memory would hold gigabytes
            places = tokenizer(piece[0], **options)["offset_mapping"]
            starts += [piece.start() + start for start, _ in places]
        return starts

    n_prompt, n_separator = len(token_starts(prompt)), len(token_starts(separator))
    if longest < _LEAST_TOKENS + n_prompt:
        raise ValueError(f"max_tokens is {longest}, expected at least {_LEAST_TOKENS + n_prompt}.")

    def cut(title: str, text: str) -> Iterator[tuple[str, str]]:
        room = longest - n_special - n_prompt
        starts = token_starts(title)
        if len(starts) > room // 2:  # a title takes at most half of a passage
            title = title[: starts[room // 2]].strip()
        room -= min(len(starts), room // 2) + (n_separator if title else 0)
        for start, stop in cut_at_sentences(text, token_starts(text), room=room):
            if passage := text[start:stop].strip():
                yield title, passage

    return cut


def _without_shared_text(
    documents: Iterable[Document], stored: Path, done: Collected
) -> Iterator[Document]:
    """Remove the text that pages of HTML share, for which all are read first; see `SharedText`."""
    shared_text = SharedText()
    with stored.open("w", encoding="utf-8") as file:
        for document in documents:
            if plain_ending(Path(document.file)) in HTML_ENDINGS:
                shared_text.count(document)
            file.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")
    with stored.open(encoding="utf-8") as file:
        for line in file:
            document = Document(**json.loads(line))
            if plain_ending(Path(document.file)) in HTML_ENDINGS:
                document = shared_text.remove(document)
            yield document
    stored.unlink()
    done.shared_text = shared_text.removed


def _write_passages(
    corpus: IO[str], documents: Iterable[Document], cut: Cut, done: Collected
) -> list[WrittenDocument]:
    """Write the passages of documents; return the passages of each document that has some."""
    written: list[WrittenDocument] = []
    first_with: dict[int, str] = {}  # hash of a passage -> its id
    taken: set[str] = set()
    repeats = Counter[str]()
    for document in documents:
        done.documents += 1
        name = re.sub(r"\s", "_", document.name)
        is_row = document.name != document.file
        stem = Path(plain_name(Path(document.file))).stem
        file_title = "" if is_row else re.sub(r"[-_\s]+", " ", stem)
        passages: dict[str, None] = {}
        n_cut = 0
        for above, section in document.sections:
            headings = " > ".join(above)
            title = _join(document.title or file_title, headings)
            for passage_title, text in cut(title, section):
                n_cut += 1
                passage_id = name if is_row and n_cut == 1 else f"{name}#{n_cut}"
                base = passage_id
                while passage_id in taken:
                    repeats[base] += 1
                    passage_id = f"{base}_{repeats[base] if repeats[base] > 1 else ''}"
                taken.add(passage_id)
                # Texts in two files are copies, although a title may be made of a file's name.
                content = hash_text(f"{_join(document.title, headings)}\0{text}")
                kept_id = first_with.setdefault(content, passage_id)
                passages[kept_id] = None
                if kept_id != passage_id:
                    done.copies[passage_id] = kept_id
                    continue
                done.passages += 1
                row = {"_id": passage_id, "title": passage_title, "text": text}
                row |= {"headings": headings, "file": document.file}
                corpus.write(json.dumps(row, ensure_ascii=False) + "\n")
        if passages:
            written.append((name, [*passages]))
        else:
            done.without_text += 1
    return written


def _join(title: str, headings: str) -> str:
    return " > ".join(filter(None, (title, headings)))
