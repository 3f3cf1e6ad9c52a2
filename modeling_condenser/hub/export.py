"""Export the backbone of a pre-training checkpoint as a plain encoder's repository.

An export has no remote code: it opens with transformers and with sentence-transformers 6 or later.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from modeling_condenser.encoder_parts import n_positions
from modeling_condenser.modeling_condenser import CondenserModel, refuse_incomplete
from modeling_condenser.runs.run_folder import whole_folder

from .card import CARD_FILE, write_card
from .contract import EncodingContract
from .model_folder import find_model_folder, is_checkpoint, quiet_loading
from .provenance import Stage, read_stages, trained_similarity, write_provenance

EVALUATION_SCRIPT = "evaluate_retrieval.py"


def export_encoder(
    checkpoint: str | Path, out: str | Path, *, contract: EncodingContract | None = None
) -> Path:
    """Export the backbone of a checkpoint as a plain encoder of its own model type.

    Args:
        checkpoint: a pre-training run folder, one of its checkpoints, or the Hub name of one
            (`owner/name@revision` pins it); code of a repository is never executed here.
        out: folder to write, atomically; an earlier export is replaced.
        contract: by default CLS, the similarity of the contrast that the encoder was trained with
            (otherwise the dot product), and the longest sequence that tokenizer and positions
            allow.

    Returns:
        `out`: the encoder's config.json and model.safetensors (hidden states bit-identical to the
        backbone's), tokenizer, sentence-transformers modules, contract, evaluation script and card.

    Raises:
        ValueError: `out` holds something else, or the checkpoint has no or not all weights.
    """
    out = Path(out)
    is_taken = any(out.iterdir()) if out.is_dir() else out.exists()
    if is_taken and not (out / EVALUATION_SCRIPT).is_file():
        raise ValueError(f"{out} is not empty and not an earlier export: choose another folder.")
    source = find_model_folder(checkpoint)
    if not is_checkpoint(source):
        raise ValueError(
            f"{checkpoint} is not a pre-training checkpoint, so there is nothing to export: name a"
            " run folder of `condenser pretrain`, or use a plain encoder as it is."
        )
    with quiet_loading():
        loaded: Any = CondenserModel.from_pretrained(source, output_loading_info=True)
    model, info = loaded
    refuse_incomplete(source, info["missing_keys"], set())
    tokenizer = AutoTokenizer.from_pretrained(source)
    stages = read_stages(source)
    if contract is None:
        limit = tokenizer.model_max_length
        longest = min(limit, n_positions(model.encoder) or limit)
        contract = EncodingContract(longest, longest, similarity=trained_similarity(stages))
    with whole_folder(out) as partial:
        if (out / CARD_FILE).is_file():  # a person's own text in it is kept
            shutil.copyfile(out / CARD_FILE, partial / CARD_FILE)
        write_repository(partial, model.encoder, tokenizer, contract, stages)
    return out


def write_repository(
    folder: Path,
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contract: EncodingContract,
    stages: Sequence[Stage],
    *,
    name: str | None = None,
) -> None:
    """Write the repository of an encoder that `stages` made into an empty folder.

    `name` is `owner/name` on the Hub, if known. The tokenizer is changed (`save_tokenizer`).
    """
    with tempfile.TemporaryDirectory() as scratch, quiet_loading():
        plain = Path(scratch, "encoder")  # whose mode `copytree` copies: others may read it
        encoder.save_pretrained(plain)
        save_tokenizer(tokenizer, contract, plain)
        _save_sentence_transformer(plain, folder, contract)
        shutil.copytree(plain, folder, dirs_exist_ok=True)  # as the encoder itself saves them
    contract.save(folder)
    shutil.copyfile(Path(__file__).with_name(EVALUATION_SCRIPT), folder / EVALUATION_SCRIPT)
    write_provenance(folder, stages)
    write_card(folder, name=name)


def save_tokenizer(
    tokenizer: PreTrainedTokenizerBase, contract: EncodingContract, folder: Path
) -> None:
    """Save a tokenizer with the lengths and inputs of the contract."""
    tokenizer.model_max_length = max(contract.query_max_length, contract.passage_max_length)
    if not contract.token_type_ids:
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
        # The attribute alone is not saved.
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    forget_session(tokenizer)
    tokenizer.save_pretrained(folder)


def forget_session(tokenizer: PreTrainedTokenizerBase) -> None:
    """Remove settings that `save_pretrained` should not store: of opening and of the last call."""
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()


def _save_sentence_transformer(encoder: Path, out: Path, contract: EncodingContract) -> None:
    """Save a stored encoder with the pooling, lengths and prompts of the contract."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    transformer = Transformer(
        str(encoder),
        max_seq_length=max(contract.query_max_length, contract.passage_max_length),
        query_length=contract.query_max_length,
        document_length=contract.passage_max_length,
    )
    dimension = transformer.get_embedding_dimension()
    modules = [transformer, Pooling(dimension, pooling_mode=contract.pooling)]
    model = SentenceTransformer(
        modules=[*modules, Normalize()] if contract.similarity == "cosine" else modules,
        similarity_fn_name=contract.similarity,
        prompts={"query": contract.query_prompt, "document": contract.passage_prompt},
    )
    model.save_pretrained(str(out), create_model_card=False)
