"""What kind of answer a question asks for, by rules.

The types are the six coarse classes of Li & Roth (2002), "Learning Question Classifiers", by which
the thesis breaks its results down (section 4.4.2, Table 4.4).
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

AnswerType = Literal["description", "number", "human", "location", "entity", "abbreviation"]
ANSWER_TYPES: tuple[AnswerType, ...] = get_args(AnswerType)
"""In the order of the thesis's Table 4.4."""

_LENGTHS = {
    "1-4 words": (1, 4),
    "5-8 words": (5, 8),
    "9-12 words": (9, 12),
    "13 words or more": (13, math.inf),
}

_MOST_WORDS = 100  # only the beginning of a longer text is read
# The first pattern that is found decides.
_PATTERNS: Sequence[tuple[str, AnswerType | None]] = (
    (r"\b(stands?|short) for\b|\b(abbreviations?|abbreviated|acronym|full form)\b", "abbreviation"),
    (r"^(is|are|was|were|do|does|did|has|have|had|can|could|should|will (a|the|there|it))\b", None),
    (r"^(define|explain|describe|meaning)\b|\b(definition|meaning|symptoms)$", "description"),
    (r"\bhow to\b|\bdifferences? between\b|\b(vs|versus)\b", "description"),
    (r"^what (do|does|did) .*\b(mean|do|say|look like)\b", "description"),
    (r"^what (causes?|caused|makes?|happens?|happened)\b", "description"),
    (r"^what (is|are|was|were) .*\b((used|known|famous|responsible) for|like)\b", "description"),
    (r"^where (do|does|did) the (\w+ )*(name|phrase|saying|term|word)\b", "description"),
    (r"^what (is|are) .*\bmade (of|from)$|^what (is|are|was|were) an? .* called$", "entity"),
)
_BY_QUESTION_WORD: Mapping[str, AnswerType] = {
    "who": "human",
    "whom": "human",
    "whose": "human",
    "where": "location",
    "when": "number",
    "why": "description",
}
_MEASURED = re.compile(
    " (big|close|cold|deep|far|fast|heavy|high|hot|large|late|long|many|much|often|old|small|tall)"
)
_QUESTION_WORD = r"(who|whom|whose|where|when|why|how|what|which)"
_PREPOSITION = "(at|by|during|for|from|in|into|of|on|than|to|under|with|about|after)"
# Elsewhere a question word is a relative pronoun, unless the query ends with a question mark.
_ASKED = re.compile(
    rf"(?:^|^{_PREPOSITION} .*?|\b{_PREPOSITION} ){_QUESTION_WORD}\b|\b{_QUESTION_WORD}$"
)
_ALWAYS_A_NUMBER = re.compile(
    r"\b(calories|costs?|distance|net worth|number of|phone number|population|prices?|salary"
    r"|zip code|area code|how (many|much|old))\b"
)
_NOUNS: Mapping[AnswerType, str] = {
    "description": """
        advantage cause effect feature function goal history idea meaning origin process
        property purpose reason relationship role side-effect step symptom theme treatment use""",
    "number": """
        age average boiling-point calorie capacity code cost date day decade degree depth
        diameter distance height length melting-point month number percentage period population
        price rate ratio salary score season size speed temperature time value weight year""",
    "human": """
        actor actress airline architect artist astronaut author band bank boxer brother captain cast
        club character college company composer daughter department designer director doctor emperor
        explorer family father founder general god goddess golfer group husband inventor judge
        king leader man manufacturer member minister model monarch mother musician network
        novelist occupation organisation organization owner painter party people person
        philosopher player poet politician pope president prince princess profession queen
        ruler school scientist singer sister son star team tribe university winner woman writer""",
    "location": """
        address airport birthplace border bridge building canal capital castle cathedral city
        coast continent country county desert highway hotel house island lake location mountain
        museum nation nationality ocean palace park peak place planet port province region
        republic resort restaurant river road sea square stadium state street town village
        volcano website""",
    "entity": """
        album animal award ballet battle bird body bone book brand breed car cheese chemical
        color colour currency disease dish dog drink element event example fear film fish flag
        flower food fruit game gas hormone insect instrument language letter magazine mammal
        material metal method mineral movie muscle musical name newspaper nickname novel object
        opera organ part pet plane plant play poem prize product protein religion rock ship
        show song species sport stone story symbol term tree vegetable vehicle virus vitamin
        war weapon wine wood word""",
}
_TYPE_OF_NOUN: Mapping[str, AnswerType] = {
    noun.replace("-", " "): answer for answer, nouns in _NOUNS.items() for noun in nouns.split()
}
_PHRASE_END = re.compile(
    r"\b(is|are|was|were|be|do|does|did|can|could|should|will|has|have|had|about|after|against|as"
    r"|at|between|by|during|for|from|in|into|near|of|on|to|under|with|that|who|which|where|when"
    r"|'s)\b"
)
# What stands before the noun that counts: "the name of the", "what kind of".
_BEFORE_NOUN = re.compile(
    r"^(of |(the )?(\w+ ){0,2}?(name|type|kind|sort|form|variety|one)s? of |name |list )"
    r"(the |an? |these |this |following )*"
)
_SELECTED = re.compile(
    r"\b(name|most|least|best|first|second|last|only|main|national|official|average|normal|\w{2,}est)\b"
)


def answer_type(question: str) -> AnswerType | None:
    """Classify an English question, or a query as it is typed into a search box.

    Returns:
        The type; None for yes/no questions, and for phrases without a noun that is known.
    """
    text = re.sub(r"[’`]", "'", question.lower())
    text = re.sub(r"\b(what|who|where|when|how)( ?'s|s)\b", r"\1 is", text).replace(".", "")
    text = " ".join(re.findall(r"'s\b|\w+", text)[:_MOST_WORDS])
    for pattern, answer in _PATTERNS:
        if re.search(pattern, text):
            return answer
    asked = _ASKED.search(text)
    if asked is None and question.rstrip().endswith("?"):
        asked = re.search(rf"\b{_QUESTION_WORD}\b", text)
    word, rest = (asked[0].split()[-1], text[asked.end() :]) if asked else ("", text)
    if word in _BY_QUESTION_WORD:
        return _BY_QUESTION_WORD[word]
    if word == "how":
        return "number" if _MEASURED.match(rest) else "description"
    copula = re.match(r" (is|are|was|were) (an? |.* 's )?", rest)
    phrase = rest[copula.end() :] if copula else rest.strip()
    if copula and copula[2] in ("a ", "an "):
        return "description"
    if " " in phrase and (copula or not asked) and _ALWAYS_A_NUMBER.search(phrase):
        return "number"
    unknown: AnswerType | None = None
    if asked:
        unknown = "description" if copula and not _SELECTED.search(phrase) else "entity"
    return _type_of_noun(phrase) or unknown


def _type_of_noun(phrase: str) -> AnswerType | None:
    """Of the last known noun in the first run of known nouns, before a verb or preposition."""
    bare = _BEFORE_NOUN.sub("", re.sub(r"^(the|an?|your|my|its) ", "", phrase))
    words = _PHRASE_END.split(bare)[0].split()
    found: AnswerType | None = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        nouns = [form for noun in (f"{word} {following}", word) for form in _forms(noun)]
        answer = next((_TYPE_OF_NOUN[noun] for noun in nouns if noun in _TYPE_OF_NOUN), None)
        if found and not answer:
            break
        found = answer or found
    return found


def _forms(noun: str) -> list[str]:
    return [noun, noun.removesuffix("s"), noun.removesuffix("es"), re.sub("ies$", "y", noun)]


def group_by_type(questions: Mapping[str, str]) -> dict[str, list[str]]:
    """Group queries (id -> text) by answer type, in the order of `ANSWER_TYPES`.

    Empty groups and questions without a type are left out.
    """
    types = {query_id: answer_type(text) for query_id, text in questions.items()}
    groups = {answer: [q for q, t in types.items() if t == answer] for answer in ANSWER_TYPES}
    return {answer: ids for answer, ids in groups.items() if ids}


def group_by_length(queries: Mapping[str, str]) -> dict[str, list[str]]:
    """Group queries (id -> text) by their number of words."""
    lengths = {query_id: len(text.split()) for query_id, text in queries.items()}
    groups = {
        name: [query_id for query_id, n_words in lengths.items() if first <= n_words <= last]
        for name, (first, last) in _LENGTHS.items()
    }
    return {name: ids for name, ids in groups.items() if ids}
