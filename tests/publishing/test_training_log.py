"""What is kept of a training log."""

from itertools import pairwise

from modeling_condenser.publishing import training_log


def entry(step: int, **measures: float) -> dict[str, float]:
    named = {f"readiness/{name.replace('__', '@')}": value for name, value in measures.items()}
    return {"step": step, "num_input_tokens_seen": 1000 * step, "epoch": 0.5, **named}


def test_a_logs_readiness_is_kept_apart_from_its_losses():
    first, last = entry(0, swap_cost=0.0), entry(10, few_shot_R__5=0.2, swap_cost=0.5, entropy=1.0)
    found = training_log.readiness_entries(
        [first, {"step": 5, "loss": 2.0}, {**last, "readiness/x": "text"}]
    )
    assert found == [{n: v for n, v in each.items() if n != "epoch"} for each in (first, last)]


def test_a_long_log_keeps_200_entries_with_first_and_last():
    thinned = training_log.thin_log([{"step": i, "loss": 1.0} for i in range(1, 5001)])
    steps = [entry["step"] for entry in thinned]
    assert len(steps) == 200 and steps[0] == 1 and steps[-1] == 5000
    gaps = {after - before for before, after in pairwise(steps)}
    assert gaps == {25, 26}  # 4999 / 199 is 25.1
