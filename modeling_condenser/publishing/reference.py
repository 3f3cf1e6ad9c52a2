"""Import a checkpoint of the papers' own implementation (github.com/luyug/Condenser).

That implementation writes a folder:

    config.json, pytorch_model.bin (or model.safetensors)   backbone and LM head, as a masked LM
    model.pt                    a state dict: `c_head.N.*`, the layers of the Condenser head; of a
                                coCondenser also `co_target`, which pairs a batch's spans
    args.pt, training_args.bin  pickled objects with code, which are never opened here
    vocabulary files            of the tokenizer, where it was saved too

The backbones on the Hub (Luyu/condenser, Luyu/co-condenser-wiki, Luyu/co-condenser-marco) have no
model.pt: they are plain encoders, which `condenser_from_encoder` opens.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.configuration_condenser import CondenserConfig
from modeling_condenser.hub.model_folder import CONFIG_FILE
from modeling_condenser.hub.quiet_loading import quiet_loading
from modeling_condenser.modeling_condenser import CondenserForPreTraining
from modeling_condenser.pretraining.warm_start import check_fit
from modeling_condenser.repository.card import write_card
from modeling_condenser.repository.provenance import PRETRAINING, Stage, write_provenance
from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import checksum_file

HEAD_FILE = "model.pt"
BACKBONE_FILES = ("model.safetensors", "pytorch_model.bin")  # in the order transformers prefers
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")

# The reference's names -> ours, for each model type.
_BERT = {"bert.": "condenser.encoder.", "cls.": "lm_head.", "c_head.": "head."}
_ROBERTA = {"roberta.": "condenser.encoder.", "lm_head.": "lm_head.", "c_head.": "head."}
_NAMES = {"bert": _BERT, "roberta": _ROBERTA, "xlm-roberta": _ROBERTA, "camembert": _ROBERTA}
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
    backbone_file, head_file = _find_weights(folder), folder / HEAD_FILE
    encoder_config = _read_config(folder)
    opened = _open_tokenizer(folder, tokenizer)
    backbone, head = _read_tensors(backbone_file), _read_tensors(head_file)
    layers = {int(found[1]) for name in head if (found := _HEAD_NAME.match(name))}
    if not layers:
        raise ValueError(f"{head_file} has no Condenser head: no tensor is called c_head.N.*")
    recipe: dict[str, Any] = {"skip_from": skip_from, "late_mlm": late_mlm}
    recipe["n_head_layers"] = len(layers)
    model = CondenserForPreTraining(CondenserConfig(encoder_config=encoder_config, **recipe))
    check_fit(opened, model, max_length=1)
    left_out = _fill(model, backbone, head, folder)
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


def _find_weights(folder: Path) -> Path:
    """The file of the backbone; refuses a folder that is no reference checkpoint."""
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
    if config.model_type not in _NAMES:
        raise ValueError(
            f"{folder} holds a model of type {config.model_type!r}, expected {', '.join(_NAMES)}, "
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
    """Read a file of named tensors under their current names, and no code with them."""
    try:
        is_safe = file.suffix == ".safetensors"
        content = load_file(file) if is_safe else torch.load(file, "cpu", weights_only=True)
    except Exception as error:  # the readers raise nearly every kind on damaged bytes
        reason = str(error).partition("\n")[0][:200]
        raise ValueError(
            f"{file} cannot be read as a file of tensors, and nothing in it was executed "
            f"({type(error).__name__}: {reason}). Get the checkpoint from its source again."
        ) from error
    renamed = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    tensors = {}
    for name, value in content.items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        tensors[name] = value
    return tensors


def _fill(
    model: CondenserForPreTraining, backbone: Tensors, head: Tensors, folder: Path
) -> list[str]:
    """Give every weight of a model its value; returns the tensors that it has no place for."""
    # A whole state dict in model.pt repeats the backbone as `lm.*`.
    copies = {name: name.removeprefix("lm.") for name in head if name.startswith("lm.")}
    given = {**backbone, **{name: value for name, value in head.items() if name not in copies}}
    left_out = [name for name in given if _NOT_NEEDED.fullmatch(name)]
    for name, original in copies.items():
        is_compared = original in backbone and original not in left_out
        if is_compared and not torch.equal(head[name], backbone[original]):
            raise ValueError(f"{folder}: {HEAD_FILE} has another {original} than the backbone.")
    weights = {
        _our_name(name, _NAMES[model.config.encoder_config.model_type]): value
        for name, value in given.items()
        if name not in left_out
    }
    _complete_tied(weights, model, folder)
    _complete_pooler(weights, model.state_dict())
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"The weights in {folder} do not fit its {CONFIG_FILE}: check that the files were "
            f"saved together. {error}"
        ) from error
    return sorted([*left_out, *copies])


def _our_name(name: str, prefixes: Mapping[str, str]) -> str:
    for theirs, ours in prefixes.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _complete_tied(weights: Tensors, model: CondenserForPreTraining, folder: Path) -> None:
    """Add weights that the file holds under one of two names only."""
    is_tied = model.config.tie_word_embeddings
    for target, source in model._tied_weights_keys.items():
        # The two biases were one in the libraries of the reference, tied embeddings or not.
        if not is_tied and not target.endswith("bias"):
            continue
        first = weights.get(source, weights.get(target))
        if first is None:
            continue
        if is_tied and not torch.equal(weights.get(target, first), first):
            raise ValueError(
                f"{folder}: {target} and {source} differ, but {CONFIG_FILE} ties them: set "
                "tie_word_embeddings to false there if they were trained apart."
            )
        weights.setdefault(target, first)
        weights.setdefault(source, first)


def _complete_pooler(weights: Tensors, state: Tensors) -> None:
    """Make the pooler, which masked LMs lack and no loss reads, the identity: tanh(CLS)."""
    poolers = [name for name in state if ".pooler." in name]
    if not any(name in weights for name in poolers):
        for name in poolers:
            shape = state[name].shape
            weights[name] = torch.zeros(shape) if name.endswith("bias") else torch.eye(*shape)
