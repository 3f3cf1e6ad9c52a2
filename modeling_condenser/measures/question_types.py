"""What kind of answer a question asks for, by rules.

In: a question, or a query as people type it into a search box. Out: one of the six coarse classes
of Li & Roth (2002), "Learning Question Classifiers", by which the thesis breaks its results down
(section 4.4.2, Table 4.4), or None. Yes/no questions have no place among the six classes, and
bare phrases ("hydrogen bonds") ask nothing: both are None, and the thesis leaves such queries out.

The rules are tables, tried in order: phrases that decide alone ("stand for"), then the question
word, and for "what" and "which" the noun that is asked for ("what *river* flows …").
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

AnswerType = Literal["description", "number", "human", "location", "entity", "abbreviation"]
ANSWER_TYPES: tuple[AnswerType, ...] = get_args(AnswerType)
"""In the order of the thesis's Table 4.4."""

# Wherever they stand, these decide, and the first that is found does.
_PHRASES: Sequence[tuple[str, AnswerType | None]] = (
    (r"\b(stands?|standing|short) for\b", "abbreviation"),
    (r"\b(abbreviations?|abbreviated|acronyms?|initials|full form)\b", "abbreviation"),
    (r"^(is|are|was|were|do|does|did|has|have|had|can|could|would|should|must)\b", None),
    (r"^(will|may) (a|an|the|there|i|you|he|she|it|we|they)\b", None),
    (r"^(define|explain|describe|compare|meaning|definition)\b", "description"),
    (r"\b(definitions?|meanings?|pronunciation|symptoms|tutorial|recipe)$", "description"),
    (r"\b(how to|how come|differences? between|versus|vs)\b", "description"),
    (
        r"\bwhat (do|does|did) .*\b(mean|do|deal with|say|believe|symbolize|represent)\b",
        "description",
    ),
    (r"\bwhat (do|does|did) .*\b(look|sound|taste|feel|smell) like\b", "description"),
    (r"\bwhat (is|are|was|were) .*\b(like|about|doing)$", "description"),
    (r"\bwhat (is|are|was|were) .*\b(used|known|famous|good|responsible) for\b", "description"),
    (r"\bwhat (causes?|caused|makes?|happens?|happened|would happen|to)\b", "description"),
    (r"\bwhere (does|did) the (\w+ )*(term|word|phrase|name|expression|saying)\b", "description"),
    (r"\bwhat (is|are|was|were) .*\b(made|composed) (of|from|out of)$", "entity"),
    (r"\bwhat (is|was) (the|a|an) (\w+ )*(term|word|name|nickname) (for|given)\b", "entity"),
    (r"\bwhat is (a|the) fear of\b", "entity"),
    (r"\bwhat is (an|one|another) (\w+ )?(example|name|synonym|antonym|word) (of|for)\b", "entity"),
    (r"\bwhat is (\w+ )?(latin|greek|french|german|italian|spanish) for\b", "entity"),
    (r"\bhow (do|would|can) (you|i) say .* in \w+$", "entity"),
    (r"\bwhat (is|are|was|were) an? .*\b(called|named|known as)$", "entity"),
    (r"\b(what|which) (body|bodies) of water\b", "location"),
)
_BY_QUESTION_WORD: Mapping[str, AnswerType] = {
    "who": "human",
    "whom": "human",
    "whose": "human",
    "where": "location",
    "when": "number",
    "why": "description",
}
# After "how", these ask for a number, and all else for a description.
_MEASURED = frozenset(
    """big close cold deep expensive far fast frequently hard heavy high hot large late long loud
    low many much often old quickly rapidly soon small strong tall thick warm wide young""".split()
)
# The nouns that are asked for, in the singular. One of two words is written with a hyphen.
_NOUNS: Mapping[AnswerType, str] = {
    "description": """
        advantage argument background basis benefit biography cause characteristic concept
        consequence content contribution criteria criterion difference disadvantage drawback effect
        explanation fact feature function goal guideline history idea impact importance instruction
        issue limitation lyrics meaning moral motto nature objective origin plot policy power
        principle procedure process property purpose quote reason recipe relationship requirement
        responsibility result risk role rule side-effect sign significance similarity slogan
        spelling step strategy structure summary symptom theme theory treatment trick use
        weakness""",
    "number": """
        acreage age altitude amount angle anniversary average birthdate birthday bmi boiling-point
        budget calorie capacity carbs century charge circumference code cost count date day deadline
        decade degree density depth diameter dimension distance dosage duration elevation era
        expectancy fare fee fraction freezing-point frequency gdp gpa half-life height hour income
        inflation iq latitude length lifespan limit longitude mass maximum melting-point minimum
        minute month number odds pay percent percentage period ph population postcode pressure price
        probability proportion quantity radius range rate ratio salary score season size span speed
        statistics temp temperature time total value velocity voltage volume wage wavelength weight
        width worth year zip""",
    "human": """
        actor actress agency airline architect army artist assassin astronaut astronomer athlete
        author band bank boxer boy boyfriend brother businessman candidate captain cartoonist cast
        celebrity ceo chairman champion character chef chemist child children church club coach
        college comedian commander company competitor composer corporation cowboy creator criminal
        crooner dancer daughter department designer detective dictator director doctor duo economist
        emperor employer engineer explorer family father firm founder friend gangster general girl
        girlfriend god goddess golfer governor grandfather grandmother group gymnast hero heroine
        historian host hunter husband inventor isp job journalist judge killer king lawyer leader
        maker man manager manufacturer martyr mayor member men minister model monarch mother
        murderer musician network novelist nurse occupation officer organisation organization owner
        painter party people person philosopher photographer physicist pianist pilot pirate pitcher
        player playwright poet police politician pope position president prince princess producer
        profession prophet publisher quarterback queen rapper resident ruler sailor saint school
        scientist scoundrel sculptor secretary senator singer sister soldier son spouse spy star
        student swimmer team title tribe twin university victim villain vocalist wife winner woman
        women writer""",
    "location": """
        address airport attraction avenue bay beach birthplace border bridge building canal canyon
        capital castle cathedral cave cemetery city coast colony constellation continent country
        county desert district forest galaxy gulf harbor harbour headquarters hemisphere
        highest-point highway homeland hometown hotel house island isle kingdom lake land location
        lowest-point mountain museum nation nationality neighborhood neighbourhood ocean palace park
        peak peninsula place planet port prison province region republic reservoir residence resort
        restaurant river road sea site square stadium state strait street suburb temple territory
        tower town url valley village volcano waterfall waterway website zoo""",
    "entity": """
        acid album alcohol animal antibiotic artery award ballet battle beer bird bone book brand
        breed candy car card cartoon cat cell ceremony cheese chemical cocktail codename color
        colour comic compound creature crime crop currency dance dessert device disease dish
        disorder document dog drink drug dye element enzyme event example exercise fabric fear
        festival film fish flag flavor flower food fruit fuel game gas gem gemstone gene gland grain
        herb holiday hormone illness infection ingredient insect instrument invention item language
        letter liquid machine magazine mammal mascot material meal meat medication medicine medium
        metal method mineral money movie muscle music musical name newspaper nickname novel nut
        nutrient object oil opera ore organ painting part pet phobia plane plant play poem poison
        predator prize product program protein religion reptile resource rock sauce science
        sculpture series shape ship shoe show snake soda software song soup species spice sport
        stone story substance surgery symbol tale technique technology term test therapy thing tool
        toy train tree unit vaccine vegetable vehicle vein virus vitamin war way weapon wine wood
        word""",
}
_TYPE_OF_NOUN: Mapping[str, AnswerType] = {
    noun.replace("-", " "): answer for answer, nouns in _NOUNS.items() for noun in nouns.split()
}
# These ask for a number wherever they stand in a query without a question word.
_ALWAYS_A_NUMBER = re.compile(
    r"\b(calories|costs?|distance|net worth|phone number|population|prices?|salary|salaries|wages?"
    r"|zip code|area code|number of|how (much|many|long|far|old))\b"
)

_MOST_WORDS = 100  # the patterns take quadratic time, and what follows is no question any more
_COPULAS = frozenset("is are was were be".split())
_AUXILIARIES = frozenset("do does did can could should would will has have had may might".split())
_PREPOSITIONS = frozenset(
    """about after against among as at between by during for from in into near of on over than
    through to under with without""".split()
)
_RELATIVES = frozenset("that who which whose where when".split())
# Behind a noun, these are its verb: "what book features Bilbo Baggins".
_VERBS_TOO = frozenset(
    """causes charges claims contains costs features functions houses issues limits names plays
    produces ranges ranks results rules shows stars states teams use uses""".split()
)
_PHRASE_ENDS = _COPULAS | _AUXILIARIES | _PREPOSITIONS | _RELATIVES

# A question word counts at the start, after a preposition, at the end, and anywhere in what begins
# with a preposition or ends in "?"; elsewhere it is taken for a relative pronoun ("the man who
# knew too much").
_PREPOSITION = f"(?:{'|'.join(sorted(_PREPOSITIONS))})"
_QUESTION_WORDS = "(who|whom|whose|where|when|why|how|what|which)"
_ASKED = re.compile(
    rf"^{_QUESTION_WORDS}\b|^{_PREPOSITION} .*?\b{_QUESTION_WORDS}\b"
    rf"|\b{_PREPOSITION} {_QUESTION_WORDS}\b|\b{_QUESTION_WORDS}$"
)
_ASKED_ANYWHERE = re.compile(rf"\b{_QUESTION_WORDS}\b")
_ORDER = re.compile(r"^(name|list|identify|give( me)?|tell me) (?!of\b)")
_ARTICLE = re.compile(r"^(the|an?|some|your|my|our|his|her|its|their) ")
# What stands before the noun that counts: "what kind of dog", "the name of the first woman".
_TRANSPARENT = re.compile(
    r"^(of|(the )?(\w+ ){0,2}?(names?|types?|kinds?|sorts?|forms?|variety|varieties|ones?|list) of)"
    r" (the |an? |these |this )?(following )?(?=\w)"
)
_SELECTED = re.compile(
    r"\b(most|least|best|worst|first|second|third|last|only|main|national|official|\w{2,}est)\b"
)
_TYPICAL = re.compile(r"\b(average|normal|typical|standard|good|healthy|minimum|maximum|current)\b")


def answer_type(question: str) -> AnswerType | None:
    """Classify a question by the answer that it asks for.

    On 254 questions of Li & Roth's labelled set that were kept aside while the rules were written,
    they agreed with the label on 226, or 89 % (the classifier that the thesis used states 80 %, on
    500 others). Most errors call something an entity or a description that is not one.

    Args:
        question: in English, of any case, with or without punctuation and question word.

    Returns:
        The type, or None for what the rules cannot tell: yes/no questions, bare phrases, "".
    """
    text = _normalised(question)
    for pattern, answer in _PHRASES:
        if re.search(pattern, text):
            return answer
    asked = _ASKED.search(text)
    if asked is None and question.rstrip().endswith("?"):
        asked = _ASKED_ANYWHERE.search(text)
    if asked:
        word = next(group for group in asked.groups() if group)
        return _type_by_question_word(word, text[asked.end() :].strip())
    order = _ORDER.match(text)
    if order:
        return _type_of_first_noun(text[order.end() :].rpartition("'s ")[2]) or "entity"
    return _type_of_bare_phrase(text)


def _normalised(question: str) -> str:
    """Lower case, words and possessives apart: "what is the queen 's name"."""
    text = re.sub("[’`´]", "'", question.lower())
    text = re.sub(r"\b(what|who|where|when|how|which)( ?'s|s)\b", r"\1 is", text)
    text = re.sub(r"\s*'s\b", " 's", text).replace(".", "")
    return " ".join(re.findall(r"'s\b|\w+", text)[:_MOST_WORDS])


def _type_by_question_word(word: str, rest: str) -> AnswerType:
    if word in _BY_QUESTION_WORD:
        return _BY_QUESTION_WORD[word]
    first, _, after = rest.partition(" ")
    if word == "how":
        return "number" if first in _MEASURED else "description"
    if first in _COPULAS:
        return _type_of_what_is(after, plural=first in ("are", "were"))
    if first in _AUXILIARIES:  # "what do pandas eat"
        return "entity"
    return _type_of_first_noun(rest) or "entity"


def _type_of_what_is(phrase: str, *, plural: bool) -> AnswerType:
    """Of "the tallest mountain in africa"; a definition is asked where no noun says otherwise."""
    indefinite = phrase.startswith(("a ", "an "))
    bare, transparent = _without_transparent(phrase)
    noun_phrase, rest = _split_noun_phrase(bare)
    one_of_several = plural and phrase.startswith("the ")  # "what are the stages of sleep"
    selected = transparent or one_of_several or bool(_SELECTED.search(noun_phrase))
    answer = _type_of_last_noun(noun_phrase)
    if answer is None:
        return (_type_of_first_noun(noun_phrase) or "entity") if selected else "description"
    typical = answer == "number" and bool(_TYPICAL.search(noun_phrase))
    definite = bool(_ARTICLE.match(phrase)) or "'s" in noun_phrase or bool(rest)
    if selected or typical or (definite and not indefinite):
        return answer
    compound = " " in noun_phrase  # "what is miami zip code", but not "what is price"
    return "number" if compound and _ALWAYS_A_NUMBER.search(noun_phrase) else "description"


def _type_of_bare_phrase(text: str) -> AnswerType | None:
    """Of a query without a question word: "capital of australia", "chicago population"."""
    if _ALWAYS_A_NUMBER.search(text):
        return "number"
    bare, transparent = _without_transparent(text)
    noun_phrase, rest = _split_noun_phrase(bare)
    answer = _type_of_last_noun(noun_phrase)
    if answer is None:
        return "entity" if transparent else None
    if rest.startswith("of ") or transparent or _SELECTED.search(noun_phrase):
        return answer
    if answer == "description" and " " in text:
        return answer
    typical = bool(_TYPICAL.search(noun_phrase))
    return answer if (answer == "number" and (rest or typical)) else None


def _without_transparent(phrase: str) -> tuple[str, bool]:
    match = _TRANSPARENT.match(phrase)
    return (phrase[match.end() :], True) if match else (phrase, False)


def _split_noun_phrase(phrase: str) -> tuple[str, str]:
    """Split before the first preposition, verb or relative pronoun that is known."""
    words = phrase.split()
    end = next((i for i, word in enumerate(words) if word in _PHRASE_ENDS), len(words))
    return " ".join(words[:end]), " ".join(words[end:])


def _type_of_last_noun(noun_phrase: str) -> AnswerType | None:
    words = noun_phrase.split()
    return _type_of_noun(" ".join(words[-2:])) or _type_of_noun(" ".join(words[-1:]))


def _type_of_first_noun(phrase: str) -> AnswerType | None:
    """Of the first run of known nouns: "singer" in "country music singer recorded the song"."""
    noun_phrase, _ = _split_noun_phrase(_without_transparent(_ARTICLE.sub("", phrase))[0])
    words = re.split(r" (?:'s|the|an?)\b", noun_phrase)[0].split()
    found: AnswerType | None = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        answer = _type_of_noun(f"{word} {following}") or _type_of_noun(word)
        if found is not None and (answer is None or word in _VERBS_TOO):
            break
        found = answer or found
    return found


def _type_of_noun(noun: str) -> AnswerType | None:
    """Look a noun up, as it stands or in the singular."""
    singulars = [noun, noun.removesuffix("s"), noun.removesuffix("es")]
    if noun.endswith("ies"):
        singulars.append(f"{noun.removesuffix('ies')}y")
    return next((_TYPE_OF_NOUN[form] for form in singulars if form in _TYPE_OF_NOUN), None)


def group_by_type(questions: Mapping[str, str]) -> dict[str, list[str]]:
    """Sort queries by answer type.

    Args:
        questions: query id -> text.

    Returns:
        Answer type -> query ids, in the order of `ANSWER_TYPES` and of `questions`. Types without
        a question are left out, as are questions without a type.
    """
    types = {query_id: answer_type(text) for query_id, text in questions.items()}
    groups: dict[str, list[str]] = {
        answer: [q for q, t in types.items() if t == answer] for answer in ANSWER_TYPES
    }
    return {answer: ids for answer, ids in groups.items() if ids}


LENGTH_LIMITS = (4, 8, 12)
"""The greatest numbers of words in all groups of queries but the last, which has no limit."""


def group_by_length(queries: Mapping[str, str]) -> dict[str, list[str]]:
    """Group queries by their number of words.

    Args:
        queries: query id -> text.

    Returns:
        "1-4 words", "5-8 words", "9-12 words", "13 words or more" -> query ids, in the order of
        `queries`; without empty groups and empty queries.
    """
    names = [f"{end - 3}-{end} words" for end in LENGTH_LIMITS]
    names.append(f"{LENGTH_LIMITS[-1] + 1} words or more")
    groups: dict[str, list[str]] = {name: [] for name in names}
    for query_id, text in queries.items():
        n_words = len(text.split())
        if n_words:
            groups[names[sum(n_words > limit for limit in LENGTH_LIMITS)]].append(query_id)
    return {name: ids for name, ids in groups.items() if ids}
