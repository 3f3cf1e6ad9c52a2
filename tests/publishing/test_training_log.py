"""What is kept of a training log."""

from itertools import pairwise

from modeling_condenser.publishing import training_log


def test_a_long_log_keeps_200_entries_with_first_and_last():
    thinned = training_log.thin_log([{"step": i, "loss": 1.0} for i in range(1, 5001)])
    steps = [entry["step"] for entry in thinned]
    assert len(steps) == 200 and steps[0] == 1 and steps[-1] == 5000
    gaps = {after - before for before, after in pairwise(steps)}
    assert gaps == {25, 26}  # 4999 / 199 is 25.1
