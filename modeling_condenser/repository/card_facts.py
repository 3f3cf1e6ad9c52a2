"""What a card is made from: a repository's folder in, what its files say out, nothing else."""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modeling_condenser.runs.run_folder import MODEL_FOLDER

from .contract import CONTRACT_FILE, EncodingContract
from .provenance import Stage, read_provenance
from .results import EvaluationResult, read_results

CONFIG_FILE = "config.json"
CURVES_FILE = "training_curves.png"
EVALUATION_SCRIPT = "evaluate_retrieval.py"
_CHECKPOINT = "condenser"


@dataclass(frozen=True)
class RemoteFile:
    """A file of code that opening a checkpoint executes.

    Attributes:
        name: of the file.
        imports: the packages that it imports, and the files beside it.
    """

    name: str
    imports: Sequence[str]


@dataclass(frozen=True)
class CardFacts:
    """What a card may say.

    Attributes:
        title: of the model.
        contract: how it encodes; None for a pre-training checkpoint.
        config: content of config.json; empty where there is none.
        stages: that made it.
        results: of its evaluations.
        code: files that `trust_remote_code` executes.
        has_script: whether it can be evaluated by a script of its own.
        license: the card's; None if it states none.
    """

    title: str
    contract: EncodingContract | None
    config: Mapping[str, Any] = field(default_factory=dict)
    stages: Sequence[Stage] = ()
    results: Sequence[EvaluationResult] = ()
    code: Sequence[RemoteFile] = ()
    has_script: bool = False
    license: str | None = None

    @property
    def has_head(self) -> bool:
        """Whether a checkpoint holds a Condenser head, or is of plain MLM."""
        return "CondenserForMaskedLM" not in (self.config.get("architectures") or ())


def read_facts(folder: Path) -> CardFacts:
    """Read what a card is made from.

    Raises:
        ValueError: the folder is neither an encoder with a contract nor a checkpoint.
    """
    config_file = folder / CONFIG_FILE
    config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
    has_contract = (folder / CONTRACT_FILE).is_file()
    if not has_contract and config.get("model_type") != _CHECKPOINT:
        raise ValueError(
            f"{folder} has no {CONTRACT_FILE}, and no {CONFIG_FILE} of a Condenser checkpoint, so "
            "there is nothing to make a card from: name a folder that `condenser export`, "
            "`condenser finetune` or `condenser pretrain` has written."
        )
    return CardFacts(
        title=_title(folder),
        contract=EncodingContract.load(folder) if has_contract else None,
        config=config,
        stages=read_provenance(folder),
        results=read_results(folder),
        code=() if has_contract else read_code(folder, config),
        has_script=(folder / EVALUATION_SCRIPT).is_file(),
    )


def read_code(folder: Path, config: Mapping[str, Any]) -> list[RemoteFile]:
    """The files that a config's `auto_map` names, and those that they import from beside them."""
    classes = [str(name) for name in (config.get("auto_map") or {}).values()]
    waiting = sorted({name.rpartition("--")[2].partition(".")[0] for name in classes})
    found: dict[str, RemoteFile] = {}
    while waiting:
        name = f"{waiting.pop(0)}.py"
        if name in found or not (folder / name).is_file():
            continue
        outer, beside = _imports((folder / name).read_text(encoding="utf-8"))
        files = [f"{module}.py" for module in beside]
        found[name] = RemoteFile(name, [*outer, *files])
        waiting += beside
    return [found[name] for name in sorted(found)]


def _imports(source: str) -> tuple[list[str], list[str]]:
    """Packages, and modules beside the file, that a source text imports."""
    outer: set[str] = set()
    beside: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            outer.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            beside.add(str(node.module))
        elif isinstance(node, ast.ImportFrom):
            outer.add(str(node.module).partition(".")[0])
    return sorted(outer), sorted(beside)


def _title(folder: Path) -> str:
    """A repository's name; a run's, if it lies in a run folder; the same while it is written."""
    name = folder.resolve().name.removeprefix(".").removesuffix(".partial")
    return folder.resolve().parent.name if name == MODEL_FOLDER else name
