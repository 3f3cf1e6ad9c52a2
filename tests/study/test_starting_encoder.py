"""The encoder that a study starts from if none is given."""

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

from modeling_condenser.study.starting_encoder import make_starting_encoder

CONFIG = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
}


@pytest.fixture(scope="module")
def encoder(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "blank"
    return make_starting_encoder(texts, folder, encoder_config=CONFIG)


def test_the_same_texts_and_seed_give_the_same_bytes(encoder, texts, tmp_path):
    # The library orders the vocabulary by a hash map, so several trials are needed.
    for trial in range(2):
        again = make_starting_encoder(iter(texts), tmp_path / str(trial), encoder_config=CONFIG)
        for name in ("tokenizer.json", "model.safetensors"):
            assert (again / name).read_bytes() == (encoder / name).read_bytes()


def test_the_tokenizer_is_berts_and_the_weights_are_a_whole_masked_lm(encoder):
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    first = tokenizer.convert_ids_to_tokens(range(5))
    assert first == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(tokenizer) == 300 and tokenizer.model_max_length == 48
    ids = tokenizer("The Résumé visits Oslo.")["input_ids"]
    assert (ids[0], ids[-1]) == (2, 3)
    assert tokenizer.decode(ids[1:-1]) == "the resume visits oslo."
    model, info = AutoModelForMaskedLM.from_pretrained(encoder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.config.encoder_config.num_hidden_layers == 2
