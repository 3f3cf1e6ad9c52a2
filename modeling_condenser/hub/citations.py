"""BibTeX of the papers whose methods made a model; the entries are in references.bib."""

import re
from collections.abc import Sequence
from pathlib import Path

from .model_folder import STARTER_TITLE
from .provenance import FINETUNING, PRETRAINING, Stage

_CONDENSER, _COCONDENSER = "gao-callan-2021-condenser", "gao-callan-2022-cocondenser"
_OF_OBJECTIVE = {
    "ict": "lee-etal-2019-latent",
    "tsdae": "wang-etal-2021-tsdae",
    "condenser": _CONDENSER,
    "cocondenser": _CONDENSER,
    "contrastive": "karpukhin-etal-2020-dense",
    "margin_mse": "hofstatter-etal-2020-improving",
}
_OF_SETTING = {
    "head_mlm_probability": "xiao-etal-2022-retromae",
    "bow_weight": "ma-etal-2024-drop",
    "cache_chunk_size": "gao-etal-2021-scaling",
    "mini_batch_size": "gao-etal-2021-scaling",
}


def cite(stages: Sequence[Stage]) -> str:
    """The papers of all stages; Condenser's if nothing is recorded."""
    entries = Path(__file__).with_name("references.bib").read_text("utf-8").strip().split("\n\n")
    by_key = {re.findall(r"\{([^,]+),", entry)[0]: entry for entry in entries}
    keys = dict.fromkeys(key for stage in stages for key in _keys(stage))
    return "\n\n".join(by_key[key] for key in keys or [_CONDENSER])


def _keys(stage: Stage) -> list[str]:
    usual = {PRETRAINING: "condenser", FINETUNING: "contrastive"}.get(stage.name, "")
    objective = str(stage.run.get("objective") or stage.recipe.get("objective") or usual).lower()
    started = str(stage.recipe.get("encoder", "")).lower().removeprefix(STARTER_TITLE)
    keys = [_OF_OBJECTIVE[objective]] if objective in _OF_OBJECTIVE else []
    keys += [key for setting, key in _OF_SETTING.items() if stage.recipe.get(setting)]
    if "condenser" in started:  # trained by others
        keys.append(_CONDENSER)
    if any("cocondenser" in text.replace("-", "") for text in (objective, started)):
        keys.append(_COCONDENSER)
    if stage.name == FINETUNING:
        keys.append("reimers-gurevych-2019-sentence-bert")
    return keys
