"""Where the sentences of a text begin.

The reference cuts its blocks at sentences found by NLTK's Punkt with a trained English model, which
NLTK downloads. This uses the same algorithm (Kiss & Strunk 2006) with common abbreviations instead
of the trained model, so nothing is downloaded. A missed abbreviation only moves a cut.
"""

from functools import cache

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

_ABBREVIATIONS = frozenset(
    "a.m al approx apr aug bros ca cf cm co corp dec dept dr e.g ed eds eq eqs etc feb fig figs "
    "gen i.e inc jan jr km lt ltd mar mm mr mrs ms mt no nos nov nr oct op p.m pp prof ref rev sec "
    "sen sept sr st u.k u.n u.s univ viz vol vols vs".split()
)


@cache
def _splitter() -> PunktSentenceTokenizer:
    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters)


def sentence_starts(text: str) -> list[int]:
    """Character offsets at which the sentences of a text begin; empty for a blank text.

    Example:
        >>> sentence_starts("Dr. Smith left. It rained.")
        [0, 16]
    """
    return [start for start, _ in _splitter().span_tokenize(text)]
