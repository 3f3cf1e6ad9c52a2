"""A Condenser made of two models of the library: the tests' oracle for every encoder.

Independent of the package: the backbone is a masked LM of transformers, and the head is a second
encoder of transformers with the head's layers, whose first layer is given [cls_late ; early]. So
the library computes masks, positions, relative positions and rotary angles itself, both times.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForMaskedLM
from transformers.modeling_outputs import BaseModelOutput

FINAL_NORMS = ("final_norm", "norm")  # of the library's encoders


def our_name(masked_lm: nn.Module, name: str) -> str:
    """What a Condenser calls a weight of a masked LM."""
    encoder = masked_lm.base_model_prefix
    if name.startswith(f"{encoder}."):
        return f"condenser.encoder{name.removeprefix(encoder)}"
    head, *others = [child for child, _ in masked_lm.named_children() if child != encoder]
    return f"lm_head.masked_lm.{name}" if others else f"lm_head{name.removeprefix(head)}"


class TwoEncoders(nn.Module):
    """The same weights as a `CondenserForPreTraining`."""

    def __init__(self, model: Any):
        super().__init__()
        self.config = model.config
        config = copy.deepcopy(model.config.encoder_config)
        # Eager attention with rotary angles computes its softmax in single precision.
        attention = "eager" if getattr(config, "rope_parameters", None) is None else "sdpa"
        state = model.state_dict()
        self.masked_lm: Any = AutoModelForMaskedLM.from_config(
            config, attn_implementation=attention
        ).double()
        for name, parameter in self.masked_lm.named_parameters():
            parameter.data.copy_(state[our_name(self.masked_lm, name)])

        config = copy.deepcopy(config)
        for name in ("num_hidden_layers", "n_layers", "num_hidden_groups"):
            if hasattr(config, name):
                setattr(config, name, model.config.n_head_layers)
        if hasattr(config, "layer_types"):
            config.layer_types = ["full_attention"] * model.config.n_head_layers
        self.head: Any = AutoModel.from_config(config, attn_implementation=attention).double()
        self.head.load_state_dict(self.masked_lm.base_model.state_dict(), strict=False)
        lists = [m for m in self.head.modules() if isinstance(m, nn.ModuleList)]
        innermost = [m for m in lists if not any(n in lists for n in list(m.modules())[1:])]
        places = [(modules, i) for modules in innermost for i in range(len(modules))]
        self.head_layers = copy.deepcopy(model.head)
        for (modules, i), layer in zip(places, self.head_layers, strict=True):
            modules[i] = layer
        modules_of_head = dict(self.head.named_modules())
        for name in FINAL_NORMS:
            if name in modules_of_head:
                modules_of_head[name].load_state_dict(model.head_norm.state_dict())
        if getattr(getattr(self.head, "encoder", None), "conv", None) is not None:
            self.head.encoder.conv = None  # DeBERTa-v2's, which is no part of a layer

    def gradients(self) -> dict[str, torch.Tensor]:
        """By the Condenser's names; tables of relative positions have one of each encoder."""
        everything = {"remove_duplicate": False}  # tied weights under each name
        theirs = self.masked_lm.named_parameters(**everything)
        named = [(our_name(self.masked_lm, name), weight) for name, weight in theirs]
        named += [(f"head.{n}", p) for n, p in self.head_layers.named_parameters(**everything)]
        in_layers = {id(p) for p in self.head_layers.parameters()}
        for name, parameter in self.head.named_parameters():
            if id(parameter) not in in_layers:
                ours = f"condenser.encoder.{name}"
                for norm in FINAL_NORMS:
                    ours = ours.replace(f"condenser.encoder.{norm}.", "head_norm.")
                named.append((ours, parameter))
        found: dict[str, Any] = {}
        for name, parameter in named:
            if parameter.grad is not None:
                found[name] = found.get(name, 0) + parameter.grad
        return found

    def losses(
        self, batch: dict[str, torch.Tensor], *, bow_weight: float
    ) -> dict[str, torch.Tensor]:
        """The losses of a padded batch, by the names of the Condenser's output."""
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        read = {**inputs, "input_ids": batch.get("head_input_ids", inputs["input_ids"])}
        backbone = self.masked_lm.base_model
        late = backbone(**inputs).last_hidden_state
        early = backbone(**read, output_hidden_states=True).hidden_states[self.config.skip_from]
        vectors = late[:, :1]  # (B, 1, H)
        if self.config.pooling != "cls":
            assert self.config.pooling == "mean"
            weights = inputs["attention_mask"] / inputs["attention_mask"].sum(1, keepdim=True)
            vectors = weights[:, None].to(late.dtype) @ late
        head_input = torch.cat([vectors, early[:, 1:]], dim=1)  # [cls_late ; early]
        hook = self.head_layers[0].register_forward_pre_hook(
            lambda _, args: (head_input, *args[1:])
        )
        cd = self.head(**inputs).last_hidden_state
        hook.remove()
        losses = {"head_loss": self.mlm(cd, batch.get("head_targets", batch["labels"]))}
        if self.config.late_mlm:
            losses["late_loss"] = self.mlm(late, batch["labels"])
        bow_loss = self.bag_of_words(vectors[:, 0], batch["bow_targets"])
        return {
            **losses,
            "bow_loss": bow_loss,
            "loss": sum(losses.values()) + bow_weight * bow_loss,
        }

    def mlm(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.predict(hidden).flatten(0, 1), labels.flatten())

    def bag_of_words(self, vectors: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean over blocks of the mean -log p of their distinct tokens, in loops."""
        terms = []
        for vector, bag in zip(vectors, targets.tolist(), strict=True):
            scores = self.predict(vector[None, None])[0, 0]
            log_p = scores - torch.log(sum(torch.exp(score) for score in scores))
            if tokens := [token for token in bag if token >= 0]:
                terms.append(-sum(log_p[token] for token in tokens) / len(tokens))
        return sum(terms) / len(terms)

    def predict(self, hidden: torch.Tensor) -> torch.Tensor:
        """Predictions (B, T, V) of the LM head, with every position projected."""
        backbone = self.masked_lm.base_model
        backbone.forward = lambda *args, **kwargs: BaseModelOutput(last_hidden_state=hidden)
        try:
            return self.masked_lm(torch.zeros(hidden.shape[:2], dtype=torch.long)).logits
        finally:
            del backbone.forward
