"""Mining a window of queries: query ids in, their hard negatives and what was counted out.

search -> ranks and scores (candidates.py) -> an order (drawing.py) -> texts (judging.py)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from modeling_condenser.collection.answers import AnswerMatcher
from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.lookup import find_rows
from modeling_condenser.retrieval.runs import Run
from modeling_condenser.retrieval.systems import Searcher

from .candidates import Candidate
from .drawing import draw_order
from .judging import Pair, PassageTexts, Selection, TextJudge, Verdict, join_title, select
from .negatives import EXAMPLES_FILE, NEGATIVES_FILE, HardNegatives
from .positives import Positives, answered_positives
from .recipe import MiningRecipe
from .teacher import Teacher

_EXAMPLE_QUERIES = 64  # whose texts are in memory at once, with all their passages


@dataclass(frozen=True)
class Miner:
    """Mines queries of one collection.

    Attributes:
        recipe: what is a negative.
        collection: passages, queries, judgements, answers.
        searcher: finds candidates.
        positives: of the queries, as they are judged; None if answers tell.
        twins: positive -> other passages with its text; see `find_twins`.
        teacher: the cross-encoder, if the recipe names one.
        is_trusted: whether the searcher names passages of the collection only.
    """

    recipe: MiningRecipe
    collection: Collection
    searcher: Searcher
    positives: Positives | None
    twins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    teacher: Teacher | None = None
    is_trusted: bool = True

    def mine(self, query_ids: Iterable[str]) -> tuple[list[HardNegatives], Counter[str]]:
        """Mine the hard negatives of some queries.

        Args:
            query_ids: of queries that have a positive, or answers.

        Returns:
            One entry for each query with a positive, in their order; and what was counted.

        Raises:
            ValueError: the searcher names a passage that the collection lacks, or a score is not
                finite.
        """
        queries = {query_id: self.collection.queries[query_id] for query_id in query_ids}
        run = self.searcher.search(queries, depth=self.recipe.last_rank)
        matchers = self._matchers(queries)
        if self.positives is None:
            positives: Positives = answered_positives(self.collection, run, matchers)
        else:
            positives = {query_id: self.positives[query_id] for query_id in queries}
        counts: Counter[str] = Counter()
        orders = self._orders(run, positives, counts)
        mined = self._judge(positives, orders, matchers, counts)
        if not self.is_trusted:
            find_rows(self.collection.passages, (i for m in mined for i in m.negative_ids))
        self._count(mined, counts)
        return mined, counts

    def lines(self, mined: Sequence[HardNegatives]) -> Iterator[tuple[str, str]]:
        """The lines of the run's files, each with the name of its file."""
        for negatives in mined:
            yield NEGATIVES_FILE, negatives.line()
        if not self.recipe.with_text:
            return
        complete = [negatives for negatives in mined if negatives.negative_ids]
        texts = PassageTexts(self.collection.passages, (i for m in complete for i in m.passage_ids))
        for first in range(0, len(complete), _EXAMPLE_QUERIES):
            batch = complete[first : first + _EXAMPLE_QUERIES]
            found = texts.read(i for m in batch for i in m.passage_ids)
            separator = self.recipe.title_separator
            passages = {i: join_title(*passage, separator) for i, passage in found.items()}
            for negatives in batch:
                query = self.collection.queries[negatives.query_id]
                for line in negatives.example_lines(query, passages):
                    yield EXAMPLES_FILE, line

    def _matchers(self, query_ids: Iterable[str]) -> dict[str, AnswerMatcher]:
        if not self.recipe.needs_answers:
            return {}
        answers = self.collection.answers
        return {
            query_id: AnswerMatcher(answers[query_id], match=self.recipe.answer_match)
            for query_id in query_ids
            if answers.get(query_id)
        }

    def _orders(
        self, run: Run, positives: Positives, counts: Counter[str]
    ) -> dict[str, list[Candidate]]:
        """Each query's candidates, in the order in which they are taken."""
        recipe = self.recipe
        orders = {}
        for query_id, own in positives.items():
            scores = run.get(query_id, {})
            n_ranks = min(len(scores), recipe.last_rank) - recipe.first_rank + 1
            counts["candidates"] += max(n_ranks, 0)
            counts["queries_without_candidates"] += n_ranks <= 0
            twins = {twin for passage_id in own for twin in self.twins.get(passage_id, ())}
            orders[query_id] = draw_order(
                recipe.candidates.apply(scores, own, twins=twins, dropped=counts),
                query_id=query_id,
                seed=recipe.seed,
                sampling=recipe.sampling,
            )
        return orders

    def _judge(
        self,
        positives: Positives,
        orders: Mapping[str, list[Candidate]],
        matchers: Mapping[str, AnswerMatcher],
        counts: Counter[str],
    ) -> list[HardNegatives]:
        """Take negatives from the candidates, and score positives where there is a teacher."""
        judge: Callable[[Sequence[Pair]], list[Verdict]] = _accept_all
        scores: dict[str, list[float]] = {query_id: [] for query_id in positives}
        if matchers or self.teacher is not None:
            pairs = [(query_id, i) for query_id, own in positives.items() for i in own]
            ids = {candidate.passage_id for order in orders.values() for candidate in order}
            text_judge = self._text_judge(ids | {i for _, i in pairs}, matchers)
            judge = text_judge.judge
            if self.teacher is not None:
                for (query_id, _), score in zip(pairs, text_judge.score(pairs), strict=True):
                    scores[query_id].append(score)
        selections = select(orders, judge, n=self.recipe.n_negatives, dropped=counts)
        return [
            self._record(query_id, positives[query_id], scores[query_id], selection)
            for query_id, selection in selections.items()
        ]

    def _text_judge(self, ids: Iterable[str], matchers: Mapping[str, AnswerMatcher]) -> TextJudge:
        return TextJudge(
            self.collection.queries,
            PassageTexts(self.collection.passages, ids),
            matchers,
            teacher=self.teacher,
            negative_below=self.recipe.negative_below,
            positive_above=self.recipe.positive_above,
            title_separator=self.recipe.title_separator,
        )

    def _record(
        self, query_id: str, positives: Sequence[str], scores: Sequence[float], chosen: Selection
    ) -> HardNegatives:
        taken, relabelled = chosen.taken, chosen.relabelled
        record = HardNegatives(
            query_id,
            positive_ids=(*positives, *(judged.candidate.passage_id for judged in relabelled)),
            negative_ids=tuple(judged.candidate.passage_id for judged in taken),
            negative_scores=tuple(judged.candidate.score for judged in taken),
        )
        if self.teacher is None:
            return record
        return replace(
            record,
            positive_teacher_scores=(*scores, *(judged.teacher_score for judged in relabelled)),
            negative_teacher_scores=tuple(judged.teacher_score for judged in taken),
        )

    def _count(self, mined: Sequence[HardNegatives], counts: Counter[str]) -> None:
        n = self.recipe.n_negatives or 0
        for negatives in mined:
            found = len(negatives.negative_ids)
            counts["queries"] += 1
            counts["negatives"] += found
            counts["queries_without_negatives"] += found == 0
            counts["queries_with_fewer"] += 0 < found < n


def _accept_all(pairs: Sequence[Pair]) -> list[Verdict]:
    return [Verdict()] * len(pairs)
