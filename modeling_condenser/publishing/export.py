"""The export: a pre-training checkpoint in, a plain encoder's repository folder out."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from modeling_condenser.hub.model_folder import (
    MODULES_FILE,
    find_model_folder,
    resolve_encoder_name,
)
from modeling_condenser.hub.quiet_loading import quiet_loading
from modeling_condenser.modeling_condenser import CondenserModel
from modeling_condenser.pretraining.positions import n_positions
from modeling_condenser.repository.card import CARD_FILE, write_card
from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.repository.provenance import (
    Stage,
    read_pretraining,
    read_provenance,
    write_provenance,
)
from modeling_condenser.runs.run_folder import MODEL_FOLDER, whole_folder
from modeling_condenser.runs.whole_files import write_json

EVALUATION_SCRIPT = "evaluate_retrieval.py"


def export_encoder(
    checkpoint: str | Path, out: str | Path, *, contract: EncodingContract | None = None
) -> Path:
    """Export the backbone of a checkpoint as a plain encoder of its own model type.

    Args:
        checkpoint: a pre-training run folder, one of its checkpoints, or the Hub name of one
            (`owner/name@revision` pins it); code of a repository is never executed here.
        out: folder to write, whole or not at all.
        contract: how the encoder is to be used; by default CLS, dot product, and the longest
            sequence that its tokenizer allows and it has positions for.

    Returns:
        `out`: the encoder's config.json and model.safetensors (hidden states bit-identical to the
        backbone's), tokenizer, sentence-transformers modules, contract, evaluation script and card.

    Raises:
        ValueError: `out` holds something else than an earlier export, or the checkpoint lacks
            weights of the encoder.
    """
    out = Path(out)
    _refuse_foreign(out)
    source = str(find_model_folder(resolve_checkpoint(checkpoint)))
    model = _load_backbone(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    contract = contract or _default_contract(tokenizer, model)
    stages = read_provenance(Path(source)) or read_pretraining(_run_folder(source))
    with whole_folder(out) as partial:
        if (out / CARD_FILE).is_file():  # what a person wrote on it stays
            shutil.copyfile(out / CARD_FILE, partial / CARD_FILE)
        write_repository(partial, model.encoder, tokenizer, contract, stages)
    return out


def _load_backbone(source: str) -> CondenserModel:
    """Load a checkpoint's backbone, whole."""
    with quiet_loading():
        loaded: Any = CondenserModel.from_pretrained(source, output_loading_info=True)
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(
            f"{source} lacks {len(missing)} of the encoder's weights, such as {missing[0]}, and "
            "random ones would be exported in their place: the checkpoint is damaged; save it anew."
        )
    return model


def _run_folder(source: str) -> Path:
    """The run folder that a model or a checkpoint lies in."""
    return Path(source).resolve().parent


def resolve_checkpoint(checkpoint: str | Path) -> str:
    """The folder (or Hub name) that holds the weights of a run, a checkpoint or a repository."""
    folder = resolve_encoder_name(checkpoint)
    model = Path(folder) / MODEL_FOLDER
    return str(model) if model.is_dir() else folder


def write_repository(
    folder: Path,
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contract: EncodingContract,
    stages: Sequence[Stage],
    *,
    name: str | None = None,
) -> None:
    """Write all that a published repository holds.

    Args:
        folder: existing and empty.
        encoder: of a model type that transformers knows.
        tokenizer: the encoder's.
        contract: how it encodes.
        stages: that made it.
        name: `owner/name` that it will have on the Hub, where that is known.
    """
    encoder.save_pretrained(folder)
    save_tokenizer(tokenizer, contract, folder)
    contract.save(folder)
    _write_sentence_transformers_modules(folder, contract)
    shutil.copyfile(Path(__file__).with_name(EVALUATION_SCRIPT), folder / EVALUATION_SCRIPT)
    write_provenance(folder, stages)
    write_card(folder, name=name)


def save_tokenizer(
    tokenizer: PreTrainedTokenizerBase, contract: EncodingContract, folder: Path
) -> None:
    """Save a tokenizer that does what the contract says, and nothing of this session with it."""
    tokenizer.model_max_length = max(contract.query_max_length, contract.passage_max_length)
    if not contract.token_type_ids:
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
        # The attribute alone is not saved.
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    for name in ("is_local", "local_files_only"):  # how it was opened here
        tokenizer.init_kwargs.pop(name, None)
    # What the last call cut and padded to would be saved as the tokenizer's own.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)


def _write_sentence_transformers_modules(folder: Path, contract: EncodingContract) -> None:
    """Let sentence-transformers write the module files that say what the contract says."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    with quiet_loading(), tempfile.TemporaryDirectory() as scratch:
        transformer = Transformer(
            str(folder),
            max_seq_length=max(contract.query_max_length, contract.passage_max_length),
            query_length=contract.query_max_length,
            document_length=contract.passage_max_length,
        )
        dimension = transformer.get_embedding_dimension()
        modules = [transformer, Pooling(dimension, pooling_mode=contract.pooling)]
        if contract.similarity == "cosine":
            modules.append(Normalize())
        model = SentenceTransformer(
            modules=modules,
            similarity_fn_name=contract.similarity,
            prompts={"query": contract.query_prompt, "document": contract.passage_prompt},
        )
        model.save_pretrained(scratch, create_model_card=False)
        _name_modules_for_all_versions(Path(scratch, MODULES_FILE))
        for file in Path(scratch).rglob("*"):
            target = folder / file.relative_to(scratch)
            if file.is_file() and not target.exists():
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)


def _name_modules_for_all_versions(file: Path) -> None:
    """Call the modules what sentence-transformers 5 and 6 both know them by."""
    modules = json.loads(file.read_text(encoding="utf-8"))
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    write_json(file, modules)


def _default_contract(
    tokenizer: PreTrainedTokenizerBase, model: CondenserModel
) -> EncodingContract:
    limits = (tokenizer.model_max_length, n_positions(model.encoder))
    longest = min(limit for limit in limits if limit is not None)
    return EncodingContract(query_max_length=longest, passage_max_length=longest)


def _refuse_foreign(out: Path) -> None:
    is_taken = out.is_file() or (out.is_dir() and any(out.iterdir()))
    if is_taken and not (out / EVALUATION_SCRIPT).is_file():
        raise ValueError(f"{out} exists and is no earlier export: choose another folder.")
