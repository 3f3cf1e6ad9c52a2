"""Systems: anything that ranks passages, named by one word of a command.

    my-encoder                                   an export or a sentence-transformers model
    google-bert/bert-base-uncased,pooling=mean   any encoder, with a stated pooling
    starter,pooling=cls                          the encoder that comes with this package
    my-encoder,truncate_dim=64,precision=int8    the first 64 numbers, one byte each
    bm25,preset=msmarco-passage                  BM25, with a preset or with k1 and b
    bm25,language=german                         without German stopwords
    hybrid:my-encoder                            BM25 and an encoder; dev queries choose the fusion
    hybrid:my-encoder,fusion=rrf                 reciprocal ranks; 0.3: the encoder's weight
    runs/other-system.trec                       a TREC run file
    my-encoder,query_prompt="find, then rank: "  a value with a comma is quoted as in a CSV file

`searchers.py` opens them. Opening an encoder imports torch; importing this module does not.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from modeling_condenser.encoding.embeddings import Dtype
from modeling_condenser.files.atomic import checksum_file
from modeling_condenser.files.contract import Pooling, Similarity, states_encoding
from modeling_condenser.files.models import find_weights
from modeling_condenser.files.run_folder import MODEL_FOLDER
from modeling_condenser.files.settings import is_path, refuse_ambiguous

from .bm25 import read_settings
from .dense import SearchSettings
from .fusion import FUSIONS
from .indices import Precision
from .words import LANGUAGES

if TYPE_CHECKING:
    from modeling_condenser.encoding.retriever import Retriever

BM25 = "bm25"
HYBRID = "hybrid:"
Kind = Literal["bm25", "run", "encoder", "hybrid"]

# The type or the allowed values of each setting.
_ENCODER_SETTINGS = {
    "pooling": get_args(Pooling),
    "similarity": get_args(Similarity),
    "precision": get_args(Precision),
    "dtype": get_args(Dtype),
    **dict.fromkeys("query_max_length passage_max_length token_budget truncate_dim".split(), int),
    **dict.fromkeys("title_separator query_prompt passage_prompt name".split(), str),
}
_SETTINGS: Mapping[Kind, Mapping[str, Any]] = {
    "bm25": {"preset": str, "k1": float, "b": float, "language": tuple(LANGUAGES), "name": str},
    "run": {"name": str},
    "encoder": _ENCODER_SETTINGS,
    "hybrid": {**_ENCODER_SETTINGS, "fusion": tuple(FUSIONS)},
}
_COMPRESSION = ("truncate_dim", "precision")
_SETTING = re.compile(r',(\w+)=("(?:[^"]|"")*+"(?=,|\Z)|[^,]*)')
_LONGEST_VALUE, _LONGEST_NAME = 40, 200  # characters in a system's name, bytes in a folder's


@dataclass(frozen=True)
class System:
    """Anything that ranks passages.

    Attributes:
        model: "bm25", a TREC run file, folder or Hub name of an encoder, or "hybrid:ENCODER".
        settings: arguments of `Bm25` or `Retriever`, and `precision` and `fusion`.
        stated_name: replaces the name that is made from model and settings.
        devices: to encode on; by default all GPUs, or the CPU.
        opened: text -> the encoder that was opened last. Systems of one evaluation share it.
    """

    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    stated_name: str | None = None
    devices: list[str] | None = field(default=None, compare=False)
    opened: dict[str, "Retriever"] = field(default_factory=dict, compare=False, repr=False)

    @property
    def kind(self) -> Kind:
        if self.model == BM25:
            return "bm25"
        if self.model.startswith(HYBRID):
            return "hybrid"
        return "run" if Path(self.model).is_file() else "encoder"

    @property
    def has_vectors(self) -> bool:
        return self.kind in ("encoder", "hybrid")

    @property
    def precision(self) -> Precision:
        return self.settings.get("precision", "float32")

    @property
    def is_export(self) -> bool:
        """Whether it is a local export with its own contract, whose card can show its results."""
        has_contract = states_encoding(Path(self.model))
        return self.kind == "encoder" and has_contract and not self.settings.keys() - {"dtype"}

    @property
    def encoder(self) -> "System":
        """The encoder of a hybrid system; any other system itself."""
        if self.kind != "hybrid":
            return self
        return replace(self.without("fusion"), model=self.model[len(HYBRID) :], stated_name=None)

    @property
    def whole(self) -> "System":
        """The encoder, with all numbers of its vectors."""
        return self.encoder.without(*_COMPRESSION)

    def without(self, *names: str) -> "System":
        """Return the system without some settings."""
        return replace(self, settings={n: v for n, v in self.settings.items() if n not in names})

    @property
    def name(self) -> str:
        """The name in files and tables; by default that of the model, with its settings."""
        values = [_short(value) for name, value in self.settings.items() if name != "token_budget"]
        kind = [self.kind] if self.kind == "hybrid" else []
        return self.stated_name or "-".join([*kind, _base_name(self.encoder.model), *values])

    @property
    def vectors_name(self) -> str:
        """The name of the folder with its embeddings, which are the whole vectors."""
        return as_folder(self.whole.name)

    @property
    def text(self) -> str:
        """The text that `parse_system` reads as this system."""
        values = {**self.settings, **({"name": self.stated_name} if self.stated_name else {})}
        return ",".join([self.model, *(f"{n}={_quote(str(v))}" for n, v in values.items())])

    @property
    def published_text(self) -> str:
        """The text in a published command, in which local folders have no path."""
        place = self.encoder.model
        if not Path(place).exists():
            return self.text
        return replace(self, model=self.model.removesuffix(place) + _base_name(place)).text

    def completed(self, search: SearchSettings) -> "System":
        """Return the system with the settings of a search that it does not state itself."""
        if not self.has_vectors:
            return self
        settings = {**self.settings, **search.changed("dtype", *_COMPRESSION), **self.settings}
        system = replace(self, settings=settings, devices=search.device_list)
        if system.precision != "float32" and not search.is_exact:
            raise ValueError(
                f"{self.model} has precision={system.precision}, so the index {search.index} would"
                " have no effect: leave out one of the two."
            )
        return system

    def open(self) -> "Retriever":
        """Load the encoder, unless it was the one that was opened last."""
        from modeling_condenser.encoding.encode import local_device
        from modeling_condenser.encoding.retriever import Retriever

        if self.kind != "encoder":
            raise ValueError(f"{self.model} has no vectors: name an encoder.")
        if self.precision != "float32":
            raise ValueError("precision is a setting of search only: leave it out.")
        key = replace(self, stated_name=None).text
        if key not in self.opened:
            self.opened.clear()
            device = local_device(self.devices)
            self.opened[key] = Retriever(
                self.model, device=device, **self.without("precision").settings
            )
        return self.opened[key]

    @cached_property
    def fingerprint(self) -> str:
        """Identifies everything that its runs depend on."""
        if self.kind == "run":
            return checksum_file(Path(self.model))
        if self.kind == "bm25":
            settings = {"language": "by the text", **self.settings}
            language = settings.pop("language")
            k1, b = read_settings(**settings)
            return f"{BM25} k1={k1} b={b} language={language}"
        if self.kind == "hybrid":
            how = self.settings.get("fusion", "chosen on dev queries")
            return f"{how}, {System(BM25).fingerprint}, {self.encoder.fingerprint}"
        own = self._fingerprint_vectors()
        return own if self.precision == "float32" else f"{own} {self.precision}"

    def _fingerprint_vectors(self) -> str:
        dimension, retriever = self.settings.get("truncate_dim"), self.whole.open()
        return (retriever if dimension is None else retriever.truncated(dimension)).fingerprint


SystemLike = str | Path | Mapping[str, Any] | System
"""A system, its text, or its `model` and settings as a mapping."""


def list_systems(systems: SystemLike | Iterable[SystemLike]) -> list[str]:
    """Return the texts of one or more systems."""
    is_one = isinstance(systems, str | Path | Mapping | System)
    return list(map(system_text, [systems] if is_one else systems))  # type: ignore[arg-type]


def system_text(system: SystemLike) -> str:
    """Return the text of a system, as a command would name it."""
    if isinstance(system, Mapping):
        stated = {name: value for name, value in system.items() if value is not None}
        if "model" not in stated:
            raise ValueError(f"{dict(system)} names no system: add the field model.")
        system = System(str(stated.pop("model")), stated)
    return system.text if isinstance(system, System) else str(system)


def parse_system(system: SystemLike) -> System:
    """Parse `MODEL[,setting=value]...`.

    The settings of an encoder are those of `Retriever`, those of bm25 those of `Bm25`. Every system
    has the setting `name`, its name in tables. A value in double quotes may contain commas; quotes
    in it are doubled. The longest path that exists at the beginning is the model, so a path may
    contain commas. A wrong setting is a ValueError.
    """
    if isinstance(system, System):
        return system
    text = system_text(system)
    ends = [place for place, sign in enumerate(text) if sign == ","] + [len(text)]
    end = next((e for e in reversed(ends) if is_path(text[:e].removeprefix(HYBRID))), ends[0])
    named = System(text[:end])
    if not named.model.strip():
        raise ValueError(f"{text!r} names no system: begin with an encoder or bm25.")
    if named.model == BM25 and (find_weights(Path(BM25)) or Path(BM25).is_file()):
        refuse_ambiguous(BM25, "the search by words")
    if named.kind == "hybrid" and named.encoder.kind != "encoder":
        raise ValueError(f"{named.model} has no vectors to fuse with BM25: name an encoder.")
    settings = _read_settings(named, text[end:])
    name = settings.pop("name", None)
    return System(named.model, settings, name)


def _read_settings(system: System, text: str) -> dict[str, Any]:
    """Read `[,setting=value]...`, the settings of a system."""
    known, settings = _SETTINGS[system.kind], dict[str, Any]()
    while text:
        match = _SETTING.match(text)
        if match is None or match[1] not in known:
            wrong, expected = text[1:].partition(",")[0], "=…, ".join(known)
            raise ValueError(
                f"{system.model} has no setting {wrong!r}: expected {expected}=…. A value with a"
                ' comma needs double quotes, as in name="a, b".'
            )
        name, value = match.groups()
        text, kind = text[match.end() :], known[name]
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1].replace('""', '"')
        try:
            settings[name] = kind[kind.index(value)] if isinstance(kind, tuple) else kind(value)
        except ValueError:
            expected = f"one of {', '.join(kind)}" if isinstance(kind, tuple) else kind.__name__
            raise ValueError(f"{name} is {value!r}, expected {expected}.") from None
    return settings


def parse_systems(words: Iterable[SystemLike], search: SearchSettings) -> list[System]:
    """Parse the systems of one search, complete them with its settings, and check both."""
    systems: dict[str, System] = {}
    opened: dict[str, Retriever] = {}
    for word in words:
        system = replace(parse_system(word).completed(search), opened=opened)
        if systems.setdefault(system.name, system) != system:
            raise ValueError(
                f"{systems[system.name].model} and {system.model} have the same name"
                f" {system.name!r}: rename one, as in {system.model},name=OTHER"
            )
    dense = [system for system in systems.values() if system.has_vectors]
    if (unused := search.changed("index", *_COMPRESSION)) and not dense:
        raise ValueError(f"No system has vectors: leave out {', '.join(unused)}.")
    is_float = all(system.precision == "float32" for system in dense)
    if search.rescore and search.is_exact and is_float:
        raise ValueError(
            f"rescore is {search.rescore}, but exact search has the exact scores already: name an"
            " index, such as IVF256,Flat, or a precision, or leave it out."
        )
    return list(systems.values())


def _base_name(model: str) -> str:
    """Return the last part of a folder or Hub name; for `model` in a run folder, the run's name."""
    path = Path(model).resolve()
    if path.is_file():
        return path.stem
    return path.parent.name if path.name == MODEL_FOLDER else path.name


def _quote(text: str) -> str:
    is_plain = "," not in text and not text.startswith('"')
    return text if is_plain else '"{}"'.format(text.replace('"', '""'))


def _short(value: Any) -> str:
    """Shorten a value, such as a prompt, for a name on one line."""
    text, words = str(value), " ".join(str(value).split())
    if len(text) <= _LONGEST_VALUE and text.isprintable():
        return text
    return f"{words[: _LONGEST_VALUE // 2]}…{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def as_folder(name: str) -> str:
    """Convert a name into the name of a folder."""
    folder = re.sub(r"[^\w.=-]+", "_", name)
    if len(folder.encode()) <= _LONGEST_NAME:
        return folder
    return f"{folder[: _LONGEST_NAME // 5]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
