"""Studies: several arms from one start, trained for equal tokens, fine-tuned alike, compared.

The last room of the house: it runs every other stage, and says with a significance test whether one
way of pre-training helped more than another.
"""
