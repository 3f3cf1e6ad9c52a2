"""Small things that tests of evaluation need."""

from modeling_condenser.evaluation.cost import Device, EncodingCost


def make_cost(device: Device, milliseconds: float, megabytes: float | None) -> EncodingCost:
    """The cost of a step of 8 texts of 64 tokens."""
    return EncodingCost(
        device=device,
        hardware="a machine",
        seconds_per_step=milliseconds / 1e3,
        quartiles=(0.0, 1.0),
        peak_memory_bytes=None if megabytes is None else int(megabytes * 1e6),
        process_memory_bytes=None,
        n_parameters=1,
        dtype="float32",
        batch_size=8,
        length=64,
        n_steps=30,
        n_threads=1,
    )
