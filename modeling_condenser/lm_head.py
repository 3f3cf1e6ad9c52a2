"""The LM head of an encoder's own masked-LM class, apart from its encoder.

Travels to the Hub with `modeling_condenser.py`.
"""

import copy
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


def build_lm_head(encoder_config: Any) -> tuple[nn.Module, dict[str, str]]:
    """A new LM head of the encoder's own masked-LM class, and its tied weights."""
    with torch.device("meta"):  # the encoder inside is not needed
        dtype = torch.get_default_dtype()  # not that of the configuration
        masked_lm = AutoModelForMaskedLM.from_config(copy.deepcopy(encoder_config), dtype=dtype)
    masked_lm.config = encoder_config
    lm_head, tied = take_lm_head(masked_lm)
    lm_head.to_empty(device=torch.get_default_device())
    with torch.no_grad():
        for parameter in lm_head.parameters():
            parameter.zero_()  # some are filled by no module, such as the bias of Data2VecText
    for module in lm_head.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return lm_head, tied


def take_lm_head(masked_lm: PreTrainedModel) -> tuple[nn.Module, dict[str, str]]:
    """The LM head of a masked LM, and its tied weights {target: source} by a Condenser's names."""
    encoder, tied = masked_lm.base_model_prefix, dict(masked_lm._tied_weights_keys or {})
    names = [name for name, _ in masked_lm.named_children() if name != encoder]
    if len(names) == 1:
        lm_head, prefix, new_prefix = getattr(masked_lm, names[0]), f"{names[0]}.", "lm_head."
    else:
        lm_head, prefix, new_prefix = _LMHead(masked_lm), "", "lm_head.masked_lm."

    def rename(key: str) -> str:
        if key.startswith(f"{encoder}."):
            return "condenser.encoder" + key.removeprefix(encoder)
        return new_prefix + key.removeprefix(prefix)

    return lm_head, {rename(target): rename(source) for target, source in tied.items()}


class _LMHead(nn.Module):
    """A masked LM without its encoder, (..., H) to (..., V), for LM heads of several modules."""

    def __init__(self, masked_lm: PreTrainedModel):
        super().__init__()
        setattr(masked_lm, masked_lm.base_model_prefix, _GivenHiddenStates())
        masked_lm._tied_weights_keys = masked_lm.all_tied_weights_keys = {}
        self.masked_lm = masked_lm

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.masked_lm(inputs_embeds=hidden, return_dict=True).logits


class _GivenHiddenStates(nn.Module):
    """Replaces an encoder, and returns its input."""

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)
