"""VisIT-Bench: reading its published sheets, and win rates against the reference.

Three layouts are published: the annotated example (`image_url`, `image_dense_caption`,
`output_human_annotated`), and the data sets with one image and with several (`images`, `images_dense_captions`).
The latter two hold people's ratings of the GPT-4 answer, which is the reference if they confirmed it:

    instruction_category   instruction               images         images_dense_captions
    counting               How many kites are there? ["beach.png"]  ["Two kites above a beach."]

    gpt4_prediction        human_ratings_gpt4_correct  human_ratings_problem_in_caption
    There are two kites.   True                        False
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from critic import tables
from critic.benchmarks import Benchmark, Conversations, Run, of_paper
from critic.errors import UsageError, hash_value, loads, quoted
from critic.records import VIDEO, Conversation, ConversationTurn, Judgment
from critic.stats.aggregate import Cell, by_cell, each, groups_by, groups_of
from critic.stats.leaderboard import LeaderboardRow, score_of, scores_by_part

FORMATS = (".csv", ".parquet", ".jsonl", ".xlsx")

IMAGES = ("images", "image_url", "file_name", "image")
CAPTIONS = ("images_dense_captions", "image_dense_captions", "image_dense_caption", "instruction_conditioned_caption")
REFERENCES = ("output_human_annotated", "gpt4_prediction")
CORRECT, CAPTION_PROBLEM = "human_ratings_gpt4_correct", "human_ratings_problem_in_caption"
"""People's ratings of a GPT-4 answer: it is the reference if it is correct and its caption has no problem."""

URLS = ("http://", "https://")
"""Beginnings of an image that is given as a URL."""


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Yield the instructions of a VisIT-Bench sheet (.csv, .xlsx, .jsonl, or .parquet with its images), in its order.

    Each row becomes a conversation of one turn; its id is the column `id`, or else the row number. An image given as a
    URL is expected under its file name in the data root. If the reference is a GPT-4 answer that people did not
    confirm, the turn has no reference. Raises UsageError if the sheet lacks images, captions or references, for an
    empty cell, and for a duplicate id.
    """
    ids = tables.Ids()
    for number, (location, row) in enumerate(tables.rows(path, FORMATS), 1):
        _check_columns(path, row)
        key = ids.add(location, tables.optional_text(row, "id") or str(number))
        images = _parse_images(location, row)
        category = tables.require_text(location, row, "instruction_category")
        prompt, reference = tables.require_text(location, row, "instruction"), _find_reference(location, row)
        # Rows about the same images share a group; embedded images are identified by their hashes.
        names = [hash_value(image, 16) if image.startswith("data:") else image for image in images]
        yield Conversation(
            id=key,
            benchmark="visitbench",
            lang=tables.parse_language(location, row),
            group=" ".join(sorted(names)),
            turns=[ConversationTurn(prompt=prompt, reference=reference, task=category, images=images)],
            caption=_join_captions(location, row, sum(not name.startswith(VIDEO) for name in images) or 1),
            category=category,
        )


def _check_columns(path: Path, row: tables.Row) -> None:
    """Raise UsageError if the sheet lacks required columns, naming them."""
    needed = [("instruction",), ("instruction_category",), (*IMAGES, "video"), CAPTIONS, REFERENCES]
    # Only GPT-4 answers carry people's ratings.
    if "output_human_annotated" not in row:
        needed += [(CORRECT,), (CAPTION_PROBLEM,)]
    missing = [" or ".join(names) for names in needed if not any(column in row for column in names)]
    if missing:
        raise UsageError(f"{path}: the sheet lacks {'; '.join(missing)}")


def _find_column(row: tables.Row, names: Collection[str]) -> str:
    """Return the first of `names` that is a column of the row."""
    return next(column for column in names if column in row)


def _parse_images(location: str, row: tables.Row) -> list[str]:
    """Return the names of a row's images and its video: the file name of each URL; paths and data URIs unchanged.

    Raises UsageError if there is none, or an image twice.
    """
    column, video = _find_column(row, (*IMAGES, "video")), tables.optional_text(row, "video")
    if video and (column == "video" or not row[column]):
        return [f"{VIDEO}{video}"]
    images = [tables.parse_image(location, value) for value in _parse_list(location, row, column)]
    images = [unquote(urlsplit(image).path).rsplit("/", 1)[-1] if image.startswith(URLS) else image for image in images]
    if not images or len(set(images)) < len(images):
        raise UsageError(f"{location}: {quoted(column)} has {'one image twice' if images else 'no image'}")
    return [*images, f"{VIDEO}{video}"] if video else images


def _join_captions(location: str, row: tables.Row, images: int) -> str:
    """Return a row's caption; with several images, one numbered line per image.

    `images`: the number of captions to expect: one per image, or one for a video without images.

    NaN, which pads lists in sheets, is ignored. Raises UsageError unless each image has a caption.
    """
    column = _find_column(row, CAPTIONS)
    captions = [tables.optional_text({column: value}, column) for value in _parse_list(location, row, column)]
    present = [caption for caption in captions if caption is not None]
    # With one caption too few, every following caption would describe the wrong image.
    if len(present) != images:
        raise UsageError(f"{location}: {quoted(column)} has {len(present)} captions for {images} images")
    # A number in front of a single caption would suggest further images.
    if images == 1:
        return present[0]
    return "\n".join(f"{number}. {caption}" for number, caption in enumerate(present, 1))


def _parse_list(location: str, row: tables.Row, column: str) -> list[object]:
    """Return the entries of a cell: those of a JSON list in columns for several images, else the cell itself.

    Raises UsageError if such a column does not hold a list.

    >>> _parse_list("sheet.csv:2", {"images": '["a.png", "b.png"]'}, "images")
    ['a.png', 'b.png']
    """
    value = row[column]
    # A single image's cell is text, even if it looks like JSON.
    if not column.startswith("images"):
        return [value]
    if isinstance(value, str):
        with suppress(ValueError):
            value = loads(value)
    if not isinstance(value, list):
        raise UsageError(f"{location}: {quoted(column)} is not a JSON list")
    return value


def _find_reference(location: str, row: tables.Row) -> str | None:
    """Return the reference written by a person, else the GPT-4 answer if people confirmed it, else None."""
    # A person's own answer needs no confirmation by others.
    if "output_human_annotated" in row:
        return tables.require_text(location, row, "output_human_annotated")
    confirmed = tables.parse_yes_no(location, row, CORRECT)
    confirmed &= not tables.parse_yes_no(location, row, CAPTION_PROBLEM)
    return tables.require_text(location, row, "gpt4_prediction") if confirmed else None


def _list_rows(run: Run, conversations: Conversations) -> Iterator[LeaderboardRow]:
    """Yield a run's rows: win rates against the reference, in total and by category."""
    asked = [conversation for conversation in conversations if conversation.turns[0].reference is not None]
    referenced = groups_of(asked)
    categories = groups_by((talk.category or "none", talk.id, talk.group) for talk in asked)
    for condition in run.conditions():
        percent = by_cell(run.verdicts, "pairwise", unit=100).get(Cell(condition, 1), {})
        ties = each(percent, lambda score: 100.0 * (score == 50))
        scores = {"all": score_of(percent, referenced, (0, 100)), "ties": score_of(ties, referenced, (0, 100))}
        scores |= scores_by_part(percent, dict(sorted(categories.items())), (0, 100))
        caption = "Win rate against the reference in %, a tie half a win"
        if unreferenced := len(conversations) - len(referenced):
            caption += f"; {unreferenced} instructions without a confirmed one are not asked"
        yield LeaderboardRow("reference", caption, scores, condition=condition)


def _is_scored(judgment: Judgment) -> bool:
    return judgment.judging == "standard"


BENCHMARK = Benchmark(**of_paper("visitbench"), read=read_conversations, scored=_is_scored, entries=_list_rows)
