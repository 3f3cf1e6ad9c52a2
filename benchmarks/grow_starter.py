"""Make a larger raw encoder of `starter`: 6 layers of 384 for 4 of 256, to be trained further.

    python -m benchmarks.grow_starter OUT
    condenser pretrain pretrain/starter --encoder OUT --corpus TEXT --learning_rate 1e-3 \
        --lr_scheduler_type linear --warmup_steps 100 --max_steps 1100 --seed 3 --output_dir RUN

Units are doubled as in bert2BERT (Chen et al. 2022, section 3.2; function-preserving): the weights
of a doubled unit's inputs are divided between the two, at random, so that they become different.
The last two layers are there twice.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from modeling_condenser.files.models import STARTER_FOLDER

_LAYERS = (0, 1, 2, 2, 3, 3)  # of `starter`
_SIZES = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6}
_OF_THIS_FILE = ("architectures", "transformers_version", "dtype", "_name_or_path")


def main() -> None:
    """Write the encoder and its tokenizer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    grow(BertForMaskedLM.from_pretrained(STARTER_FOLDER, dtype=torch.float32)).save_pretrained(out)
    AutoTokenizer.from_pretrained(STARTER_FOLDER).save_pretrained(out)


def grow(small: BertForMaskedLM) -> BertForMaskedLM:
    """A BERT of `_SIZES` and `_LAYERS` that computes nearly the same as `starter`."""
    generator = torch.Generator().manual_seed(0)
    weights = small.state_dict()

    def choose(n: int, n_more: int) -> Tensor:
        """The old unit of each new one; the first n are themselves."""
        return torch.cat([torch.arange(n), torch.randperm(n, generator=generator)[:n_more]])

    hidden, heads = choose(256, 128), torch.cat([torch.arange(256), torch.arange(128)])
    inner = choose(1024, 512)

    def linear(name: str, outputs: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        weight, bias = (weights[f"{name}.{part}"] for part in ("weight", "bias"))
        wide = weight[:, inputs].clone()
        for new in range(weight.shape[1], len(inputs)):
            old = int(inputs[new])
            share = torch.rand(len(weight), generator=generator) * 0.6 + 0.2
            wide[:, old], wide[:, new] = weight[:, old] * share, weight[:, old] * (1 - share)
        return {f"{name}.weight": wide[outputs], f"{name}.bias": bias[outputs]}

    def norm(name: str, scale: Tensor | float = 1.0) -> dict[str, Tensor]:
        return {
            f"{name}.{part}": weights[f"{name}.{part}"][hidden] * scale
            for part in ("weight", "bias")
        }

    grown = norm("bert.embeddings.LayerNorm")
    for kind in ("word", "position", "token_type"):
        name = f"bert.embeddings.{kind}_embeddings.weight"
        grown[name] = weights[name][:, hidden]
    for new, old in enumerate(_LAYERS):
        place = f"bert.encoder.layer.{old}."
        layer: dict[str, Tensor] = {}
        for part in ("query", "key", "value"):
            layer |= linear(f"{place}attention.self.{part}", heads, hidden)
        layer |= linear(f"{place}attention.output.dense", hidden, heads)
        layer |= norm(f"{place}attention.output.LayerNorm")
        layer |= linear(f"{place}intermediate.dense", inner, hidden)
        layer |= linear(f"{place}output.dense", hidden, inner) | norm(f"{place}output.LayerNorm")
        grown |= {
            name.replace(place, f"bert.encoder.layer.{new}."): each for name, each in layer.items()
        }
    head = "cls.predictions."
    grown |= linear(f"{head}transform.dense", hidden, hidden)
    n_times = hidden.bincount()[hidden]  # the scores are a product with the doubled embeddings
    grown |= norm(f"{head}transform.LayerNorm", 1 / n_times)
    for name in ("bias", "decoder.bias"):
        grown[head + name] = weights[f"{head}bias"]
    grown[f"{head}decoder.weight"] = grown["bert.embeddings.word_embeddings.weight"]
    sizes = {**small.config.to_dict(), **_SIZES, "num_hidden_layers": len(_LAYERS)}
    config = BertConfig(**{name: each for name, each in sizes.items() if name not in _OF_THIS_FILE})
    model = BertForMaskedLM(config)
    model.load_state_dict(grown)
    return model


if __name__ == "__main__":
    main()
