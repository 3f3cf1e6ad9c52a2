"""A starting encoder from nothing but texts."""

from transformers import AutoModelForMaskedLM, AutoTokenizer

from modeling_condenser.pretraining.starting_encoder import make_starting_encoder

ENCODER_CONFIG = {
    "vocab_size": 400,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def test_a_starting_encoder_is_a_bert_and_the_same_bytes_for_the_same_texts(texts, tmp_path):
    # The library orders the vocabulary by a hash map, so several trials are needed.
    folder, *others = (
        make_starting_encoder(iter(texts), tmp_path / str(k), encoder_config=ENCODER_CONFIG)
        for k in range(3)
    )
    for other in others:
        for name in ("tokenizer.json", "model.safetensors"):
            assert (other / name).read_bytes() == (folder / name).read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == 400 and tokenizer.model_max_length == 64
    ids = tokenizer("The Résumé visits Oslo.")["input_ids"]
    assert tokenizer.decode(ids) == "[CLS] the resume visits oslo. [SEP]"
    model, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.config.encoder_config.num_hidden_layers == 2
