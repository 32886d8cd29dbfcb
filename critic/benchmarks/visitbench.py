"""VisIT-Bench: its published sheets as they are, and win rates against the reference.

Three layouts are published: the annotated example (`image_url`, `image_dense_caption`, `output_human_annotated`), the
data set of single images and that of several (`images`, `images_dense_captions`), both with people's ratings of the
GPT-4 answer that serves as the reference once they found it right:

    instruction_category   instruction               images         images_dense_captions
    counting               How many kites are there? ["beach.png"]  ["Two kites above a beach."]

    gpt4_prediction        human_ratings_gpt4_correct  human_ratings_problem_in_caption
    There are two kites.   True                        False
"""

import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote, urlsplit

from critic import tables
from critic.benchmarks import Benchmark, Conversations, Run
from critic.errors import UsageError, loads, quoted
from critic.records import Conversation, ConversationTurn, JudgeConfig
from critic.stats.aggregate import Cell, by_cell, each, groups_by, groups_of
from critic.stats.leaderboard import LeaderboardRow, score_of

FORMATS = (".csv", ".parquet", ".jsonl", ".xlsx")

IMAGES = ("images", "image_url", "file_name", "image")
CAPTIONS = ("images_dense_captions", "image_dense_captions", "image_dense_caption", "instruction_conditioned_caption")
REFERENCES = ("output_human_annotated", "gpt4_prediction")
CORRECT, CAPTION_PROBLEM = "human_ratings_gpt4_correct", "human_ratings_problem_in_caption"
"""People's word on a GPT-4 answer: it is the reference where it is correct and its caption without a problem."""

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
    conversations = []
    for number, (location, row) in enumerate(tables.rows(path, FORMATS), 1):
        _check_columns(path, row)
        key = ids.add(location, tables.optional_text(row, "id") or str(number))
        images = _images(location, row)
        category = tables.require_text(location, row, "instruction_category")
        prompt, reference = tables.require_text(location, row, "instruction"), _reference(location, row)
        # Rows about the same images belong together; embedded ones are known by their hashes.
        names = [
            hashlib.sha256(image.encode()).hexdigest()[:16] if image.startswith("data:") else image for image in images
        ]
        conversations.append(
            Conversation(
                id=key,
                benchmark="visitbench",
                lang=tables.parse_language(location, row),
                group=" ".join(sorted(names)),
                turns=[ConversationTurn(prompt=prompt, reference=reference, task=category, images=images)],
                caption=_caption(location, row, len(images)),
                category=category,
            )
        )
    return conversations


def _check_columns(path: Path, row: tables.Row) -> None:
    needed = [("instruction",), ("instruction_category",), IMAGES, CAPTIONS, REFERENCES]
    if "output_human_annotated" not in row:
        needed += [(CORRECT,), (CAPTION_PROBLEM,)]
    missing = [" or ".join(names) for names in needed if not any(column in row for column in names)]
    if missing:
        raise UsageError(f"{path}: the sheet lacks {'; '.join(missing)}")


def _first(row: tables.Row, names: Collection[str]) -> str:
    return next(column for column in names if column in row)


def _images(location: str, row: tables.Row) -> list[str]:
    """Of a URL the file name; paths and data URIs as they are."""
    column = _first(row, IMAGES)
    images = [tables.parse_image(location, value) for value in _listed(location, row, column)]
    images = [unquote(urlsplit(image).path).rsplit("/", 1)[-1] if _URL.match(image) else image for image in images]
    if not images or len(set(images)) < len(images):
        raise UsageError(f"{location}: {quoted(column)} has {'one image twice' if images else 'no image'}")
    return images


def _caption(location: str, row: tables.Row, images: int) -> str:
    """The caption, one a line and numbered where there are several images. Sheets pad their lists with NaN."""
    column = _first(row, CAPTIONS)
    captions = [tables.optional_text({column: value}, column) for value in _listed(location, row, column)]
    known = [caption for caption in captions if caption is not None]
    if len(known) != images:
        raise UsageError(f"{location}: {quoted(column)} has {len(known)} captions for {images} images")
    if images == 1:
        return known[0]
    return "\n".join(f"{number}. {caption}" for number, caption in enumerate(known, 1))


def _listed(location: str, row: tables.Row, column: str) -> list[object]:
    """The entries of a cell: a JSON list in the columns of several images, else the cell itself."""
    value = row[column]
    if not column.startswith("images"):
        return [value]
    if isinstance(value, str):
        try:
            value = loads(value)
        except ValueError:
            raise UsageError(f"{location}: {quoted(column)} is not a JSON list") from None
    if not isinstance(value, list):
        raise UsageError(f"{location}: {quoted(column)} is not a list")
    return value


def _reference(location: str, row: tables.Row) -> str | None:
    if "output_human_annotated" in row:
        return tables.require_text(location, row, "output_human_annotated")
    confirmed = _is_true(location, row, CORRECT) and not _is_true(location, row, CAPTION_PROBLEM)
    return tables.require_text(location, row, "gpt4_prediction") if confirmed else None


def _is_true(location: str, row: tables.Row, column: str) -> bool:
    text = tables.require_text(location, row, column).lower()
    if text not in TRUE | FALSE:
        raise UsageError(f"{location}: {quoted(column)} is {quoted(text)}; expected true or false")
    return text in TRUE


def _entries(run: Run, conversations: Conversations) -> list[LeaderboardRow]:
    """Win rates against the reference, and by category."""
    rows = []
    referenced = groups_of(talk for talk in conversations if talk.turns[0].reference is not None)
    categories = groups_by(
        (conversation for conversation in conversations if conversation.id in referenced),
        lambda conversation: conversation.category or "none",
    )
    for condition in run.conditions():
        points = by_cell(run.verdicts, "pairwise").get(Cell(condition, 1), {})
        percent = each(points, lambda score: 100 * score)
        parts = {"all": referenced, **dict(sorted(categories.items()))}
        scores = {name: score_of(percent, ids, (0, 100)) for name, ids in parts.items()}
        ties = each(points, lambda score: 100.0 * (score == 0.5))
        scores = {"all": scores.pop("all"), "ties": score_of(ties, referenced, (0, 100)), **scores}
        caption = "Win rate against the reference in %, a tie half a win"
        if unreferenced := len(conversations) - len(referenced):
            caption += f"; {unreferenced} instructions without a confirmed one are not asked"
        rows.append(LeaderboardRow(key="reference", caption=caption, scores=scores, condition=condition))
    return rows


PUBLISHED = JudgeConfig(judge="", score_kind="argmax", reason_first=True, unread="tie")
"""Appendix F: asked twice, step by step; what comes to no verdict is a tie."""

BENCHMARK = Benchmark(
    title="VisIT-Bench",
    read=read_conversations,
    protocols=("pairwise",),
    published=PUBLISHED,
    scored=lambda verdict: verdict.judging == "standard",
    entries=_entries,
)
