"""Publishing: checkpoint -> plain encoder -> model card -> Hub.

Reads a pre-training checkpoint, writes a repository folder without remote code: the encoder's own
weights and configuration, tokenizer, sentence-transformers modules, the encoding contract, a
stand-alone evaluation script and a model card.
"""
