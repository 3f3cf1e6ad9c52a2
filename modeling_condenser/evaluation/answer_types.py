"""Classify by rules what kind of answer a question asks for, and group queries by it.

The types are the six coarse classes of Li & Roth (2002), "Learning Question Classifiers", by which
the thesis breaks its results down (section 4.4.2, Table 4.4).
"""

import math
import re
from collections.abc import Mapping
from typing import Literal, get_args

AnswerType = Literal["description", "number", "human", "location", "entity", "abbreviation"]
"""In the order of the thesis's Table 4.4."""

_MOST_WORDS = {"1-4 words": 4, "5-8 words": 8, "9-12 words": 12, "13 words or more": math.inf}
# The first pattern that is found decides.
_PATTERNS: tuple[tuple[str, AnswerType | None], ...] = (
    (r"\b(stands?|short) for\b|\b(abbreviations?|abbreviated|acronym|full form)\b", "abbreviation"),
    (r"^(is|are|was|were|do|does|did|has|have|had|can|could|should|will (a|the|there|it))\b", None),
    (r"^(define|explain|describe|meaning)\b|\b(definition|meaning|symptoms)$", "description"),
    (r"\bhow to\b|\bdifferences? between\b|\b(vs|versus)\b", "description"),
    (r"^what (do|does|did) .*\b(mean|do|say|look like)\b", "description"),
    (r"^what (causes?|caused|makes?|happens?|happened)\b", "description"),
    (r"^what (is|are|was|were) .*\b((used|known|famous|responsible) for|like)\b", "description"),
    (r"^what (is|are) .*\bmade (of|from)$|^what (is|are|was|were) an? .* called$", "entity"),
)
_BY_QUESTION_WORD: Mapping[str, AnswerType] = {
    **dict.fromkeys(("who", "whom", "whose"), "human"),
    "where": "location",
    "when": "number",
    "why": "description",
}
_MEASURED = (
    " (big|close|cold|deep|far|fast|heavy|high|hot|large|late|long|many|much|often|old|tall)"
)
_QUESTION_WORD = r"(who|whom|whose|where|when|why|how|what|which)"
_PREPOSITION = "(at|by|during|for|from|in|into|of|on|than|to|under|with|about|after)"
# Elsewhere a question word is a relative pronoun, unless the query ends with a question mark.
_ASKED = rf"(?:^|^{_PREPOSITION} .*?|\b{_PREPOSITION} ){_QUESTION_WORD}\b|\b{_QUESTION_WORD}$"
_ALWAYS_A_NUMBER = r"\b(costs?|distance|net worth|number of|prices?|salary|how (many|much|old))\b"
_NOUNS: Mapping[AnswerType, str] = {
    "description": """advantage cause effect feature function history idea meaning origin process
        property purpose reason relationship role step symptom theme treatment use""",
    "number": """age average calorie capacity code cost date day decade degree depth distance height
        length month number percentage period point population price rate ratio salary score size
        speed temperature time value weight year""",
    "human": """actor actress airline architect artist astronaut author band bank brother captain
        cast character club college company composer daughter designer director doctor father
        founder god group husband inventor judge king leader man member minister mother musician
        occupation organization owner painter party people person player poet politician president
        queen ruler school scientist singer sister son star team university wife winner woman
        writer""",
    "location": """address airport birthplace border bridge building canal capital castle city coast
        continent country county desert hotel house island lake location mountain museum nation
        ocean palace park place planet port province region restaurant river road sea state street
        town village volcano website""",
    "entity": """album animal award battle bird body book brand breed car color colour currency
        disease dish dog drink element event example film fish flag flower food fruit game gas
        hormone instrument language letter magazine mammal material metal mineral movie muscle name
        newspaper novel organ part plant play poem product protein religion rock ship show song
        species sport stone story symbol term tree vitamin war weapon wood word""",
}
_TYPE_OF_NOUN: Mapping[str, AnswerType] = {
    noun: answer for answer, nouns in _NOUNS.items() for noun in nouns.split()
}
_PHRASE_END = (
    r"\b(is|are|was|were|be|do|does|did|can|could|should|will|has|have|had|about|after|against|as"
    r"|at|between|by|during|for|from|in|into|near|of|on|to|under|with|that|who|which|where|when"
    r"|'s)\b"
)
# What stands before the noun that counts: "the name of the", "what kind of".
_BEFORE_NOUN = (
    r"^(of |(the )?(\w+ ){0,2}?(name|type|kind|sort|form|variety|one)s? of |name |list )"
    r"(the |an? |these |this |following )*"
)
_SELECTED = r"\b(name|most|least|best|first|second|last|only|main|national|average|\w{2,}est)\b"


def answer_type(question: str) -> AnswerType | None:
    """Classify an English question, or a query as it is typed into a search box.

    Returns:
        The type; None for yes/no questions, and for phrases without a noun that is known.
    """
    text = re.sub(r"[’`]", "'", question.lower())
    text = re.sub(r"\b(what|who|where|when|how)( ?'s|s)\b", r"\1 is", text).replace(".", "")
    text = " ".join(re.findall(r"'s\b|\w+", text)[:100])  # the beginning of a long text
    for pattern, answer in _PATTERNS:
        if re.search(pattern, text):
            return answer
    asked = re.search(_ASKED, text)
    if asked is None and question.rstrip().endswith("?"):
        asked = re.search(rf"\b{_QUESTION_WORD}\b", text)
    word, rest = (asked[0].split()[-1], text[asked.end() :]) if asked else ("", text)
    if word in _BY_QUESTION_WORD:
        return _BY_QUESTION_WORD[word]
    if word == "how":
        return "number" if re.match(_MEASURED, rest) else "description"
    copula = re.match(r" (is|are|was|were) (an? |.* 's )?", rest)
    phrase = rest[copula.end() :] if copula else rest.strip()
    if copula and copula[2] in ("a ", "an "):
        return "description"
    if " " in phrase and (copula or not asked) and re.search(_ALWAYS_A_NUMBER, phrase):
        return "number"
    if found := _type_of_noun(phrase):
        return found
    if not asked:
        return None
    return "description" if copula and not re.search(_SELECTED, phrase) else "entity"


def _type_of_noun(phrase: str) -> AnswerType | None:
    """Of the last known noun in the first run of known nouns, before a verb or preposition."""
    bare = re.sub(_BEFORE_NOUN, "", re.sub(r"^(the|an?|your|my|its) ", "", phrase))
    found: AnswerType | None = None
    for word in re.split(_PHRASE_END, bare)[0].split():
        forms = (word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word))
        known = next((_TYPE_OF_NOUN[form] for form in forms if form in _TYPE_OF_NOUN), None)
        if found and not known:
            break
        found = known
    return found


def group_queries(queries: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """Group queries (id -> text) by "answer type" and by "query length", in words.

    Empty groups and queries without a type are left out.
    """
    by_type: dict[str, list[str]] = {answer: [] for answer in get_args(AnswerType)}
    by_length: dict[str, list[str]] = {name: [] for name in _MOST_WORDS}
    for query_id, text in queries.items():
        if answer := answer_type(text):
            by_type[answer].append(query_id)
        n_words = len(text.split())
        by_length[next(name for name, n in _MOST_WORDS.items() if n_words <= n)].append(query_id)
    groups = {"answer type": by_type, "query length": by_length}
    filled = {by: {name: ids for name, ids in of.items() if ids} for by, of in groups.items()}
    return {by: of for by, of in filled.items() if of}
