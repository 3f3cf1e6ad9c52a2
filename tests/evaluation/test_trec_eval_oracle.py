"""The comparison with trec_eval's output, on a file that was worked out by hand."""

import json
import sys

import pytest

from benchmarks.trec_eval_oracle import main

QRELS = "1 0 a 1\n1 0 b 2\n1 0 c 0\n2 0 a 2\n3 0 d 0\n"
# trec_eval puts b before a, as their scores are one float32 and b is the larger id; then c, then d.
RUN = """\
1 Q0 a 1 0.500000001 x words behind
1 Q0 b 2 0.5 x
1 Q0 d 3 0.1 x
1 Q0 c 4 0.4 x
4 Q0 a 1 1.0 x
"""
# Of query 1 alone; the other judged queries have no line in the run, and -c counts them as 0.
PLAIN = "runid\tall\tx\nrecip_rank\tall\t1.0000\nmap\t1\t1.0000\nP_2\tall\t1.0000\n"
WITH_OPTIONS = """\
recip_rank            \t1\t1.0000
recip_rank            \tall\t0.3333
map                   \tall\t0.3333
Rprec                 \tall\t0.3333
recall_5              \t2\t0.0000
ndcg_cut_5            \t1\t0.7602
success_1             \tall\t0.3333
"""


def test_figures_are_compared_with_those_worked_out_by_hand(tmp_path, monkeypatch, capsys):
    commands = {
        "plain": "trec_eval -m map qrels run",
        "options": "trec_eval -q -c -l2 -M1 qrels run",
    }
    figures = {
        "trec_eval": {"folder": ".", "expected_output": commands},
        "cacm": {"folder": ".", "qrels": "qrels", "run": "run", "trec_eval": {"P_5": 0.4}},
    }
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    texts = {"qrels": QRELS, "run": RUN, "plain": PLAIN, "options": WITH_OPTIONS}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    # Cut off at rank 1, b is found: a gain of 2 of the ideal 2 + 1 / log2(3).
    monkeypatch.setattr(sys, "argv", ["oracle", str(tmp_path)])
    main()
    lines = capsys.readouterr().out.splitlines()[2:5]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]][:3] for line in lines]
    # Cut-off measures of the whole ranking are compared too: three more lines of MRR and MAP.
    assert rows == [["plain", "3", "0"], ["options", "10", "0"], ["CACM, BM25", "1", "0"]]
    (tmp_path / "plain").write_text(PLAIN.replace("P_2\tall\t1.0", "P_2\tall\t0.9"))
    with pytest.raises(SystemExit, match="1 figures differ from trec_eval's"):
        main()
    assert "WRONG P_2 all: 1.000000, expected 0.9000" in capsys.readouterr().out
