"""Write the built-in collection, docstrings of installed packages, as a BEIR folder.

condenser collection my-collection
"""

from dataclasses import dataclass

from .command_line import fill_settings


@dataclass(frozen=True)
class CollectionFields:
    """The fields of `condenser collection`.

    Attributes:
        out: folder to write.
    """

    out: str


def run(words: list[str]) -> None:
    fields = fill_settings("collection", words, CollectionFields, plain=("out",), about=__doc__)
    from modeling_condenser.collection.builtin import build_builtin_collection

    print(f"collection: {build_builtin_collection(fields.out)}")
