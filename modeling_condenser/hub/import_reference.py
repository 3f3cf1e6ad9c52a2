"""Import a checkpoint of the papers' own implementation (github.com/luyug/Condenser).

It consists of config.json, pytorch_model.bin (backbone and LM head, as a masked LM), model.pt (the
layers of the Condenser head, `c_head.N.*`), pickled arguments, which are never opened here, and in
some cases the tokenizer. The backbones on the Hub (Luyu/condenser and others) have no model.pt:
they are plain encoders, which `condenser_from_encoder` opens.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from modeling_condenser.configuration_condenser import CondenserConfig
from modeling_condenser.modeling_condenser import (
    CondenserForPreTraining,
    refuse_incomplete,
    take_lm_head,
)
from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import checksum_file

from .card import write_card
from .export import forget_session
from .model_folder import quiet_loading
from .provenance import PRETRAINING, Stage, write_provenance

HEAD_FILE = "model.pt"
_HEAD = "c_head."
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")


def import_reference(
    folder: str | Path,
    out: str | Path,
    *,
    skip_from: int,
    late_mlm: bool = True,
    tokenizer: str | None = None,
) -> Path:
    """Convert a folder of the reference implementation into a checkpoint of this package.

    Pickles are read as tensors only; code in them is refused and never executed.

    Args:
        folder: local folder that the reference's trainer saved: its output or a `checkpoint-N`.
        out: new or empty folder, written atomically.
        skip_from: backbone layer whose tokens the head read in pre-training. No file states it: the
            reference's default is 2, the commands in its README (BERT base) set 6.
        late_mlm: whether further training includes the late MLM loss, eq. (10). Off by default in
            the reference, but on in the commands of its README.
        tokenizer: Hub name or folder; the one within `folder` by default.

    Returns:
        `out`: a checkpoint with code, tokenizer, provenance and card.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder is no such checkpoint, or its files do not fit each other.
    """
    folder, out = Path(folder), Path(out)
    if any(out.iterdir()) if out.is_dir() else out.exists():
        raise ValueError(f"{out} exists and is not empty: choose another folder for the import.")
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}: download the checkpoint first.")
    if not (folder / HEAD_FILE).is_file():
        raise ValueError(
            f"{folder} has no {HEAD_FILE}, so it is a plain encoder without a Condenser head: use "
            "it as such, or start a new head on it (condenser pretrain --encoder)."
        )
    # Without a vocabulary, transformers would make an empty tokenizer without an error.
    if tokenizer is None and not any((folder / name).is_file() for name in _VOCABULARIES):
        raise ValueError(
            f"{folder} has no tokenizer ({', '.join(_VOCABULARIES)}): name the one it was "
            "pre-trained with, such as --tokenizer google-bert/bert-base-uncased."
        )
    opened: Any = AutoTokenizer.from_pretrained(tokenizer or folder, trust_remote_code=False)
    forget_session(opened)
    try:
        model = _load(folder, skip_from=skip_from, late_mlm=late_mlm)
    except Exception as error:  # the readers raise nearly every kind on damaged bytes
        raise ValueError(
            f"The weights in {folder} cannot be read, or do not fit its config.json; nothing in "
            f"them was executed. Check that the files were saved together. {error}"
        ) from error
    recipe = {
        "skip_from": skip_from,
        "late_mlm": late_mlm,
        "n_head_layers": model.config.n_head_layers,
        "imported_from": "github.com/luyug/Condenser",
    }
    facts = {"objective": "condenser", "head_sha256": checksum_file(folder / HEAD_FILE)}
    with quiet_loading(), whole_folder(out) as partial:
        model.save_pretrained(partial)
        opened.save_pretrained(partial)
        write_provenance(partial, [Stage(PRETRAINING, recipe, facts)])
        write_card(partial)
    return out


def _load(folder: Path, **options: Any) -> CondenserForPreTraining:
    """Load a folder's masked LM and head as a Condenser in float32; options are of its config."""
    with quiet_loading():
        masked_lm, info = AutoModelForMaskedLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=torch.float32,
            weights_only=True,
            trust_remote_code=False,
        )
    refuse_incomplete(folder, info["missing_keys"], set())
    saved = torch.load(folder / HEAD_FILE, "cpu", weights_only=True)
    head = {n.removeprefix(_HEAD): value for n, value in saved.items() if n.startswith(_HEAD)}
    masked_lm.config._name_or_path = ""  # a local folder, which would be saved
    n_layers = len({name.partition(".")[0] for name in head})
    config = CondenserConfig(encoder_config=masked_lm.config, n_head_layers=n_layers, **options)
    model = CondenserForPreTraining(config)
    encoder: Any = model.condenser.encoder
    encoder.load_state_dict(masked_lm.base_model.state_dict(), strict=False)
    model.lm_head.load_state_dict(take_lm_head(masked_lm)[0].state_dict())
    model.head.load_state_dict(head)
    return model
