"""Answer types against labels written by hand, from Li & Roth's definitions, before the rules."""

import pytest

from modeling_condenser.evaluation.report import answer_type, group_queries

# Questions as people write them and queries as they type them into a search box. `None` stands for
# what the six classes have no place for: yes/no questions, and phrases that ask nothing.
LABELLED = {
    "description": """why is the sky blue | define sonnet | what is photosynthesis | What is the
        difference between a crocodile and an alligator? | how to remove a wine stain from carpet |
        what causes kidney stones | what does ubiquitous mean | What is the history of the Suez
        Canal? | side effects of ibuprofen | osmosis definition | what is a mountain pass""",
    "number": """how many bones does a shark have | When was the Eiffel Tower built? | average
        salary of a nurse | what is the population of iceland | how long does it take to boil an egg
        | In what year did the Titanic sink? | what temperature should chicken be cooked to | what
        is the boiling point of ethanol | calories in a banana | will smith net worth""",
    "human": """who sings hallelujah | WHO’S the mayor of London? | what actor played Forrest Gump?
        | which company makes the playstation | author of the great gatsby | What is the name of the
        lead singer of Coldplay? | what team does lionel messi play for | what is the name of the
        queen's youngest son? | Name the astronaut who first walked on the moon.""",
    "location": """where is mount kilimanjaro | capital of australia | in what city is the louvre |
        what is the largest desert in the world | which river flows through baghdad | what county is
        fresno in | Name the planet closest to the sun. | the film was shot in what country""",
    "entity": """what language is spoken in brazil | What color is a school bus? | which vitamin is
        good for your eyes | what do pandas eat | What is a baby kangaroo called? | what movie won
        best picture in 1994 | name of beyonce's first album | What metal has the highest melting
        point? | what kind of dog is scooby doo | what is bronze made of""",
    "abbreviation": """what does nasa stand for | What is the abbreviation for Missouri? | what is
        the full form of html | what is scuba an acronym for | mph abbreviation | What does the
        acronym LASER mean?""",
    None: """is the tomato a fruit | Can dogs eat grapes? | hydrogen bonds | ? | will there be
        another season | 東京の人口は?""",
}


@pytest.mark.parametrize("expected", LABELLED)
def test_questions_get_the_type_that_a_person_gave_them(expected):
    questions = [" ".join(each.split()) for each in LABELLED[expected].split("|")]
    actual = {question: answer_type(question) for question in questions}
    assert {question: t for question, t in actual.items() if t != expected} == {}


def test_groups_are_in_order_and_leave_out_what_has_none():
    asked = "who sings hallelujah | is water wet | why is the sky blue | who wrote emma"
    questions = {f"q{i}": text for i, text in enumerate(asked.split(" | "))}
    groups = group_queries(questions, is_english=True)
    assert list(groups["answer type"].items()) == [("description", ["q2"]), ("human", ["q0", "q3"])]
    queries = {str(n): " ".join(["word"] * n) for n in (13, 1, 4, 5, 8, 9, 12, 40)}
    spaced = {**queries, "spaced": "  two \t words\n", "ja": "東京の天気"}
    assert group_queries(spaced, is_english=True)["query length"] == {
        "1-4 words": ["1", "4", "spaced"],
        "5-8 words": ["5", "8", "ja"],
        "9-12 words": ["9", "12"],
        "13 words or more": ["13", "40"],
    }
    assert group_queries({}, is_english=True) == {}
    assert [*group_queries(questions, is_english=False)] == ["query length"]
