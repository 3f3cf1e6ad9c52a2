"""A checkpoint of the papers' own implementation in, one of ours with the same head out.

That implementation (github.com/luyug/Condenser) writes a folder:

    config.json, pytorch_model.bin (or model.safetensors)   backbone and LM head, as a masked LM
    model.pt                    a state dict: `c_head.N.*`, the layers of the Condenser head; of a
                                coCondenser also `co_target`, which pairs a batch's spans
    args.pt, training_args.bin  pickled objects with code, which are never opened here
    vocabulary files            of the tokenizer, where it was saved too

The backbones on the Hub (Luyu/condenser, Luyu/co-condenser-wiki, Luyu/co-condenser-marco) have no
model.pt: they are plain encoders, which `condenser_from_encoder` opens.
"""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.configuration_condenser import CondenserConfig
from modeling_condenser.hub.quiet_loading import quiet_loading
from modeling_condenser.modeling_condenser import CondenserForPreTraining
from modeling_condenser.pretraining.examples import check_fit
from modeling_condenser.repository.card import write_card
from modeling_condenser.repository.provenance import PRETRAINING, Stage, write_provenance
from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import checksum_file

CONFIG_FILE = "config.json"
HEAD_FILE = "model.pt"
BACKBONE_FILES = ("model.safetensors", "pytorch_model.bin")  # in the order transformers prefers
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")

# What a masked LM of each model type calls the encoder and its LM head, and what we do.
_BERT = {"bert.": "condenser.encoder.", "cls.": "lm_head."}
_ROBERTA = {"roberta.": "condenser.encoder.", "lm_head.": "lm_head."}
_NAMES = {"bert": _BERT, "roberta": _ROBERTA, "xlm-roberta": _ROBERTA, "camembert": _ROBERTA}
_HEAD_NAME = re.compile(r"c_head\.(\d+)\.")
# What has no place in a Condenser and takes no part in its losses: buffers that older libraries
# saved, and BERT's next-sentence layer.
_NO_WEIGHT = re.compile(
    r"(bert|roberta)\.embeddings\.(position|token_type)_ids|cls\.seq_relationship\.(weight|bias)"
)
_CO_TARGET = "co_target"

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

    Pickles are read as tensors only: one that asks for anything else is refused, and nothing of it
    is executed.

    Args:
        folder: local folder that the reference's trainer saved: its output or a `checkpoint-N`.
        out: new or empty folder, written whole or not at all.
        skip_from: backbone layer whose tokens the head reads, as it was pre-trained. No file that
            can be opened safely says it: the reference's own default is 2, the commands in its
            README (BERT base, 12 layers) set 6.
        late_mlm: whether the checkpoint is trained on with the late MLM loss, eq. (10); no weight
            and no prediction depends on it. Off by default in the reference, but on in the
            commands of its README, and here.
        tokenizer: Hub name or folder; the one within `folder` by default.

    Returns:
        `out`: config.json, model.safetensors, the two code files, the tokenizer,
        provenance and card, which say what was read. Of a coCondenser the weights are taken: its
        contrastive loss has none.

    Raises:
        ValueError: the folder is no such checkpoint, or its files do not fit each other.
    """
    folder, out = Path(folder), Path(out)
    _refuse_taken(out)
    files = _Files.find(folder)
    encoder_config = _read_config(files.config)
    opened = _open_tokenizer(folder, tokenizer)
    backbone, extra = _read_tensors(files.backbone), _read_tensors(files.head)
    config = CondenserConfig(
        encoder_config=encoder_config,
        n_head_layers=_count_layers(files.head, extra),
        skip_from=skip_from,
        late_mlm=late_mlm,
    )
    model = CondenserForPreTraining(config)
    check_fit(opened, model, max_length=1)
    recipe = {
        "imported_from": "github.com/luyug/Condenser",
        "n_head_layers": config.n_head_layers,
        "skip_from": skip_from,
        "late_mlm": late_mlm,
    }
    facts = {
        "files": {
            "backbone": _describe(files.backbone, backbone),
            "head": _describe(files.head, extra),
        },
        "backbone": {
            "model_type": encoder_config.model_type,
            "num_hidden_layers": encoder_config.num_hidden_layers,
        },
        "left_out": _fill(model, files, backbone, extra),
    }
    with quiet_loading(), whole_folder(out) as partial:
        model.save_pretrained(partial)
        opened.save_pretrained(partial)
        stage = Stage(PRETRAINING, recipe, {"objective": "condenser", **facts})
        write_provenance(partial, [stage])
        write_card(partial)
    return out


@dataclass(frozen=True)
class _Files:
    """The files of a reference checkpoint that are opened."""

    config: Path
    backbone: Path
    head: Path

    @classmethod
    def find(cls, folder: Path) -> "_Files":
        if not folder.is_dir():
            raise ValueError(
                f"{folder} is no folder. A reference checkpoint is imported from a local folder "
                f"with {CONFIG_FILE}, {' or '.join(BACKBONE_FILES)}, and {HEAD_FILE}: download it "
                "first."
            )
        config, head = folder / CONFIG_FILE, folder / HEAD_FILE
        backbones = [folder / name for name in BACKBONE_FILES if (folder / name).is_file()]
        if not config.is_file() or not backbones:
            raise ValueError(
                f"{folder} has no {CONFIG_FILE if backbones else ' or '.join(BACKBONE_FILES)}, but "
                f"holds {sorted(entry.name for entry in folder.iterdir())[:12]}. Expected is a "
                "folder that the reference's trainer saved, its weights in one file."
            )
        if not head.is_file():
            raise ValueError(
                f"{folder} has no {HEAD_FILE}, so it holds no Condenser head: it is a plain "
                "encoder. Use it as such, or start a new head on it with "
                "condenser_from_encoder(folder) (condenser pretrain --encoder does)."
            )
        return cls(config, backbones[0], head)


def _refuse_taken(out: Path) -> None:
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ValueError(f"{out} exists and is not empty: choose another folder for the import.")


def _read_config(file: Path) -> Any:
    config: Any = AutoConfig.from_pretrained(file.parent, trust_remote_code=False)
    if config.model_type == CondenserConfig.model_type:
        raise ValueError(
            f"{file} belongs to a Condenser checkpoint of this package: use it as it is."
        )
    if config.model_type not in _NAMES:
        raise ValueError(
            f"{file} describes a model of type {config.model_type!r}, but the reference "
            f"implementation pre-trains {', '.join(_NAMES)} only: check the folder."
        )
    config._name_or_path = ""  # a folder of this machine, which would be saved
    config.dtype = torch.float32  # a backbone saved in half precision must not be built in it
    return config


def _open_tokenizer(folder: Path, tokenizer: str | None) -> PreTrainedTokenizerBase:
    # Without a vocabulary the library would make an empty tokenizer, and say nothing.
    if tokenizer is None and not any((folder / name).is_file() for name in _VOCABULARIES):
        raise ValueError(
            f"{folder} has no tokenizer (none of {', '.join(_VOCABULARIES)}): name the one it was "
            "pre-trained with, such as --tokenizer google-bert/bert-base-uncased."
        )
    opened: Any = AutoTokenizer.from_pretrained(tokenizer or folder, trust_remote_code=False)
    for name in ("is_local", "local_files_only"):  # how it was opened here
        opened.init_kwargs.pop(name, None)
    return opened


def _read_tensors(file: Path) -> Tensors:
    """Read a file of named tensors, and no code with them: names as current libraries have them.

    Raises:
        ValueError: it holds anything else, or is damaged.
    """
    try:
        if file.suffix == ".safetensors":
            content = load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} holds more than tensors (objects or code), or is damaged. Expected was a "
            "state dict; none of it was executed, and none will be. Get the checkpoint from its "
            "source again, and beware of this file."
        ) from error
    except Exception as error:  # the readers raise nearly every kind on damaged bytes
        reason = str(error).partition("\n")[0][:200]
        raise ValueError(
            f"{file} cannot be read as a file of tensors ({type(error).__name__}: {reason}): it "
            "was not written to its end, or is of another kind. Copy the checkpoint anew."
        ) from error
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{file} holds a {type(content).__name__}; expected was a state dict.")
    tensors: Tensors = {}
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ValueError(
                f"{file} holds a {type(value).__name__} under {name!r}; expected was a state dict "
                "of tensors alone. Save the model's state_dict() under this name."
            )
        # TensorFlow's names of the same two, which the first libraries kept.
        current = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        current = current.replace("LayerNorm.beta", "LayerNorm.bias")
        if current in tensors:
            raise ValueError(f"{file} holds {current} twice, under an old name and a new one.")
        tensors[current] = value
    return tensors


def _count_layers(file: Path, extra: Tensors) -> int:
    numbers = sorted({int(found[1]) for name in extra if (found := _HEAD_NAME.match(name))})
    if not numbers:
        raise ValueError(
            f"{file} has no Condenser head: none of its {len(extra)} tensors is called c_head.N.*, "
            f"they are called {sorted(extra)[:3]}. If it is another program's file, remove it and "
            "use the folder as a plain encoder (condenser_from_encoder)."
        )
    if numbers != list(range(len(numbers))):
        raise ValueError(
            f"{file} has the head layers {numbers}, but they must count up from 0 without a gap: "
            "weights were lost or renamed; get the whole file."
        )
    return len(numbers)


def _describe(file: Path, tensors: Tensors) -> dict[str, Any]:
    return {"name": file.name, "sha256": checksum_file(file), "tensors": len(tensors)}


def _fill(
    model: CondenserForPreTraining, files: _Files, backbone: Tensors, extra: Tensors
) -> list[str]:
    """Give every weight of a model its value from the two files.

    Returns:
        Names of the tensors that have no place in it and need none.

    Raises:
        ValueError: a weight is missing or of another shape, or a tensor has no place.
    """
    renamed = _NAMES[model.config.encoder_config.model_type]
    state = model.state_dict()
    ours = {_their_name(name, renamed): name for name in state}
    weights = {theirs: state[name] for theirs, name in ours.items()}
    tied = {
        _their_name(target, renamed): _their_name(source, renamed)
        for target, source in model._tied_weights_keys.items()
    }

    kept = {name: value for name, value in backbone.items() if not _NO_WEIGHT.fullmatch(name)}
    _complete(files.backbone, kept, tied, is_tied=model.config.tie_word_embeddings)
    _complete_pooler(kept, weights)
    head = {name: value for name, value in extra.items() if _HEAD_NAME.match(name)}
    rest = {name: value for name, value in extra.items() if name not in head}
    copies = _check_copies(files, rest, kept)
    if _CO_TARGET in rest and not rest[_CO_TARGET].is_floating_point():
        copies.append(_CO_TARGET)
    head |= {name: value for name, value in rest.items() if name not in copies}

    of_head = {name for name in weights if _HEAD_NAME.match(name)}
    _refuse_misfit(files.backbone, kept, {n: w for n, w in weights.items() if n not in of_head})
    _refuse_misfit(files.head, head, {n: weights[n] for n in of_head})
    model.load_state_dict({ours[name]: value for name, value in (kept | head).items()})
    return sorted({*backbone} - {*kept}) + sorted(copies)


def _their_name(name: str, renamed: Mapping[str, str]) -> str:
    for theirs, ours in {**renamed, "c_head.": "head."}.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise AssertionError(f"no file of the reference holds {name}")


def _complete(file: Path, tensors: Tensors, tied: Mapping[str, str], *, is_tied: bool) -> None:
    """Add what a file leaves out because it is the same weight under another name."""
    for target, source in tied.items():
        # The two biases were one in the libraries of the reference, tied embeddings or not.
        if not is_tied and not target.endswith("bias"):
            continue
        if target in tensors and source in tensors:
            if is_tied and not torch.equal(tensors[target], tensors[source]):
                raise ValueError(
                    f"{file} has different values for {target} and {source}, which are one weight "
                    f"by its {CONFIG_FILE}: set tie_word_embeddings to false there if they were "
                    "trained apart, or save the model anew."
                )
        elif source in tensors:
            tensors[target] = tensors[source]
        elif target in tensors:
            tensors[source] = tensors[target]


def _complete_pooler(tensors: Tensors, weights: Tensors) -> None:
    """Make the pooler, which masked LMs lack and no loss reads, the identity: tanh(CLS)."""
    poolers = [name for name in weights if ".pooler." in name]
    if not any(name in tensors for name in poolers):
        for name in poolers:
            shape = weights[name].shape
            tensors[name] = torch.zeros(shape) if name.endswith("bias") else torch.eye(*shape)


def _check_copies(files: _Files, rest: Tensors, backbone: Tensors) -> list[str]:
    """Names of tensors in model.pt that repeat the backbone's, as `lm.<name>`.

    The reference leaves these out when it saves; a whole state dict has them.
    """
    copies = []
    for name, value in rest.items():
        original = name.removeprefix("lm.")
        if original == name:
            continue
        if _NO_WEIGHT.fullmatch(original):
            copies.append(name)
        elif original in backbone:
            if not torch.equal(value, backbone[original]):
                raise ValueError(
                    f"{files.head} says otherwise of {original} than {files.backbone}: they were "
                    "not saved together. Put the two files of one step into the folder."
                )
            copies.append(name)
    return copies


def _refuse_misfit(file: Path, tensors: Tensors, weights: Tensors) -> None:
    missing, unexpected = sorted({*weights} - {*tensors}), sorted({*tensors} - {*weights})
    wrong = [
        f"{name} is {_kind(tensors[name])} instead of {_kind(weights[name])}"
        for name in sorted({*weights} & {*tensors})
        if _kind(tensors[name]) != _kind(weights[name])
    ]
    problems = [
        f"{len(names)} {what}, such as {', '.join(names[:3])}"
        for names, what in (
            (missing, "weights are missing"),
            (unexpected, "tensors have no place"),
            (wrong, "tensors do not fit"),
        )
        if names
    ]
    if problems:
        raise ValueError(
            f"{file} does not fit the model that {CONFIG_FILE} describes: {'; '.join(problems)}. "
            f"The files must come from one checkpoint: check that {CONFIG_FILE}, the backbone and "
            f"{HEAD_FILE} were saved together, and whole."
        )


def _kind(tensor: torch.Tensor) -> str:
    """The shape, and the dtype where it is none of weights; precisions may differ."""
    number = "" if tensor.is_floating_point() else f" of {tensor.dtype}".replace("torch.", "")
    return f"{tuple(tensor.shape)}{number}"
