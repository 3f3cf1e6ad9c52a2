"""The share of a training step by part, on a CPU.

    python -m benchmarks.step_parts                        a MiniLM: 6 layers of 384, 64 blocks
    python -m benchmarks.step_parts --layers 12 --hidden 768 --heads 12 --batch 16 --max_length 128

Packed batches of random tokens, whose blocks are between half of `max_length` and all of it long,
train a Condenser with random weights. The profiler adds to the time of small operators, so the
tokens a second are of steps without it.
"""

import statistics

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, set_seed

from benchmarks.harness import make_parser, print_conditions, print_table, time_in_turns
from modeling_condenser import CondenserConfig, CondenserForPreTraining
from modeling_condenser.cpu_kernels import use_fast_dropout
from modeling_condenser.packing import pack, use_packing

_SIZES = {
    **{"layers": 6, "hidden": 384, "heads": 12, "vocabulary": 30522},
    **{"batch": 64, "max_length": 96, "steps": 5, "bf16": 0},
}
# Parts of a step, and how the names of their operators begin; what they call is theirs.
_PARTS = {
    "attention within blocks": ("condenser::attention",),
    "dropout": ("condenser::dropout", "aten::native_dropout", "aten::dropout"),
    "matrix products": ("aten::addmm", "aten::mm", "aten::linear", "AddmmBackward", "MmBackward"),
    "optimizer": ("Optimizer.step",),
    "GELU and norms": ("aten::gelu", "aten::native_layer_norm"),
    "loss of the vocabulary": ("aten::cross_entropy", "aten::log_softmax", "aten::_log_softmax"),
    "copies and casts": ("aten::copy_", "aten::to", "aten::_to_copy", "aten::contiguous"),
}


def main() -> None:
    """Profile some steps and print the table."""
    arguments = make_parser(__doc__, **_SIZES).parse_args()
    set_seed(0)
    encoder_config = BertConfig(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        intermediate_size=4 * arguments.hidden,
    )
    model = CondenserForPreTraining(CondenserConfig(encoder_config=encoder_config)).train()
    use_packing(model)
    use_fast_dropout(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    ids = torch.randint(1000, arguments.vocabulary, (arguments.batch, arguments.max_length))
    place = torch.arange(ids.shape[1])
    mask = (place < torch.randint(len(place) // 2, len(place) + 1, (len(ids), 1))).long()
    is_masked = (torch.rand(ids.shape) < 0.15) & (place > 0) & (mask == 1)
    batch = pack({"input_ids": ids, "attention_mask": mask, "labels": ids.where(is_masked, -100)})

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(arguments.bf16)):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds = statistics.median(time_in_turns({"": step}, repeats=arguments.steps)[""])
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    print_conditions(arguments, _SIZES)
    print(f"{mask.sum() / seconds:.0f} tokens a second")
    print_table(["part", "share of a step, %"], shares(profiled).items())


def shares(profiled: profile) -> dict[str, float]:
    """The share of each part in percent, largest first."""
    spent = dict.fromkeys([*_PARTS, "the rest"], 0.0)
    for event in profiled.events():
        above, part = event, "the rest"
        while above is not None:  # the outermost operator decides
            found = [name for name, starts in _PARTS.items() if above.name.startswith(starts)]
            part, above = (found or [part])[0], above.cpu_parent
        spent[part] += event.self_cpu_time_total
    total = sum(spent.values())
    return {part: 100 * spent[part] / total for part in sorted(spent, key=spent.get, reverse=True)}


if __name__ == "__main__":
    main()
