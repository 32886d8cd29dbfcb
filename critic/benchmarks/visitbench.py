"""VisIT-Bench: its published sheets as they are, win rates against the reference, and a tournament of models.

Three layouts are published: the annotated example (`image_url`, `image_dense_caption`, `output_human_annotated`), the
data set of single images and that of several (`images`, `images_dense_captions`), both with people's ratings of the
GPT-4 answer that serves as the reference once they found it right:

    instruction_category   instruction               images         images_dense_captions
    counting               How many kites are there? ["beach.png"]  ["Two kites above a beach."]

    gpt4_prediction        human_ratings_gpt4_correct  human_ratings_problem_in_caption
    There are two kites.   True                        False
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import asdict

from critic import tables
from critic.benchmarks import Benchmark, Conversations, Report, Run, Verdicts, labelled, order_reading
from critic.counting import aggregate as counted
from critic.counting import tournament as ratings
from critic.counting.aggregate import Aggregate, Cell, by_cell, check, mean, means
from critic.counting.leaderboard import Entry, score_of
from critic.counting.tournament import Battle, Outcome, Ratings, WinRate
from critic.errors import UsageError
from critic.page import blocks
from critic.page import svg as pictures
from critic.page.aggregates import AGGREGATE_HEAD as HEAD
from critic.page.aggregates import aggregate, aggregates
from critic.page.blocks import Section, Table, TableCell
from critic.records import Conversation, ConversationTurn

FORMATS = (".csv", ".parquet", ".jsonl", ".xlsx")

IMAGES = ("images", "image_url", "file_name", "image")
CAPTIONS = ("images_dense_captions", "image_dense_captions", "image_dense_caption", "instruction_conditioned_caption")
REFERENCES = ("output_human_annotated", "gpt4_prediction")
CORRECT, CAPTION_PROBLEM = "human_ratings_gpt4_correct", "human_ratings_problem_in_caption"
"""People's word on a GPT-4 answer: it is the reference where it is correct and its caption without a problem."""

SHUFFLES, RESAMPLES, SEED = 100, 500, 0
"""Random orders behind an Elo rating, resamples behind its interval, and the seed of everything random."""

TRUE, FALSE = {"true", "1", "yes"}, {"false", "0", "no"}
_URL = re.compile("https?://")


def read_conversations(path: Path) -> list[Conversation]:
    """The instructions of a VisIT-Bench sheet (.csv, .xlsx, .jsonl, or .parquet with its images) as conversations of
    one turn, in its order and by its row number (or a column `id`).

    An image given as a URL is expected under its file name in the data root. A GPT-4 answer that people did not
    confirm is no reference: the turn then has none. Raises UsageError naming what is missing for a sheet without
    images, captions or references, and place and column for an empty cell or a duplicate id.
    """
    ids = tables.Ids()
    found = []
    for number, (place, row) in enumerate(tables.rows(path, FORMATS), 1):
        _check_columns(path, row)
        key = ids.add(place, tables.optional_text(row, "id") or str(number))
        images = _images(place, row)
        category = tables.text(place, row, "instruction_category")
        prompt, reference = tables.text(place, row, "instruction"), _reference(place, row)
        # Rows about the same images belong together; embedded ones are known by their hashes.
        names = [hashlib.sha256(one.encode()).hexdigest()[:16] if one.startswith("data:") else one for one in images]
        found.append(
            Conversation(
                id=key,
                benchmark="visitbench",
                lang=tables.language(place, row),
                group=" ".join(sorted(names)),
                turns=[ConversationTurn(prompt=prompt, reference=reference, task=category, images=images)],
                caption=_caption(place, row, len(images)),
                category=category,
            )
        )
    return found


def _check_columns(path: Path, row: tables.Row) -> None:
    needed = [("instruction",), ("instruction_category",), IMAGES, CAPTIONS, REFERENCES]
    if "output_human_annotated" not in row:
        needed += [(CORRECT,), (CAPTION_PROBLEM,)]
    missing = [" or ".join(names) for names in needed if not any(column in row for column in names)]
    if missing:
        raise UsageError(f"{path}: the sheet lacks {'; '.join(missing)}")


def _first(row: tables.Row, names: Collection[str]) -> str:
    return next(column for column in names if column in row)


def _images(place: str, row: tables.Row) -> list[str]:
    """Of a URL the file name; paths and data URIs as they are."""
    column = _first(row, IMAGES)
    images = [tables.image(place, value) for value in _listed(place, row, column)]
    images = [unquote(urlsplit(one).path).rsplit("/", 1)[-1] if _URL.match(one) else one for one in images]
    if not images or len(set(images)) < len(images):
        raise UsageError(f"{place}: {column!r} has {'one image twice' if images else 'no image'}")
    return images


def _caption(place: str, row: tables.Row, images: int) -> str:
    """The caption, one a line and numbered where there are several images. Sheets pad their lists with NaN."""
    column = _first(row, CAPTIONS)
    captions = [tables.optional_text({column: value}, column) for value in _listed(place, row, column)]
    given = [caption for caption in captions if caption is not None]
    if len(given) != images:
        raise UsageError(f"{place}: {column!r} has {len(given)} captions for {images} images")
    if images == 1:
        return given[0]
    return "\n".join(f"{number}. {caption}" for number, caption in enumerate(given, 1))


def _listed(place: str, row: tables.Row, column: str) -> list[object]:
    """The entries of a cell: a JSON list in the columns of several images, else the cell itself."""
    value = row[column]
    if not column.startswith("images"):
        return [value]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise UsageError(f"{place}: {column!r} is not a JSON list") from None
    if not isinstance(value, list):
        raise UsageError(f"{place}: {column!r} is not a list")
    return value


def _reference(place: str, row: tables.Row) -> str | None:
    if "output_human_annotated" in row:
        return tables.text(place, row, "output_human_annotated")
    confirmed = _is_true(place, row, CORRECT) and not _is_true(place, row, CAPTION_PROBLEM)
    return tables.text(place, row, "gpt4_prediction") if confirmed else None


def _is_true(place: str, row: tables.Row, column: str) -> bool:
    found = tables.text(place, row, column).lower()
    if found not in TRUE | FALSE:
        raise UsageError(f"{place}: {column!r} is {found!r}; expected true or false")
    return found in TRUE


class ReferenceScores(Struct, frozen=True, kw_only=True):
    """How often a model's answer is preferred to the reference: `overall` and by category in per cent, a tie half a
    win; `counts` are the wins, ties and losses. Instructions without a reference are not asked; `unreferenced`
    says how many there are."""

    overall: Aggregate
    counts: WinRate
    categories: dict[str, Aggregate]
    unreferenced: int


def against_reference(verdicts: Verdicts, conversations: Conversations, condition: str = "own") -> ReferenceScores:
    """The win rate against the reference of one model's pairwise verdicts without an opponent. Raises UsageError as
    `aggregate.by_cell` does."""
    chosen = [verdict for verdict in verdicts if verdict.opponent is None]
    found = by_cell(chosen, "pairwise").get(Cell(condition, 1), {})
    percent = {key: None if score is None else 100 * score for key, score in found.items()}
    asked = [one for one in conversations if one.turns[0].reference is not None]
    return ReferenceScores(
        overall=mean(percent, [one.id for one in asked], (0, 100)),
        counts=ratings.win_rate(found[one.id] for one in asked if one.id in found),
        categories=means(percent, ((one.category or "none", one.id) for one in asked), (0, 100)),
        unreferenced=len(conversations) - len(asked),
    )


def battles(verdicts: Verdicts, conversations: Conversations, condition: str = "own") -> list[Battle]:
    """The verdicts between two models as battles, in the given order, grouped as their conversations are.

    A score other than 1, 1/2 or 0 cannot be told apart from a tie and is refused. Raises UsageError for it, for an
    unknown conversation, and for a pair of models compared twice on one instruction.
    """
    groups = {one.id: one.group for one in conversations}
    outcomes: dict[float | None, Outcome | None] = {1.0: "a", 0.5: "tie", 0.0: "b", None: None}
    seen: set[tuple[str, frozenset[str]]] = set()
    found = []
    for verdict in verdicts:
        if verdict.protocol != "pairwise" or verdict.opponent is None or verdict.condition != condition:
            continue
        check(verdict)
        pair = verdict.conversation, frozenset((verdict.system, verdict.opponent))
        if verdict.conversation not in groups:
            raise UsageError(f"{counted.name(verdict)}: not in the questions")
        if verdict.score not in outcomes:
            raise UsageError(f"{counted.name(verdict)}: score {verdict.score:g}; expected 1, 0.5 or 0")
        if pair in seen:
            raise UsageError(f"{counted.name(verdict)}: {verdict.system} and {verdict.opponent} compared twice")
        seen.add(pair)
        outcome = outcomes[verdict.score]
        found.append(Battle(a=verdict.system, b=verdict.opponent, outcome=outcome, group=groups[verdict.conversation]))
    return found


class Tournament(Struct, frozen=True, kw_only=True):
    """Models by their battles: win rates, online Elo as the mean over `shuffles` seeded orders, and Bradley-Terry
    ratings with intervals."""

    win_rates: dict[str, WinRate]
    elo: Ratings
    bradley_terry: Ratings
    k: float = ratings.K
    shuffles: int = SHUFFLES
    seed: int = SEED


def tournament(fought: Sequence[Battle]) -> Tournament:
    """Win rates and ratings of `battles`; see `critic.counting.tournament` for when a rating is undefined."""
    return Tournament(
        win_rates=ratings.win_rates(fought),
        elo=ratings.mean_elo(fought, shuffles=SHUFFLES, seed=SEED, resamples=RESAMPLES),
        bradley_terry=ratings.bradley_terry(fought, seed=SEED),
    )


def report(runs: Sequence[Run], conversations: Conversations) -> Report:
    scored: dict[str, ReferenceScores] = {}
    summary: dict[str, Any] = {}
    for run in runs:
        for condition in run.conditions():
            against = against_reference(run.verdicts, conversations, condition)
            scored[f"{run.name}, {condition}"] = against
            summary.setdefault(run.name, {})[condition] = against
    sections = [_references(runs, scored)] if scored else []
    compared = [verdict for run in runs for verdict in run.battles]
    for condition in dict.fromkeys(verdict.condition for verdict in compared):
        fought = battles(compared, conversations, condition)
        if fought:
            name = "tournament" if condition == "own" else f"tournament, {condition}"
            found = tournament(fought)
            matrix = ratings.head_to_head(fought)
            pairs = {frozenset((battle.a, battle.b)) for battle in fought}
            asked = {model: len(conversations) * sum(model in pair for pair in pairs) for model in found.win_rates}
            if any(run.setup.battles == "random" for run in runs):  # who meets whom is known by the files alone
                asked = {model: sum(model in (one.a, one.b) for one in fought) for model in asked}
            sections.append(_tournament(name.capitalize(), runs, found, asked, matrix))
            summary[name] = asdict(found) | {"asked": asked, "head_to_head": matrix}
    return Report(sections=sections, summary=summary)


def _references(runs: Sequence[Run], scored: Mapping[str, ReferenceScores]) -> Section:
    counts = {name: found.counts for name, found in scored.items()}
    rows = [blocks.row(name, count.wins, count.ties, count.losses) for name, count in counts.items()]
    unreferenced = max(found.unreferenced for found in scored.values())
    return Section(
        heading="Against the reference",
        readings=[line for run in runs for line in order_reading(run)],
        tables=[
            aggregates("Win rate in %, a tie half a win", {name: found.overall for name, found in scored.items()}),
            Table(caption="Verdicts", head=["", "wins", "ties", "losses"], rows=rows),
            *(aggregates(f"{name}: by category", found.categories, folded=True) for name, found in scored.items()),
        ],
        note=f"{unreferenced} instructions have no confirmed reference and are not asked." if unreferenced else "",
    )


def _tournament(
    heading: str,
    runs: Sequence[Run],
    found: Tournament,
    asked: Mapping[str, int],
    matrix: Mapping[str, Mapping[str, WinRate]],
) -> Section:
    """`asked`: the battles of each model, those that were never judged included."""
    elo, strength = found.elo.ratings or {}, found.bradley_terry.ratings or {}
    intervals = found.bradley_terry.intervals or {}
    rows = [
        blocks.row(
            model,
            TableCell(blocks.number(elo.get(model), 0), blocks.interval((found.elo.intervals or {}).get(model), 0)),
            blocks.number(strength.get(model), 0),
            blocks.span(*intervals[model], 0) if model in intervals else "–",
            *aggregate(model, _percent(rate, asked[model])).cells,
        )
        for model, rate in sorted(found.win_rates.items(), key=lambda pair: -elo.get(pair[0], 0.0))
    ]
    head = ["", "Elo", "Bradley–Terry", "95 % interval", "win rate, %", *HEAD[2:]]
    order = [one.name for one in rows]
    met = {model: {other: matrix[model].get(other) for other in order} for model in order}
    won = {
        model: {other: 100 * rate.rate if rate and rate.rate is not None else None for other, rate in rates.items()}
        for model, rates in met.items()
    }
    cells = [blocks.row(model, *map(_won, rates.values())) for model, rates in met.items()]
    wins = Table(
        caption="Wins of the row over the column in %, a tie half a win", head=["", *order], rows=cells, sticky=True
    )
    ways = {run.setup for run in runs if run.battles}
    why = [text for text in (found.elo.undefined, found.bradley_terry.undefined) if text]
    if not why and not intervals and found.bradley_terry.no_intervals:
        why = [f"no intervals: {found.bradley_terry.no_intervals}"]
    return Section(
        heading=heading,
        readings=[
            *(f"Ratings: {text}." for text in why),
            *([f"The battles were judged in {len(ways)} ways, which the ratings mix."] if len(ways) > 1 else []),
            *(line for run in runs for line in order_reading(run, battles=True)),
        ],
        tables=[Table(caption="Ratings of models by their battles", head=head, rows=rows), wins],
        pictures=[drawn for drawn in [pictures.bars("Wins of the row over the column, in %.", won, (0, 100))] if drawn],
        note=f"Elo: online, K = {found.k:g}, the mean over {found.shuffles} random orders (seed {found.seed}); its "
        "interval: bootstrap over groups, each resample in an order of its own. "
        "Bradley–Terry: on the same scale, mean 1000, bootstrap over groups.",
    )


def _won(rate: WinRate | None) -> TableCell:
    if rate is None or rate.rate is None:
        return TableCell("")
    return TableCell(
        blocks.number(100 * rate.rate, 1), f"{rate.wins}–{rate.ties}–{rate.losses}", title="won, tied, lost"
    )


def _percent(rate: WinRate, asked: int) -> Aggregate:
    """A win rate in per cent, with the range that it could lie in had the missing battles all been lost, or won."""
    points = [100.0] * rate.wins + [50.0] * rate.ties + [0.0] * rate.losses
    return mean(dict(enumerate([*points, *[None] * rate.failed])), range(asked), (0, 100))


def _entries(run: Run, conversations: Conversations) -> list[Entry]:
    """Win rates against the reference, and by category."""
    made = []
    asked = {one.id: one.group for one in conversations if one.turns[0].reference is not None}
    categories: dict[str, dict[str, str]] = {}
    for one in conversations:
        if one.id in asked:
            categories.setdefault(one.category or "none", {})[one.id] = one.group
    for condition in run.conditions():
        found = by_cell(run.verdicts, "pairwise").get(Cell(condition, 1), {})
        percent = {key: None if score is None else 100 * score for key, score in found.items()}
        parts = {name: score_of(percent, ids, (0, 100)) for name, ids in sorted(categories.items())}
        made.append(
            Entry(key="reference", caption="Win rate against the reference in %, a tie half a win", system=run.system,
                  name=labelled(run.name, condition), scores={"all": score_of(percent, asked, (0, 100)), **parts},
                  drawn={"bars": list(parts)}, scale=(0, 100), apart=condition != "own")
        )  # fmt: skip
    return made


BENCHMARK = Benchmark(
    title="VisIT-Bench",
    read=read_conversations,
    protocols=("pairwise",),
    report=report,
    scored=lambda verdict: verdict.judging == "standard",
    entries=_entries,
)
