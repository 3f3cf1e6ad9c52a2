"""Classify by rules what kind of answer a question asks for, and group queries by it.

The types are the six coarse classes of Li & Roth (2002), "Learning Question Classifiers".
"""

import re
from collections.abc import Mapping
from typing import Literal, get_args

import pandas as pd

AnswerType = Literal["description", "number", "human", "location", "entity", "abbreviation"]

_MOST_WORDS = {"1-4 words": 4, "5-8 words": 8, "9-12 words": 12, "13 words or more": float("inf")}
# The first pattern that is found decides.
_PATTERNS: Mapping[str, AnswerType | None] = {
    r"\b(stands?|short) for\b|\b(abbreviations?|abbreviated|acronym|full form)\b": "abbreviation",
    r"^(is|are|was|were|do|does|did|has|have|had|can|could|should|will (a|the|there|it))\b": None,
    r"^(define|explain|describe|meaning)\b|\b(definition|meaning|symptoms)$": "description",
    r"\bhow to\b|\b(vs|versus)\b|^what (causes?|caused|makes?|happens?|happened)\b": "description",
    r"^what (do|does|did) .*\b(mean|do|say|look like)\b": "description",
    r"^what (is|are) .*\bmade (of|from)$|^what (is|are|was|were) an? .* called$": "entity",
    r"\bhow (big|cold|deep|far|fast|heavy|high|hot|large|long|many|much|often|old|tall)": "number",
}
# Question words and nouns that name a type.
_WORDS: Mapping[AnswerType, str] = {
    "description": """how why advantage cause effect feature function history meaning origin process
        property purpose reason relationship role step symptom treatment use""",
    "number": """when age average calorie cost date day degree depth distance height length number
        percentage period point population price rate size speed temperature time worth year""",
    "human": """who whom whose actor actress artist astronaut author band brother cast character
        club company composer daughter director doctor father founder group husband inventor king
        leader man member mother musician occupation owner painter people person player poet
        president queen ruler scientist singer sister son star team wife winner woman writer""",
    "location": """where address airport birthplace border capital castle city continent country
        county desert island lake location mountain museum ocean place planet province region river
        road sea state street town village volcano""",
    "entity": """album animal award bird body book brand breed car color colour currency disease
        dish dog drink event film fish flag flower food fruit game gas hormone instrument language
        material metal mineral movie muscle name novel organ part plant play product religion ship
        show song species sport story symbol tree vitamin war""",
}
_TYPE_OF: Mapping[str, AnswerType] = {
    word: answer for answer, words in _WORDS.items() for word in words.split()
}
_PHRASE_END = (
    r"\b(is|are|was|were|be|do|does|did|can|could|should|has|have|had|about|after|as|at|between|by|"
    r"during|for|from|in|into|near|of|on|to|under|with|that|who|which|where|when|'s)\b"
)
# What stands before the noun that counts: "the name of the", "what kind of".
_BEFORE_NOUN = (
    r"^(of |(the )?(\w+ ){0,2}?(name|type|kind|sort|form|variety|one)s? of |name |list )"
    r"(the |an? |these |this |following )*"
)
_SELECTED = r"\b(name|most|least|best|first|second|last|only|main|national|average|\w{2,}est)\b"


def answer_type(question: str) -> AnswerType | None:
    """Classify an English question or search query.

    It is None for yes/no questions and for phrases without a known noun.
    """
    text = re.sub(r"[’`]", "'", question.lower())
    text = re.sub(r"\b(what|who|where|when|how)( ?'s|s)\b", r"\1 is", text).replace(".", "")
    text = " ".join(re.findall(r"'s\b|\w+", text)[:100])  # the beginning of a long text
    for pattern, answer in _PATTERNS.items():
        if re.search(pattern, text):
            return answer
    asked = re.search(r"\b(who|whom|whose|where|when|why|how|what|which)\b", text)
    word, rest = (asked[0], text[asked.end() :]) if asked else ("", text)
    if word in _TYPE_OF:
        return _TYPE_OF[word]
    copula = re.match(r" (is|are|was|were) (an? |.* 's )?", rest)
    phrase = rest[copula.end() :] if copula else rest.strip()
    if copula and copula[2] in ("a ", "an "):
        return "description"
    if noun_type := _type_of_noun(phrase):
        return noun_type
    if not asked:
        return None
    return "description" if copula and not re.search(_SELECTED, phrase) else "entity"


def _type_of_noun(phrase: str) -> AnswerType | None:
    """The type of the last noun in the first run of known nouns before a verb or preposition."""
    bare = re.sub(_BEFORE_NOUN, "", re.sub(r"^(the|an?|your|my|its) ", "", phrase))
    noun_type: AnswerType | None = None
    for word in re.split(_PHRASE_END, bare, maxsplit=1)[0].split():
        forms = (word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word))
        known = next((_TYPE_OF[form] for form in forms if form in _TYPE_OF), None)
        if noun_type and not known:
            break
        noun_type = known
    return noun_type


def group_queries(
    queries: Mapping[str, str], *, at_least: int = 1
) -> dict[str, dict[str, list[str]]]:
    """Group queries (id -> text) by "answer type" and by "query length", in words.

    Smaller groups than `at_least` and queries without a type are left out.
    """
    types = [answer_type(text) for text in queries.values()]
    lengths = [len(text.split()) for text in queries.values()]
    columns = {
        "answer type": pd.Categorical(types, get_args(AnswerType)),
        "query length": pd.cut(lengths, [-1, *_MOST_WORDS.values()], labels=list(_MOST_WORDS)),
    }
    table = pd.DataFrame(columns, index=list(queries))
    groupings = {}
    for by in table:
        groups = table.groupby(by, observed=True).groups.items()
        large = {name: list(ids) for name, ids in groups if len(ids) >= at_least}
        if large:
            groupings[by] = large
    return groupings
