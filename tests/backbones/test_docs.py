"""The encoders of these tests are the supported ones, and those in the table of the docs."""

import re
from pathlib import Path

from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from tests.backbones.encoders import BACKBONES


def test_the_proven_encoders_are_those_that_are_accepted() -> None:
    proven = {backbone.config_class.model_type for backbone in BACKBONES.values()}
    assert sorted(proven) == list(SUPPORTED_ENCODERS)


def test_the_docs_list_the_encoders_that_were_proven() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pretraining.md").read_text(encoding="utf-8")
    [table] = re.findall(r"<!-- encoders -->\n(.*?)\n<!-- /encoders -->", page, re.DOTALL)
    rows = [[cell.strip(" `") for cell in row.split("|")[1:3]] for row in table.splitlines()[2:]]
    assert rows == [[b.title, b.config_class.model_type] for b in BACKBONES.values()]
