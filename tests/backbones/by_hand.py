"""Every supported encoder run layer by layer, by hand, and a Condenser on it: the tests' oracle.

Independent of the package: it calls layers, embeddings and LM heads of the library's masked-LM
classes, and computes masks, positions, relative positions and rotary angles from the papers'
formulas. It projects every position to the vocabulary.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM
from transformers.models.albert.modeling_albert import AlbertLayer
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.camembert.modeling_camembert import CamembertLayer
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Layer
from transformers.models.distilbert.modeling_distilbert import TransformerBlock
from transformers.models.electra.modeling_electra import ElectraLayer
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer
from transformers.models.mpnet.modeling_mpnet import MPNetLayer
from transformers.models.roberta.modeling_roberta import RobertaLayer
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaLayer

Call = Callable[[nn.Module, torch.Tensor], torch.Tensor]


@dataclass
class Steps:
    """An encoder on one batch, taken apart.

    Attributes:
        embedded: (B, T, H) what the first layer reads.
        layers: in the order in which they run, each with how it is called.
        head_call: how a layer of the Condenser head is called.
        finish: what follows the last layer.
        after_first: what follows the first layer.
    """

    embedded: torch.Tensor
    layers: list[tuple[nn.Module, Call]]
    head_call: Call
    finish: Callable[[torch.Tensor], torch.Tensor] = lambda hidden: hidden
    after_first: Callable[[torch.Tensor], torch.Tensor] = lambda hidden: hidden

    def hidden_states(self) -> list[torch.Tensor]:
        states = [self.embedded]
        for number, (layer, call) in enumerate(self.layers):
            hidden = call(layer, states[-1])
            states.append(hidden if number else self.after_first(hidden))
        return [*states[:-1], self.finish(states[-1])]


class CondenserByHand(nn.Module):
    """A masked LM of the library and head layers, with the weights of a Condenser.

    Args:
        state: the Condenser's weights, by its names.
        config: the Condenser's.
    """

    def __init__(self, state: dict[str, torch.Tensor], config: Any):
        super().__init__()
        encoder_config = config.encoder_config
        self.config = config
        self.kind = KINDS[encoder_config.model_type]
        # ModernBERT's eager attention computes its softmax in single precision.
        attention = "sdpa" if encoder_config.model_type == "modernbert" else "eager"
        masked_lm: Any = AutoModelForMaskedLM.from_config(
            copy.deepcopy(encoder_config), attn_implementation=attention
        )
        self.masked_lm = masked_lm
        self.head = nn.ModuleList(
            self.kind.new_layer(masked_lm.config) for _ in range(config.n_head_layers)
        )
        self.head_norm = nn.Identity()
        if encoder_config.model_type == "modernbert":
            self.head_norm = nn.LayerNorm(
                encoder_config.hidden_size, eps=encoder_config.norm_eps, bias=False
            )
        self.double()
        own = dict(self.named_parameters())
        for name, parameter in own.items():
            with torch.no_grad():
                parameter.copy_(state[self.their_name(name)])

    def their_name(self, name: str) -> str:
        """What the Condenser calls a weight."""
        if not name.startswith("masked_lm."):
            return name
        name = name.removeprefix("masked_lm.")
        encoder = f"{self.masked_lm.base_model_prefix}."
        if name.startswith(encoder):
            return name.replace(encoder, "condenser.encoder.", 1)
        return name.replace(*self.kind.lm_head_names, 1)

    def gradients(self) -> dict[str, torch.Tensor]:
        """By the Condenser's names."""
        parameters = self.named_parameters(remove_duplicate=False)  # tied ones under each name
        named = ((self.their_name(n), p.grad) for n, p in parameters)
        return {name: grad for name, grad in named if grad is not None}

    def losses(
        self, batch: dict[str, torch.Tensor], *, bow_weight: float = 0.0
    ) -> dict[str, torch.Tensor]:
        """The losses of a batch, by the names of the Condenser's output."""
        encoder = getattr(self.masked_lm, self.masked_lm.base_model_prefix)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        steps = self.kind.take_apart(encoder, ids, mask)
        late = steps.hidden_states()[-1]
        head_steps = self.kind.take_apart(encoder, batch.get("head_input_ids", ids), mask)
        early = head_steps.hidden_states()[self.config.skip_from]
        cd = torch.cat([late[:, :1], early[:, 1:]], dim=1)  # [cls_late ; early]
        for layer in self.head:
            cd = steps.head_call(layer, cd)
        head_labels = batch.get("head_targets", batch["labels"])
        losses = {"head_loss": self.mlm(self.head_norm(cd), head_labels)}
        if self.config.late_mlm:
            losses["late_loss"] = self.mlm(late, batch["labels"])
        loss = sum(losses.values())
        if bow_weight:
            losses["bow_loss"] = self.bag_of_words(late[:, 0], batch["bow_targets"])
            loss = loss + bow_weight * losses["bow_loss"]
        return {**losses, "loss": loss}

    def mlm(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.kind.predict(self.masked_lm, hidden)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def bag_of_words(self, vectors: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean over blocks of the mean -log p of their distinct tokens, in loops."""
        terms = []
        for vector, bag in zip(vectors, targets.tolist(), strict=True):
            tokens = [token for token in bag if token >= 0]
            scores = self.kind.predict(self.masked_lm, vector[None, None])[0, 0]
            log_p = scores - torch.log(sum(torch.exp(score) for score in scores))
            if tokens:
                terms.append(-sum(log_p[token] for token in tokens) / len(tokens))
        return sum(terms) / len(terms)


def _padding(mask: torch.Tensor) -> torch.Tensor:
    """(B, 1, 1, T) what is added to scores: nothing for tokens, the least number for padding."""
    return (1 - mask[:, None, None, :]).double() * torch.finfo(torch.float64).min


def _bert(encoder: Any, ids: torch.Tensor, mask: torch.Tensor) -> Steps:
    positions = torch.arange(ids.shape[1])[None]
    if encoder.config.model_type in ("roberta", "camembert", "xlm-roberta"):
        positions = mask.cumsum(1) * mask + 1  # padding has position 1
    hidden = encoder.embeddings(input_ids=ids, position_ids=positions)
    if encoder.config.model_type == "electra":
        hidden = encoder.embeddings_project(hidden)
    added = _padding(mask)

    def call(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x, added)

    return Steps(hidden, [(layer, call) for layer in encoder.encoder.layer], call)


def _distilbert(encoder: Any, ids: torch.Tensor, mask: torch.Tensor) -> Steps:
    added = _padding(mask)

    def call(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x, attention_mask=added)

    layers = [(layer, call) for layer in encoder.transformer.layer]
    return Steps(encoder.embeddings(ids), layers, call)


def _albert(encoder: Any, ids: torch.Tensor, mask: torch.Tensor) -> Steps:
    added = _padding(mask)

    def call(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x, added)

    groups = encoder.encoder.albert_layer_groups
    n_layers = encoder.config.num_hidden_layers
    order = [number * len(groups) // n_layers for number in range(n_layers)]
    hidden = encoder.encoder.embedding_hidden_mapping_in(encoder.embeddings(ids))
    return Steps(hidden, [(groups[g].albert_layers[0], call) for g in order], call)


def _mpnet(encoder: Any, ids: torch.Tensor, mask: torch.Tensor) -> Steps:
    positions = mask.cumsum(1) * mask + 1
    hidden = encoder.embeddings(input_ids=ids, position_ids=positions)
    n = ids.shape[1]
    buckets = torch.tensor([[_t5_bucket(key - query) for key in range(n)] for query in range(n)])
    bias = encoder.encoder.relative_attention_bias(buckets).permute(2, 0, 1)[None]  # (1, A, T, T)
    added = _padding(mask)

    def call(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x, added, bias.expand(len(x), -1, -1, -1))[0]

    return Steps(hidden, [(layer, call) for layer in encoder.encoder.layer], call)


def _t5_bucket(offset: int) -> int:
    """Raffel et al. 2020: 16 buckets a side, 8 of them of one offset, the rest logarithmic."""
    side, distance = (16, offset) if offset > 0 else (0, -offset)
    if distance < 8:
        return side + distance
    return side + min(8 + int(math.log(distance / 8) / math.log(128 / 8) * 8), 15)


def _deberta(encoder: Any, ids: torch.Tensor, mask: torch.Tensor) -> Steps:
    hidden = encoder.embeddings(input_ids=ids, mask=mask)
    pairs = mask[:, None, :, None] * mask[:, None, None, :]  # (B, 1, T, T)
    n, stack = ids.shape[1], encoder.encoder
    buckets, furthest = encoder.config.position_buckets, encoder.config.max_position_embeddings
    relative = torch.tensor(
        [[_deberta_bucket(q - k, buckets // 2, furthest) for k in range(n)] for q in range(n)]
    )[None]
    table = stack.LayerNorm(stack.rel_embeddings.weight)

    def call(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x, pairs, relative_pos=relative, rel_embeddings=table)[0]

    steps = Steps(hidden, [(layer, call) for layer in stack.layer], call)
    if stack.conv is not None:
        steps.after_first = lambda x: stack.conv(hidden, x, mask)
    return steps


def _deberta_bucket(offset: int, middle: int, furthest: int) -> int:
    """He et al. 2021: near offsets as they are, further ones logarithmic."""
    if abs(offset) <= middle:
        return offset
    steps = math.log(abs(offset) / middle) / math.log((furthest - 1) / middle) * (middle - 1)
    return int(math.copysign(math.ceil(steps) + middle, offset))


def _modernbert(encoder: Any, ids: torch.Tensor, mask: torch.Tensor) -> Steps:
    config, n = encoder.config, ids.shape[1]
    distance = (torch.arange(n)[:, None] - torch.arange(n)[None, :]).abs()
    far = (distance > config.local_attention // 2)[None, None] | (mask == 0)[:, None, None, :]
    masks = {
        "full_attention": _padding(mask),
        "sliding_attention": far.double() * torch.finfo(torch.float64).min,
    }
    size = config.hidden_size // config.num_attention_heads
    rotations = {}
    for kind, base in (("full_attention", 160_000.0), ("sliding_attention", 10_000.0)):
        frequencies = 1.0 / base ** (torch.arange(0, size, 2).float() / size)
        angles = torch.arange(n).float()[:, None] * frequencies  # (T, size / 2)
        angles = torch.cat([angles, angles], dim=1)[None]
        rotations[kind] = (angles.cos().double(), angles.sin().double())

    def of(kind: str) -> Call:
        def call(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return layer(x, attention_mask=masks[kind], position_embeddings=rotations[kind])

        return call

    layers = [
        (layer, of(kind)) for layer, kind in zip(encoder.layers, config.layer_types, strict=True)
    ]
    return Steps(
        encoder.embeddings(input_ids=ids),
        layers,
        of("full_attention"),
        finish=encoder.final_norm,
    )


@dataclass(frozen=True)
class Kind:
    """What differs between the masked LMs: layers, LM head, and its names in both models."""

    take_apart: Callable[[Any, torch.Tensor, torch.Tensor], Steps]
    new_layer: Callable[[Any], nn.Module]
    predict: Callable[[Any, torch.Tensor], torch.Tensor]
    lm_head_names: tuple[str, str]


def _predict_distilbert(lm: Any, x: torch.Tensor) -> torch.Tensor:
    return lm.vocab_projector(lm.vocab_layer_norm(F.gelu(lm.vocab_transform(x))))


_CLS = (lambda lm, x: lm.cls(x), ("cls.", "lm_head."))
_LM_HEAD = (lambda lm, x: lm.lm_head(x), ("lm_head.", "lm_head."))
_SEVERAL = ("", "lm_head.masked_lm.")
KINDS = {
    "albert": Kind(
        _albert, AlbertLayer, lambda lm, x: lm.predictions(x), ("predictions.", "lm_head.")
    ),
    "bert": Kind(_bert, BertLayer, *_CLS),
    "camembert": Kind(_bert, CamembertLayer, *_LM_HEAD),
    "deberta-v2": Kind(_deberta, DebertaV2Layer, *_CLS),
    "distilbert": Kind(_distilbert, TransformerBlock, _predict_distilbert, _SEVERAL),
    "electra": Kind(
        _bert,
        ElectraLayer,
        lambda lm, x: lm.generator_lm_head(lm.generator_predictions(x)),
        _SEVERAL,
    ),
    "modernbert": Kind(
        _modernbert,
        lambda config: ModernBertEncoderLayer(config, 2),
        lambda lm, x: lm.decoder(lm.head(x)),
        _SEVERAL,
    ),
    "mpnet": Kind(_mpnet, MPNetLayer, *_LM_HEAD),
    "roberta": Kind(_bert, RobertaLayer, *_LM_HEAD),
    "xlm-roberta": Kind(_bert, XLMRobertaLayer, *_LM_HEAD),
}
