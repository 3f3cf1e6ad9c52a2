"""Compare ways of pre-training from one encoder; a study that was interrupted continues.

    condenser study study/objectives --encoder starter --collection my-collection --split dev \\
        --output_dir runs/objectives

An arm that is added to the recipe later is trained by the next run; finished arms are kept.
"""

import shlex

from modeling_condenser.study.recipe import StudyRecipe
from modeling_condenser.study.study import run_study

from .command_line import CommandLine


def run(line: CommandLine) -> None:
    settings = line.read(StudyRecipe)
    command = shlex.join(["condenser", line.verb, *line.words])
    print(run_study(settings, command=command).tables())
    print(f"\nreport: {settings.get('page') or settings['output_dir'] + '/results.md'}")
