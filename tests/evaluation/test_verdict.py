"""The verdict about a retriever and its start."""

import json

from modeling_condenser.evaluation.measures import compare
from modeling_condenser.evaluation.verdict import Verdict, read_verdict


def test_a_verdict_is_by_significance_and_is_read_as_it_was_written():
    before = {str(i): 0.5 for i in range(20)}
    for gain, expected in ((0.1, "better"), (0.0, "no difference"), (-0.1, "worse")):
        after = {name: value + gain for name, value in before.items()}
        verdict = Verdict(compare(after, before), "nDCG@10", "20 dev queries")
        assert verdict.outcome == expected
        assert read_verdict(json.loads(json.dumps(verdict.to_dict()))) == verdict
