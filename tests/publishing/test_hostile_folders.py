"""Folders of models whose files name code: none of it runs, whatever opens the folder.

If code of a folder runs, it writes a marker file.
"""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from modeling_condenser import CondenserForPreTraining
from modeling_condenser.analysis.readiness import measure_model
from modeling_condenser.analysis.recipe import Measuring
from modeling_condenser.analysis.sample import Sample
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.files.models import refuse_links
from modeling_condenser.publishing import evaluate_retrieval
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.push import check_publishable, push
from modeling_condenser.retrieval.systems import parse_system
from tests.encoding.making import change_json

TEXTS = Dataset.from_dict({"text": ["a b " * 20, "b a " * 20]})
# Every opener of the package, and the stand-alone script.
OPENERS: dict[str, Callable[[Path], Any]] = {
    "retriever": lambda f: Retriever(f).encode_queries(["a"]),
    "plain encoder": lambda f: Retriever(f, pooling="cls").encode_queries(["a"]),
    "system": lambda f: parse_system(str(f)).open(),
    "start": lambda f: CondenserForPreTraining.from_encoder(str(f)),
    "checkpoint": CondenserForPreTraining.from_pretrained,
    "export": lambda f: export_encoder(f, f"{f}-out"),
    "readiness": lambda f: measure_model(
        f, Sample.choose(Measuring(texts=2, max_length=32), TEXTS)
    ),
    "script": lambda f: evaluate_retrieval.search(f, [], {"q": "a"}, {"q": {}}, 1),
}
OPENERS_OF = {
    "export": ("retriever", "system", "readiness", "script"),
    "run": ("retriever", "start", "checkpoint", "export", "readiness"),
}
CODE = "from pathlib import Path\nPath({marker!r}).touch()\nclass Evil:\n    pass\n"


class Payload:
    """Its pickle writes the marker when it is read as a pickle."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def name_remote_code(folder: Path, marker: Path) -> None:
    names = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForMaskedLM"), "evil.Evil")
    change_json(folder / "config.json", auto_map=names, model_type="evil")
    tokenizer = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    change_json(folder / "tokenizer_config.json", **tokenizer)


def name_modules(folder: Path, marker: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "evil.Evil"
    (folder / "modules.json").write_text(json.dumps(modules))


def pickle_weights(folder: Path, marker: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(marker)))


def name_kernels(folder: Path, marker: Path) -> None:
    names = ("_attn_implementation_internal", "_attn_implementation", "attn_implementation")
    change_json(folder / "config.json", **dict.fromkeys(names, "evil/kernel"))


def name_kernels_for_the_transformer(folder: Path, marker: Path) -> None:
    arguments = {"attn_implementation": "evil/kernel", "allow_all_kernels": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps({"model_args": arguments}))


def allow_kernels_of_a_nested_module(folder: Path, marker: Path) -> None:
    nested = folder / "query_Router" / "query_0_Transformer"
    nested.mkdir(parents=True)
    (nested / "config.json").write_text('{"use_kernels": true}')


def write_template(folder: Path, marker: Path) -> None:
    call = f"{{{{ cycler.__init__.__globals__.os.system('touch {marker}') }}}}"
    change_json(folder / "tokenizer_config.json", chat_template=call)
    (folder / "chat_template.jinja").write_text(call)
    message = {"message": {"method": "forward", "method_output_name": "last_hidden_state"}}
    config = {"modality_config": message, "module_output_name": "token_embeddings"}
    (folder / "sentence_bert_config.json").write_text(json.dumps(config))


def name_adapter(folder: Path, marker: Path) -> None:
    mapping = {"parent_library": "evil", "base_model_class": "Evil"}
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "auto_mapping": mapping}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Payload(marker)))


def name_activation(folder: Path, marker: Path) -> None:
    dense = {"in_features": 32, "out_features": 8, "activation_function": "evil.Evil"}
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps(dense))
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(marker)))
    modules = json.loads((folder / "modules.json").read_text())
    kind = "sentence_transformers.base.modules.dense.Dense"
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": kind})
    (folder / "modules.json").write_text(json.dumps(modules))


# What the retriever says of a hostile export.
HOSTILE: dict[Callable[[Path, Path], None], str] = {
    name_remote_code: "trust_remote_code",
    name_modules: "evil.Evil, which is code of others",
    pickle_weights: "The weights of",
    name_kernels: "which is code on the Hub",
    name_kernels_for_the_transformer: "which is code on the Hub",
    allow_kernels_of_a_nested_module: "which is code on the Hub",
    write_template: "expected a Transformer for text only",
    name_adapter: "holds an adapter",
    name_activation: "The weights of",
}


def make_folder(source: Path, folder: Path) -> Path:
    """A copy of a model with a file of code; returns the marker that the code writes."""
    marker = folder.parent.parent / f"MARKER-{folder.name}"
    shutil.copytree(source, folder)
    (folder / "evil.py").write_text(CODE.format(marker=str(marker)))
    return marker


def try_to_open(folder: Path, opener: str) -> str:
    """What opening a folder says, if it fails."""
    try:
        OPENERS[opener](folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "opened"


@pytest.mark.slow
def test_every_opener_opens_a_harmless_folder(exported, bert_run, tmp_path):
    for kind, openers in OPENERS_OF.items():
        folder = tmp_path / kind
        make_folder(bert_run / "model" if kind == "run" else exported, folder)
        found = {opener: try_to_open(folder, opener) for opener in openers}
        assert found == dict.fromkeys(openers, "opened")


@pytest.mark.slow
@pytest.mark.parametrize("spoil", HOSTILE)
def test_no_code_of_a_folder_is_executed(spoil, exported, bert_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: "n")  # whether to trust remote code
    for kind, openers in OPENERS_OF.items():
        folder = tmp_path / "folders" / kind
        marker = make_folder(bert_run / "model" if kind == "run" else exported, folder)
        spoil(folder, marker)
        errors = {opener: try_to_open(folder, opener) for opener in openers}
        assert kind == "run" or HOSTILE[spoil] in errors["retriever"]
    assert list(tmp_path.glob("MARKER*")) == []


def test_a_folder_that_names_code_of_others_is_refused(exported, tmp_path):
    for spoil in (
        name_kernels,
        name_kernels_for_the_transformer,
        allow_kernels_of_a_nested_module,
        name_modules,
    ):
        folder = tmp_path / "folders" / spoil.__name__
        spoil(folder, make_folder(exported, folder))
        with pytest.raises(ValueError, match=HOSTILE[spoil]):
            Retriever(folder)
    with pytest.raises(ValueError, match="_attn_implementation_internal: 'evil/kernel', which is"):
        CondenserForPreTraining.from_encoder(str(tmp_path / "folders" / "name_kernels"))


def test_modules_and_links_that_lead_out_of_a_folder_are_refused(exported, tmp_path):
    private = tmp_path / "id_ed25519"
    private.write_text("private")
    folder = tmp_path / "folders" / "linked"
    make_folder(exported, folder)
    (folder / "inside.txt").symlink_to(folder / "README.md")
    blobs = tmp_path / "hub" / "models--owner--name" / "blobs"
    shared = tmp_path / "hub" / "blobs" / "ab"  # of all models of the cache
    for name, place in (("vocab.txt", blobs), ("spm.model", shared)):
        place.mkdir(parents=True)
        (place / "1234").write_text("tokens")
        (folder / name).symlink_to(place / "1234")
    refuse_links(folder)
    (folder / "fake.safetensors").symlink_to(private)
    with pytest.raises(ValueError, match="fake.safetensors is a link to .*id_ed25519"):
        refuse_links(folder)
    (folder / "fake.safetensors").unlink()
    (folder / "optimizer.pt").symlink_to(private)  # which no push sends
    push(folder=folder, name="owner/linked", license="mit", dry_run=True)
    (folder / "notes.txt").symlink_to(private)
    with pytest.raises(ValueError, match="notes.txt is a link to .*id_ed25519, whose content"):
        push(folder=folder, name="owner/linked", license="mit", dry_run=True)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "../other"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="names ../other, a folder elsewhere"):
        Retriever(folder)
    modules[0]["path"] = ""
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "query_Router").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="query_Router is a link to a folder"):
        Retriever(folder)


def test_a_checkpoint_with_other_code_is_not_opened_by_a_push(bert_run, tmp_path):
    folder = tmp_path / "folders" / "run"
    marker = make_folder(bert_run / "model", folder)
    change_json(folder / "config.json", auto_map={"AutoModel": "evil/repository--evil.Evil"})
    (folder / "losses.py").write_text((folder / "evil.py").read_text())
    with pytest.raises(ValueError, match="(?s)evil.py: not the code of .*losses.py: not.*auto_map"):
        check_publishable(folder)
    assert not marker.exists()
