"""Write the built-in collection, docstrings of installed packages, as a BEIR folder.

condenser collection my-collection
"""

from modeling_condenser.collection.builtin import build_builtin_collection

from .command_line import CommandLine, fields_of


def run(line: CommandLine) -> None:
    fields = fields_of(build_builtin_collection, without=("max_queries_per_eval_split", "roots"))
    print(f"collection: {build_builtin_collection(**vars(line.fill(fields, plain=('out',))))}")
