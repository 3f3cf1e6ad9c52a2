"""A model by its name: find its folder, read how it encodes, and open it.

A model with modules.json (an export, a fine-tuned retriever, any model of sentence-transformers)
states in its files how a text becomes a vector. Only the title separator is an addition of this
package, which sentence-transformers ignores: `title_separator` in
config_sentence_transformers.json. For a plain encoder (config.json alone) the caller states the
pooling, because vectors of a wrong pooling look right.

No code of a model's folder is executed. Importing this module does not import torch.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Literal, get_args

from .hub import fetch
from .run_folder import MODEL_FOLDER, chosen_checkpoint, read_json, write_json
from .settings import parse_settings

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Pooling = Literal["cls", "mean", "max"]
Similarity = Literal["dot", "cosine", "euclidean"]
Dtype = Literal["float32", "bfloat16", "int8"]
"""Type of an encoder's weights; "int8" is the file of `condenser export --onnx int8`."""

CONFIG_FILE = "config.json"
MODULES_FILE = "modules.json"
QUERY_FOLDER = "query_Router"  # of an adapted model: the map of its query vectors
MAP_FOLDER = "map_Dense"  # of one whose passages are moved, too
MODULES_CONFIG_FILE = "config_sentence_transformers.json"
INT8_FILE = "onnx/model_qint8.onnx"  # of `condenser export --onnx int8`
STARTER = "starter"
STARTER_TITLE = "starter of condenser"  # on cards
STARTER_FOLDER = Path(__file__).parent.parent / STARTER

# Sentence-transformers keeps the weights of small modules, such as 2_Dense, in pickles.
_NEEDED_FILES = "*.json *.txt *.model *.jinja *.safetensors *_Dense/pytorch_model.bin".split()
_NEEDED_FILES += ["bpe.codes", INT8_FILE]
_NEEDED_FILES += ["README.md", "LICENSE*", "NOTICE*"]  # a card has license and language
_OTHER_FORMATS = "openvino/* coreml/* gguf/* *checkpoint*/*".split()

UNLIMITED = 10**9  # transformers writes 10^30 for a tokenizer without a maximum length

_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # in sentence-transformers' order
_OLD_POOLINGS = {  # fields of a pooling's config.json in older versions of the library
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
LENGTHS = ("query_max_length", "passage_max_length")


def resolve_encoder_name(name: str | Path) -> str:
    """The folder of the bundled encoder for "starter", unless one is here; else the name."""
    return str(STARTER_FOLDER if name == STARTER and not Path(STARTER).exists() else name)


def find_model_folder(model: str | Path, **hub: Any) -> Path:
    """The folder of a model, downloaded if it is on the Hub; a FileNotFoundError if it is nowhere.

    `model` is a folder, a run (`find_weights`), "starter", or `owner/name[@revision]`. A ValueError
    is raised for files that name code of others. `hub` is for `snapshot_download`.
    """
    name = resolve_encoder_name(model)
    if Path(name).is_dir():
        folder = find_weights(Path(name)) or Path(name)
    else:
        folder = fetch(name, only=_NEEDED_FILES, without=_OTHER_FORMATS, **hub)
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("0_*/*.safetensors")):
            folder = fetch(name, only=["*pytorch_model*.bin"], without=_OTHER_FORMATS, **hub)
    refuse_modules(folder)
    for file in _find_configs(folder):
        if isinstance(config := read_json(file, {}), Mapping):
            refuse_kernels(config, file)
    refuse_adapter(folder)
    return folder


def _find_configs(folder: Path) -> Iterator[Path]:
    """Find the configurations that a model is opened with, those of nested modules among them.

    Raises:
        ValueError: a folder in it is a link, whose files would not be found.
    """
    inside = folder.rglob("*") if (folder / MODULES_FILE).is_file() else folder.glob("*")
    for path in inside:
        if path.is_symlink() and path.is_dir():
            raise ValueError(f"{path} is a link to a folder: put the folder itself in its place.")
        if path.name == CONFIG_FILE or path.match("sentence_*_config.json"):
            yield path


def refuse_kernels(config: Mapping[str, Any], source: str | Path) -> None:
    """Raise a ValueError if a config names an implementation on the Hub, which is code.

    sentence_bert_config.json hands its `model_args` to transformers. Of such fields, transformers
    5.17 hands `_attn_implementation` to the package `kernels`, and 5.23 `attn_implementation`, too.
    `kernels` 0.16 asks the Hub whether it trusts the publisher, except offline, or if
    `allow_all_kernels` is set.
    """
    for name, value in config.items():
        is_allowed = name in ("allow_all_kernels", "use_kernels") and value
        if is_allowed or ("_implementation" in name and "/" in json.dumps(value)):
            raise ValueError(
                f"{source} has {name}: {value!r}, which is code on the Hub: remove it if you do not"
                " need it."
            )
        if isinstance(value, Mapping):
            refuse_kernels(value, source)


def refuse_adapter(folder: Path) -> None:
    """Raise a ValueError if a folder holds changes of another model's weights, such as LoRA's."""
    for path in module_paths(folder):
        file = folder / path / "adapter_config.json"
        if file.is_file():
            base = read_json(file, {}).get("base_model_name_or_path")
            raise ValueError(
                f"{folder} holds an adapter (LoRA) of {base}, not a whole encoder: merge them with "
                f"peft, by PeftModel.from_pretrained(AutoModel.from_pretrained({base!r}), "
                f"{str(folder)!r}).merge_and_unload().save_pretrained(NEW), save the tokenizer in "
                "NEW, too, and use NEW."
            )


def refuse_modules(folder: Path) -> None:
    """Raise a ValueError if modules are not sentence-transformers' own, or in another folder."""
    for module in read_json(folder / MODULES_FILE, []):
        if not module["type"].startswith("sentence_transformers."):
            raise ValueError(
                f"{folder / MODULES_FILE} names {module['type']}, which is code of others: it is "
                "not executed. Use sentence-transformers itself, with trust_remote_code."
            )
        if not (folder / module["path"]).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{folder / MODULES_FILE} names {module['path']}, a folder elsewhere.")


def refuse_links(folder: Path, *, inside: Path | None = None) -> None:
    """Raise a ValueError if files of a folder to copy are links to files elsewhere.

    A cloned repository may hold links to private files. Weights in safetensors, and the cache of
    the Hub, whose files are links into folders `blobs`, are not meant.

    Args:
        folder: to copy.
        inside: where links may lead; by default the folder.
    """
    allowed = (inside or folder).resolve()
    for file in folder.rglob("*"):
        target = file.resolve()
        is_of_hub = "blobs" in [parent.name for parent in [*target.parents][:2]]
        is_allowed = target.is_relative_to(allowed) or target.suffix == ".safetensors"
        if file.is_symlink() and not is_allowed and not is_of_hub:
            raise ValueError(
                f"{file} is a link to {target}, whose content would be copied and perhaps "
                "published: replace the link by the file, or remove it."
            )


def drop_code_names(folder: Path) -> None:
    """Remove `auto_map` from the configurations of a model, whose code is not copied with it."""
    for path in module_paths(folder):
        for name in (CONFIG_FILE, "tokenizer_config.json"):
            content = read_json(folder / path / name, {})
            if content.pop("auto_map", None) is not None:
                write_json(folder / path / name, content)


def find_weights(folder: Path) -> Path | None:
    """Find the folder with the weights: itself, a run's model, or its last or best checkpoint."""
    for candidate in (folder, folder / MODEL_FOLDER):
        if any((candidate / name).is_file() for name in (CONFIG_FILE, MODULES_FILE)):
            return candidate
    return chosen_checkpoint(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """A model's config.json; empty if there is none."""
    return read_json(folder / CONFIG_FILE, {})


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a pre-training checkpoint, which has a Condenser's config."""
    return read_config(folder).get("model_type") == "condenser"


def module_paths(folder: Path) -> list[str]:
    """Subfolders of the sentence-transformers modules; of any other model only the folder, ""."""
    return [module["path"] for module in read_json(folder / MODULES_FILE, [{"path": ""}])]


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence transformers' progress bars, and its reports of missing weights."""
    from transformers.utils import logging  # takes seconds, which a search by BM25 need not wait

    with ExitStack() as restored:
        restored.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            restored.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield


@dataclass(frozen=True)
class EncodingContract:
    """How a retriever encodes.

    Attributes:
        query_max_length, passage_max_length: in tokens, with special tokens; the rest is cut.
        pooling: of the last hidden state: "cls" is position 0, as in the Condenser papers; "mean"
            and "max" are over all tokens of the text, special tokens included.
        similarity: "cosine" is the inner product of unit vectors, "euclidean" the negative
            distance.
        title_separator: between the title and the text of a passage with a title.
        query_prompt, passage_prompt: put before every query or passage.
        token_type_ids: whether segment ids are passed; pre-training passes none.
    """

    query_max_length: int
    passage_max_length: int
    pooling: Pooling = "cls"
    similarity: Similarity = "dot"
    title_separator: str = " "
    query_prompt: str = ""
    passage_prompt: str = ""
    token_type_ids: bool = False

    @classmethod
    def load(cls, folder: Path) -> "EncodingContract":
        """Read the contract of a model that this package wrote, without opening the model.

        Raises:
            ValueError: the files do not state a field, or state a value that is not supported.
        """
        return parse_settings(read_contract(folder), cls)[0]

    def query(self, text: str) -> str:
        """A query as it is encoded."""
        return f"{self.query_prompt}{text}"

    def passage(self, title: str, text: str) -> str:
        """A passage as it is encoded."""
        body = f"{title}{self.title_separator}{text}" if title else text
        return f"{self.passage_prompt}{body}"


def states_encoding(folder: Path) -> bool:
    """Whether a model's files say how it pools and compares; those of a plain encoder do not."""
    return (folder / MODULES_FILE).is_file()


def read_contract(folder: Path) -> dict[str, Any]:
    """The fields of `EncodingContract` that the files of a model state.

    The values are those of the files, so a pooling or similarity may not be supported.
    """
    settings = read_json(folder / MODULES_CONFIG_FILE, {})
    prompts = settings.get("prompts") or {}
    passage_prompts = [prompts[name] for name in _PASSAGE_PROMPTS if prompts.get(name)]
    transformer = folder / module_paths(folder)[0]
    tokenizer = read_json(transformer / "tokenizer_config.json", {})
    fields = {
        **_read_lengths(transformer, tokenizer),
        **_read_modules(folder),
        "title_separator": settings.get("title_separator"),
        "query_prompt": prompts.get("query"),
        "passage_prompt": passage_prompts[0] if passage_prompts else None,
    }
    if settings.get("similarity_fn_name"):
        fields["similarity"] = settings["similarity_fn_name"]
    if "model_input_names" in tokenizer:
        fields["token_type_ids"] = "token_type_ids" in tokenizer["model_input_names"]
    if is_checkpoint(folder):
        fields["token_type_ids"] = False  # pre-training passes none, whatever the tokenizer says
    return {name: value for name, value in fields.items() if value is not None}


def _read_lengths(transformer: Path, tokenizer: dict[str, Any]) -> dict[str, int | None]:
    """The maximum lengths of queries and passages; None if the files have no limit."""
    config: dict[str, Any] = {}
    for file in transformer.glob("sentence_*_config.json"):  # old models have other names
        config = read_json(file, {})
    both = config.get("max_seq_length") or tokenizer.get("model_max_length")
    if both is not None and both >= UNLIMITED:
        both = None
    return {
        "query_max_length": config.get("query_length") or both,
        "passage_max_length": config.get("document_length") or both,
    }


def _read_modules(folder: Path) -> dict[str, str]:
    """Pooling, and sentence-transformers' default of the similarity."""
    modules = read_json(folder / MODULES_FILE, [])
    if not modules:
        return {}
    fields = {"pooling": "none", "similarity": "cosine"}
    for module in modules:
        if module["type"].endswith(".Pooling"):
            fields["pooling"] = _name_pooling(
                read_json(folder / module["path"] / "config.json", {})
            )
    return fields


def _states_similarity(folder: Path) -> bool:
    """Whether a sentence-transformers model names it, or ends in a normalisation."""
    is_named = read_json(folder / MODULES_CONFIG_FILE, {}).get("similarity_fn_name")
    return bool(is_named) or read_json(folder / MODULES_FILE, [])[-1]["type"].endswith(".Normalize")


def _name_pooling(config: dict[str, Any]) -> str:
    """Such as "cls", or "cls+mean"."""
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [name for field, name in _OLD_POOLINGS.items() if config.get(field)]
    if isinstance(modes, list):
        modes = "+".join(modes) or "mean"
    return modes


def open_model(
    name: str | Path,
    *,
    device: "str | torch.device | None" = None,
    dtype: Dtype = "float32",
    **overrides: Any,
) -> "tuple[Path, SentenceTransformer, EncodingContract]":
    """Open a model by folder or Hub name; see `Retriever` for arguments and errors.

    Returns:
        Its folder, its modules in evaluation mode, and its contract. A pooling that is not in
        `Pooling`, such as "weightedmean" or "cls+mean", can be used but not saved.
    """
    import torch
    from safetensors import SafetensorError

    parse_settings({**dict.fromkeys(LENGTHS, 1), **overrides}, EncodingContract)  # checks
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(get_args(Dtype))}.")
    device_name = None if device is None else str(device)
    if dtype == "int8":
        if device_name not in (None, "cpu"):
            raise ValueError(f"dtype=int8 is for a CPU, but the device is {device_name}: omit one.")
        device_name = "cpu"
    folder, pooling = find_model_folder(name), overrides.get("pooling")
    if is_checkpoint(folder):
        from modeling_condenser import register_auto_classes

        register_auto_classes()  # a command imports the package without registering
    try:
        if states_encoding(folder):
            model = _open_modules(folder, pooling, device_name)
        else:
            model = _open_plain(folder, pooling, device_name)
    except (SafetensorError, UnpicklingError) as error:
        raise ValueError(
            f"The weights of {folder} cannot be read ({str(error).partition('. ')[0]}): download "
            "them again, with Git LFS and as safetensors."
        ) from error
    _check_transformer(folder / module_paths(folder)[0], model[0])
    # With padding at the left, learned positions of a text would depend on its neighbours.
    model.tokenizer.padding_side = "right"
    contract = _complete_contract(folder, model, overrides)
    has_prompt = contract.query_prompt or contract.passage_prompt
    if has_prompt and not all(getattr(part, "include_prompt", True) for part in model.modules()):
        raise ValueError(
            f"{folder} excludes its prompts from pooling, which is not supported: use "
            "sentence-transformers itself, or state empty prompts (query_prompt, passage_prompt)."
        )
    if dtype == "int8":
        from .onnx_encoder import OnnxEncoder, int8_file

        transformer: Any = model[0]
        transformer.model = OnnxEncoder(int8_file(folder), transformer.model.config)
    else:
        for weight in model.parameters():  # rotary angles and other buffers stay in float32
            if weight.is_floating_point():
                weight.data = weight.data.to(getattr(torch, dtype))
    return folder, model.eval(), contract


def _open_plain(folder: Path, pooling: str | None, device: str | None) -> "SentenceTransformer":
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    if not (folder / CONFIG_FILE).is_file():
        raise FileNotFoundError(
            f"{folder} holds no encoder: expected {MODULES_FILE} or {CONFIG_FILE}."
        )
    if pooling is None:
        raise ValueError(
            f"{folder} is a plain encoder and does not say how it pools token vectors: state "
            f"pooling, one of {', '.join(get_args(Pooling))}, such as {folder.name},pooling=cls in "
            "a command, or --pooling cls for `condenser finetune`."
        )
    last_hidden = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    with quiet_loading():  # transformers would report missing pooler weights
        transformer = modules.Transformer(
            str(folder),
            modality_config=last_hidden,
            module_output_name="token_embeddings",
            model_kwargs={"dtype": "float32"},
        )
    pooler = modules.Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    return SentenceTransformer(modules=[transformer, pooler], device=device)


def _open_modules(folder: Path, pooling: str | None, device: str | None) -> "SentenceTransformer":
    """Open a sentence-transformers model; `pooling` replaces that of its last pooling module."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    config = read_json(folder / MODULES_CONFIG_FILE, {})  # models saved by old versions have none
    kind = config.get("model_type", SentenceTransformer.__name__)
    if kind != SentenceTransformer.__name__:
        raise ValueError(f"{folder} is a {kind}: name a SentenceTransformer or an encoder.")
    with quiet_loading():  # `_check_transformer` reports missing weights
        model = SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": "float32"})
    if pooling is not None:
        places = [i for i, module in enumerate(model) if isinstance(module, modules.Pooling)]
        if not places:
            raise ValueError(f"{folder} does not pool token vectors: leave out pooling={pooling}.")
        old: Any = model[places[-1]]
        model[places[-1]] = modules.Pooling(
            old.embedding_dimension, pooling_mode=pooling, include_prompt=old.include_prompt
        )
    return model


def _complete_contract(folder: Path, model: Any, overrides: dict[str, Any]) -> EncodingContract:
    """The contract of a model's files, with the caller's fields, and limits of the positions."""
    fields = {
        "token_type_ids": "token_type_ids" in model.tokenizer.model_input_names,
        **read_contract(folder),
        **overrides,
    }
    if not states_encoding(folder):
        fields.setdefault("similarity", "dot")
    elif "similarity" not in overrides and not _states_similarity(folder):
        logger.warning(
            "%s states no similarity: it compares by the cosine, the default of "
            "sentence-transformers, unless you state another (similarity=dot).",
            folder,
        )
    if fields.get("similarity") not in get_args(Similarity):
        raise ValueError(
            f"{folder} has the similarity {fields.get('similarity')!r}: state one of "
            f"{', '.join(get_args(Similarity))}."
        )
    from modeling_condenser.encoder_parts import n_positions

    longest = n_positions(model[0].model)
    for name in LENGTHS:
        if name not in overrides:
            limits = [limit for limit in (fields.get(name), longest) if limit]
            if not limits:
                raise ValueError(f"{folder} has no maximum length: state {name}, for example 512.")
            fields[name] = min(limits)
        if not 1 <= fields[name] <= (longest or fields[name]):
            most = longest or "any number of"
            raise ValueError(f"{name} is {fields[name]}, but {folder} encodes 1 to {most} tokens.")
    return EncodingContract(**fields)


def _check_transformer(folder: Path, transformer: Any) -> None:
    """Check that the first module encodes text and that no weights or tokens are missing."""
    from sentence_transformers.sentence_transformer import modules
    from transformers import AutoModel

    if not isinstance(transformer, modules.Transformer) or set(transformer.modality_config) != {
        "text"
    }:
        raise ValueError(
            f"The first module of {folder} is {type(transformer).__name__}; expected a Transformer "
            "for text only. Use sentence-transformers itself."
        )
    tokenizer = transformer.tokenizer
    # If its files are missing, transformers opens a tokenizer with only special tokens.
    if tokenizer.pad_token_id is None or len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ValueError(
            f"The tokenizer of {folder} has no padding token, or only special tokens: save the "
            "whole tokenizer there, and set `pad_token` in tokenizer_config.json."
        )
    with quiet_loading():  # the meta device does not read the weights again
        _, info = AutoModel.from_pretrained(folder, output_loading_info=True, device_map="meta")
    # A decoder or a trained pooler in the folder is not used.
    used = {name for name in transformer.model.state_dict() if "pooler" not in name}
    missing = sorted(used & set(info["missing_keys"]))
    if missing:  # transformers would initialise them at random
        raise ValueError(
            f"{folder} lacks {len(missing)} of the encoder's weights, such as {missing[0]}: it is "
            "damaged, or its config.json describes another architecture."
        )


def warn_of_unknown(
    tokenizer: "PreTrainedTokenizerBase", *, n_unknown: int, n_tokens: int, n_texts: int
) -> bool:
    """Log a warning, and return True, if more than a fifth of the tokens is the unknown one."""
    ends = (tokenizer.sep_token_id, tokenizer.eos_token_id)  # that some vocabularies use as unknown
    if tokenizer.unk_token_id in ends or n_unknown <= n_tokens / 5:
        return False
    logger.warning(
        "%.0f %% of the tokens (texts: %d) are %s, the tokenizer's token for what it does not know,"
        " which the model cannot read: choose an encoder for the language and script of these"
        " texts.",
        100 * n_unknown / n_tokens,
        n_texts,
        tokenizer.unk_token,
    )
    return True
