"""condenser study RECIPE [--field value ...]: compare ways of pre-training from one encoder.

    condenser study study/objectives --encoder starter --collection my-collection --split dev \\
        --output_dir runs/objectives

A study that was interrupted continues when the same command is given again, and a study whose
recipe got more arms trains only these.
"""

from hub_scripts.recipe_command import read_words_and_settings


def run(words: list[str]) -> None:
    from modeling_condenser.runs.recipe import read_recipe
    from modeling_condenser.study.study import StudyRecipe, run_study

    named = {"recipe": ("RECIPE", "YAML file, or the name of a shipped recipe")}
    settings = read_words_and_settings("study", words, named, StudyRecipe, description=__doc__)
    settings = {**read_recipe(settings.pop("recipe")), **settings}
    results = run_study(settings)
    print(
        f"{results.table()}\n\n{results.verdict()}\n\nreport: {settings['output_dir']}/results.md"
    )
