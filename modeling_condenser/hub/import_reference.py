"""Import a checkpoint of the papers' own implementation (github.com/luyug/Condenser).

That implementation writes a folder with config.json, pytorch_model.bin (backbone and LM head, as a
masked LM), model.pt (`c_head.N.*`, the layers of the Condenser head; of a coCondenser `co_target`,
too) and pickled arguments, which are never opened here; in some cases also the tokenizer.

The backbones on the Hub (Luyu/condenser, Luyu/co-condenser-wiki, Luyu/co-condenser-marco) have no
model.pt: they are plain encoders, which `condenser_from_encoder` opens.
"""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.configuration_condenser import CondenserConfig
from modeling_condenser.modeling_condenser import CondenserForPreTraining
from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import checksum_file

from .card import write_card
from .model_folder import CONFIG_FILE
from .provenance import PRETRAINING, Stage, write_provenance
from .quiet_loading import quiet_loading

HEAD_FILE = "model.pt"
BACKBONE_FILES = ("model.safetensors", "pytorch_model.bin")  # in the order transformers prefers
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")

_MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "camembert")
# The reference's names -> ours; RoBERTa's LM head has one name in both.
_RENAMED = {
    r"^(bert|roberta)\.": "condenser.encoder.",
    r"^cls\.": "lm_head.",
    r"^c_head\.": "head.",
}
_HEAD_NAME = re.compile(r"c_head\.(\d+)\.")
# Buffers of older libraries, BERT's next-sentence layer, and coCondenser's pairs of spans.
_NOT_NEEDED = re.compile(
    r"(bert|roberta)\.embeddings\.(position|token_type)_ids|cls\.seq_relationship\.\w+|co_target"
)

Tensors = dict[str, torch.Tensor]


def import_reference(
    folder: str | Path,
    out: str | Path,
    *,
    skip_from: int,
    late_mlm: bool = True,
    tokenizer: str | None = None,
) -> Path:
    """Turn a folder of the reference implementation into a checkpoint of ours, weight by weight.

    Pickles are read as tensors only; code in them is refused and never executed.

    Args:
        folder: local folder that the reference's trainer saved: its output or a `checkpoint-N`.
        out: new or empty folder, written atomically.
        skip_from: backbone layer whose tokens the head reads, as it was pre-trained. No file states
            it: the reference's default is 2, the commands in its README (BERT base) set 6.
        late_mlm: whether further training includes the late MLM loss, eq. (10). Off by default in
            the reference, but on in the commands of its README.
        tokenizer: Hub name or folder; the one within `folder` by default.

    Returns:
        `out`: a checkpoint with code, tokenizer, provenance and card.

    Raises:
        ValueError: the folder is no such checkpoint, or its files do not fit each other.
    """
    folder, out = Path(folder), Path(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ValueError(f"{out} exists and is not empty: choose another folder for the import.")
    backbone_file, head_file = _find_backbone(folder), folder / HEAD_FILE
    encoder_config, opened = _read_config(folder), _open_tokenizer(folder, tokenizer)
    backbone, head = _read_tensors(backbone_file), _read_tensors(head_file)
    layers = {int(found[1]) for name in head if (found := _HEAD_NAME.match(name))}
    if not layers:
        raise ValueError(f"{head_file} has no Condenser head: no tensor is called c_head.N.*")
    if len(opened) > encoder_config.vocab_size:
        raise ValueError(
            f"The tokenizer has {len(opened)} tokens, but {folder} embeds only "
            f"{encoder_config.vocab_size}: name the tokenizer that it was pre-trained with."
        )
    recipe: dict[str, Any] = {"skip_from": skip_from, "late_mlm": late_mlm}
    recipe["n_head_layers"] = len(layers)
    model = CondenserForPreTraining(CondenserConfig(encoder_config=encoder_config, **recipe))
    left_out = _load(model, {**backbone, **head}, folder)
    files = {"backbone": (backbone_file, backbone), "head": (head_file, head)}
    facts = {
        "objective": "condenser",
        "files": {
            part: {"name": file.name, "sha256": checksum_file(file), "tensors": len(tensors)}
            for part, (file, tensors) in files.items()
        },
        "left_out": left_out,
    }
    with quiet_loading(), whole_folder(out) as partial:
        model.save_pretrained(partial)
        opened.save_pretrained(partial)
        stage = Stage(PRETRAINING, {"imported_from": "github.com/luyug/Condenser", **recipe}, facts)
        write_provenance(partial, [stage])
        write_card(partial)
    return out


def _find_backbone(folder: Path) -> Path:
    found = [folder / name for name in BACKBONE_FILES if (folder / name).is_file()]
    if not found or not (folder / CONFIG_FILE).is_file():
        raise ValueError(
            f"{folder} is no reference checkpoint: expected a local folder with {CONFIG_FILE}, "
            f"{' or '.join(BACKBONE_FILES)}, and {HEAD_FILE}."
        )
    if not (folder / HEAD_FILE).is_file():
        raise ValueError(
            f"{folder} has no {HEAD_FILE}, so it is a plain encoder without a Condenser head: use "
            "it as such, or start a new head on it (condenser pretrain --encoder)."
        )
    return found[0]


def _read_config(folder: Path) -> Any:
    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if config.model_type not in _MODEL_TYPES:
        raise ValueError(
            f"{folder} holds a model of type {config.model_type!r}, expected one of "
            f"{', '.join(_MODEL_TYPES)}, "
            "which the reference implementation pre-trains."
        )
    config._name_or_path = ""  # a local folder, which would be saved
    config.dtype = torch.float32  # a backbone saved in half precision must not be built in it
    return config


def _open_tokenizer(folder: Path, tokenizer: str | None) -> PreTrainedTokenizerBase:
    # Without a vocabulary the library would make an empty tokenizer, and say nothing.
    if tokenizer is None and not any((folder / name).is_file() for name in _VOCABULARIES):
        raise ValueError(
            f"{folder} has no tokenizer ({', '.join(_VOCABULARIES)}): name the one it was "
            "pre-trained with, such as --tokenizer google-bert/bert-base-uncased."
        )
    opened: Any = AutoTokenizer.from_pretrained(tokenizer or folder, trust_remote_code=False)
    for name in ("is_local", "local_files_only"):  # how it was opened here
        opened.init_kwargs.pop(name, None)
    return opened


def _read_tensors(file: Path) -> Tensors:
    """Read a file of named tensors, and no code with them."""
    try:
        is_safe = file.suffix == ".safetensors"
        return load_file(file) if is_safe else torch.load(file, "cpu", weights_only=True)
    except Exception as error:  # the readers raise nearly every kind on damaged bytes
        reason = str(error).partition("\n")[0][:200]
        raise ValueError(
            f"{file} cannot be read as a file of tensors, and nothing in it was executed "
            f"({type(error).__name__}: {reason}). Get the checkpoint from its source again."
        ) from error


def _load(model: CondenserForPreTraining, given: Tensors, folder: Path) -> list[str]:
    """Give every weight of a model its value; returns the tensors that it has no place for."""
    left_out = sorted(name for name in given if _NOT_NEEDED.fullmatch(name))
    weights = {}
    for name in given.keys() - left_out:
        our_name = name
        for pattern, ours in _RENAMED.items():
            our_name = re.sub(pattern, ours, our_name)
        weights[our_name] = given[name]
    for target, source in model._tied_weights_keys.items():
        # The file may hold one of the two names; the biases are one, tied embeddings or not.
        if model.config.tie_word_embeddings or target.endswith("bias"):
            for name, other in ((target, source), (source, target)):
                if other in weights:
                    weights.setdefault(name, weights[other])
    # Masked LMs have no pooler, and no loss reads it: the identity, that is tanh(CLS).
    for name, value in model.state_dict().items():
        if ".pooler." in name:
            is_bias = name.endswith("bias")
            weights.setdefault(name, torch.zeros_like(value) if is_bias else torch.eye(len(value)))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"The weights in {folder} do not fit its {CONFIG_FILE}: check that the files were "
            f"saved together. {error}"
        ) from error
    state = model.state_dict()
    for name, value in weights.items():
        if not torch.equal(state[name], value.to(state[name].dtype)):
            raise ValueError(
                f"{folder}: {name} differs from the weight that {CONFIG_FILE} ties it to: set "
                "tie_word_embeddings to false there if they were trained apart."
            )
    return left_out
