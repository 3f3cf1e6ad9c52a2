"""Logs, thinned to what a curve needs."""

import json
from itertools import pairwise

from modeling_condenser.repository.training_log import thin_log


def test_a_short_log_is_kept_whole_in_its_known_numbers() -> None:
    log = [
        {
            "step": 1,
            "epoch": 0.1,
            "loss": 9.0,
            "late_loss": 4.0,
            "head_loss": 5.0,
            "grad_norm": 2.0,
        },
        {"step": 2, "swap_cost": 0.5, "loss": 8.0, "note": "text", "learning_rate": 1e-4},
        {"step": 2, "train_runtime": 9.0},
    ]
    assert thin_log(log) == (
        {"step": 1, "epoch": 0.1, "loss": 9.0, "head_loss": 5.0, "late_loss": 4.0},
        {"step": 2, "loss": 8.0, "swap_cost": 0.5, "learning_rate": 1e-4},
    )


def test_a_long_log_keeps_200_entries_with_first_and_last() -> None:
    thinned = thin_log([{"step": i, "loss": 1.0} for i in range(1, 5001)])
    steps = [entry["step"] for entry in thinned]
    assert len(steps) == 200 and steps[0] == 1 and steps[-1] == 5000
    gaps = {after - before for before, after in pairwise(steps)}
    assert gaps == {25, 26}  # 4999 / 199 is 25.1


def test_a_number_that_json_does_not_know_is_left_out() -> None:
    log = thin_log([{"step": 1, "loss": float("nan"), "late_loss": 2.0}])
    assert json.loads(json.dumps(log, allow_nan=False)) == [{"step": 1, "late_loss": 2.0}]
