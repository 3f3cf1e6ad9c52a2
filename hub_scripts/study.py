"""Compare ways of pre-training from one encoder; a study that was interrupted continues.

    condenser study study/objectives --encoder starter --collection my-collection --split dev \\
        --output_dir runs/objectives

An arm that is added to the recipe later is trained by the next run; finished arms are kept.
"""

from modeling_condenser.study.study import StudyRecipe, run_study

from .command_line import CommandLine


def run(line: CommandLine) -> None:
    settings = line.read(StudyRecipe)
    print(run_study(settings).report())
    print(f"\nreport: {settings['output_dir']}/results.md")
