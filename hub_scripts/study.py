"""Compare ways of pre-training from one encoder; a study that was interrupted continues.

    condenser study study/objectives --encoder starter --collection my-collection --split dev \\
        --output_dir runs/objectives

An arm that is added to the recipe later is trained by the next run; finished arms are kept.
"""

from .command_line import RECIPE, read_settings


def run(words: list[str]) -> None:
    from modeling_condenser.study.study import StudyRecipe, run_study

    settings = read_settings("study", words, StudyRecipe, plain=(RECIPE,), about=__doc__)
    print(run_study(settings).report())
    print(f"\nreport: {settings['output_dir']}/results.md")
