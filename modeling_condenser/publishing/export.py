"""Export the backbone of a pre-training checkpoint as a plain encoder's repository.

An export has no remote code: it opens with transformers and with sentence-transformers 6 or later.
It may hold the encoder as an int8 ONNX file, too, which can also be added to a copy of any model.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_condenser.encoder_files import write_encoder
from modeling_condenser.encoder_parts import n_positions
from modeling_condenser.files.models import (
    INT8_FILE,
    LENGTHS,
    EncodingContract,
    drop_code_names,
    find_model_folder,
    is_checkpoint,
    quiet_loading,
    read_contract,
    refuse_links,
    states_encoding,
)
from modeling_condenser.files.run_folder import DATA, atomic_folder, checksum_file
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.modeling_condenser import CondenserModel, refuse_incomplete

from .card import CARD_FILE, write_card
from .onnx_graph import add_int8
from .provenance import (
    PROVENANCE_FILE,
    RESULTS_FILE,
    Stage,
    add_results_of,
    read_start,
    write_provenance,
)

EVALUATION_SCRIPT = "evaluate_retrieval.py"
_ADDED = {CARD_FILE, PROVENANCE_FILE, EVALUATION_SCRIPT, RESULTS_FILE}
_ADDED |= {Path(INT8_FILE).parts[0], "2_Normalize", "sentence_bert_config.json"}


@dataclass(frozen=True)
class ExportRecipe:
    """What to export, and where to.

    Attributes:
        checkpoint: a pre-training run, one of its checkpoints, or the Hub name of one
            (owner/name@revision pins it). With onnx, any other model too, which is copied.
        out: folder to write; an earlier export of the same run is replaced.
        contract: fields of EncodingContract, such as {pooling: mean}, that differ from those of the
            checkpoint.
        onnx: int8 adds the encoder with int8 weights for ONNX Runtime, which is faster on a CPU:
            MODEL,dtype=int8.
    """

    checkpoint: str
    out: str
    contract: dict[str, Any] | None = None
    onnx: Literal["int8"] | None = None

    def __post_init__(self) -> None:
        """Check names and types of the contract's fields; the lengths have no defaults."""
        lengths = {"query_max_length": 1, "passage_max_length": 1}
        parse_settings({**lengths, **(self.contract or {})}, EncodingContract)


def export(**settings: Any) -> Path:
    """Export the backbone of a checkpoint as a plain encoder of its own model type.

    Code of a repository is never executed. The folder is written atomically.

    Args:
        **settings: fields of `ExportRecipe`.

    Returns:
        `out`: what `save_encoder` writes, with the evaluation script, provenance and card.

    Raises:
        ValueError: `out` holds something else, the checkpoint has no or not all weights, or a
            library is not installed.
    """
    (recipe,) = parse_settings(settings, ExportRecipe)
    out, source = Path(recipe.out), find_model_folder(recipe.checkpoint)
    if not recipe.onnx and not is_checkpoint(source):
        raise ValueError(
            f"{recipe.checkpoint} is not a pre-training checkpoint, so there is nothing to export: "
            "name a run folder of `condenser pretrain`, use the model as it is, or add --onnx int8."
        )
    if recipe.contract and not is_checkpoint(source):
        raise ValueError(
            f"contract is for pre-training checkpoints, and {recipe.checkpoint} states how it "
            "encodes: leave contract out, or export the checkpoint again."
        )
    stages = read_start(source)
    _check_replaceable(out, source, stages)
    with quiet_loading(), atomic_folder(out) as partial:
        if is_checkpoint(source):
            _write_backbone(partial, source, stages, recipe.contract)
        else:
            refuse_links(source)
            shutil.copytree(source, partial, dirs_exist_ok=True)
            drop_code_names(partial)
        if (out / CARD_FILE).is_file():  # a person's own text in it is kept
            shutil.copyfile(out / CARD_FILE, partial / CARD_FILE)
        if have_equal_weights(out, partial) and read_contract(out) == read_contract(partial):
            add_results_of(out, partial)
        if recipe.onnx:
            add_int8(partial)
        if stages and states_encoding(partial):  # no copy of a model of others
            write_card(partial)
    return out


def export_encoder(checkpoint: str | Path, out: str | Path, **settings: Any) -> Path:
    """`export` with its first two fields in order; `contract` may be an `EncodingContract`."""
    if isinstance(settings.get("contract"), EncodingContract):
        settings["contract"] = asdict(settings["contract"])
    return export(checkpoint=checkpoint, out=out, **settings)


def have_equal_weights(one: Path, other: Path) -> bool:
    """Whether the folders of two encoders hold equal weights."""
    weights = [
        {file.name: checksum_file(file) for file in folder.glob("*.safetensors")}
        for folder in (one, other)
    ]
    return weights[0] == weights[1]


def _check_replaceable(out: Path, source: Path, stages: Sequence[Stage]) -> None:
    """Raise a ValueError unless a folder is new, empty, or an export of the same run alone."""
    names = {file.name for file in out.glob("*")}
    if not names:
        return
    then, now = (
        [(stage.name, stage.recipe, stage.run.get(DATA)) for stage in made]
        for made in (read_start(out), stages)
    )
    # An export has the files of its checkpoint, and these.
    replaced = {file.name for file in source.iterdir()} | _ADDED
    is_same_run = now and then == now  # nothing is recorded of a model of others
    if not is_same_run or names - replaced:
        raise ValueError(
            f"{out} is not empty and not only an earlier export of this run: name another folder. "
            f"It holds {', '.join(sorted(names - replaced)) or 'a model'}"
            f"{'' if now else ', and nothing is recorded of how this one was trained'}."
        )


def _write_backbone(
    folder: Path, source: Path, stages: Sequence[Stage], contract: dict[str, Any] | None
) -> None:
    loaded: Any = CondenserModel.from_pretrained(source, output_loading_info=True)
    model, info = loaded
    refuse_incomplete(source, info["missing_keys"], set())
    longest = n_positions(model.encoder)
    for name in LENGTHS:
        if contract and longest and contract.get(name, 0) > longest:
            raise ValueError(
                f"{name} is {contract[name]}, but the encoder has positions for {longest} tokens."
            )
    model.save_encoder(folder, contract=contract)
    add_records(folder, stages)


def write_repository(
    folder: Path,
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contract: EncodingContract,
    stages: Sequence[Stage],
) -> None:
    """Write the repository of an encoder that `stages` made, without a card, into an empty folder.

    The tokenizer is changed (`save_tokenizer`).
    """
    with quiet_loading():
        write_encoder(folder, encoder, tokenizer, asdict(contract))
    add_records(folder, stages)


def add_records(folder: Path, stages: Sequence[Stage]) -> None:
    """Add evaluation script and provenance to an encoder."""
    shutil.copyfile(Path(__file__).with_name(EVALUATION_SCRIPT), folder / EVALUATION_SCRIPT)
    write_provenance(folder, stages)
