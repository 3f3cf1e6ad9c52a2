"""condenser import-reference FOLDER OUT: a checkpoint of the papers' own implementation, as ours.

    condenser import-reference condenser-with-head my-condenser --skip_from 6
    condenser import-reference checkpoint-20000 my-condenser --skip_from 6 \\
        --tokenizer google-bert/bert-base-uncased

FOLDER is what github.com/luyug/Condenser saves: config.json, pytorch_model.bin and model.pt, which
holds the head. The backbones on the Hub are without it: name these as a plain encoder.
"""

import argparse


def run(words: list[str]) -> None:
    arguments = _parse(words)
    if arguments.skip_from is None:
        raise ValueError(
            "--skip_from is not given, and no file that can be opened safely says which layer the "
            "head reads: pass the number that the checkpoint was pre-trained with. The reference's "
            "own default is 2; the commands in its README (BERT base, 12 layers) set 6."
        )
    from modeling_condenser.publishing.reference import import_reference
    from modeling_condenser.repository.provenance import read_provenance

    out = import_reference(
        arguments.folder,
        arguments.out,
        skip_from=arguments.skip_from,
        late_mlm=arguments.late_mlm == "true",
        tokenizer=arguments.tokenizer,
    )
    facts = read_provenance(out)[-1].run
    print(f"checkpoint: {out}")
    for part, file in facts["files"].items():
        print(f"  {part}: {file['tensors']} tensors of {file['name']}")
    print(f"  left out: {', '.join(facts['left_out']) or 'nothing'}")
    print(f"next: condenser export {out} ENCODER")


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="condenser import-reference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="local folder that the reference implementation saved")
    parser.add_argument("out", help="new or empty folder for the checkpoint")
    parser.add_argument(
        "--skip_from", type=int, help="backbone layer whose tokens the head reads; needed"
    )
    parser.add_argument(
        "--late_mlm",
        choices=("true", "false"),
        default="true",
        help="train on with the late MLM loss too (default: true)",
    )
    parser.add_argument("--tokenizer", help="folder or Hub name (default: the one within FOLDER)")
    return parser.parse_args(words)
