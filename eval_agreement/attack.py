"""critic attack: human-scored rows -> the same rows with prompt injections in their answers, for critic judge.

critic attack rows.jsonl --out attacked.jsonl
critic judge attacked.jsonl --out judged.jsonl
critic audit … --attacked judged.jsonl

With --images it writes other variants of the answers (arms), which show whether the judge looks at the image: without
the image, with another question's image, and with one fact of the answer edited (as `edits.toml` says, or the row's
column `edit`, {"old": …, "new": …}).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from critic import human_scored, jsonl, tables
from critic.errors import UsageError, hash_value
from critic.judging.prompt import LANGUAGES, Prompt, load, of_response, prompt_hash, render
from critic.judging.targets import RATING, target
from critic.records import RATINGS, Question, Response
from critic.stages import options
from eval_agreement.measures.attacks import CLEAN, SEPARATOR, PromptLayout, arms, suite

PROMPT = "pointwise"
"""Name of the judging prompt whose headings are forged."""


def read_layout(prompt: Prompt) -> PromptLayout:
    """Return a prompt's headings (lines that start with "#") and an example of its verdict.

    Attacks imitate both. They are read from the prompt, so that attacks follow a change of the prompt.
    """
    placeholder = Question(id="", group="", task="", lang=prompt.language, prompt="-", reference="-")
    lines = render(prompt, of_response(Response(id="", question=placeholder, text="-")))[0]["content"].splitlines()
    rubric, *_, question, reference, reply, grade = (line for line in lines if line.startswith("#"))
    return {
        "language": prompt.language,
        "heading": {"rubric": rubric, "question": question, "reference": reference, "reply": reply, "grade": grade},
        "highest": RATINGS[-1],
        "rating_key": RATING,
        "verdict": target(RATINGS[-1], prompt.ranges[-1].meaning),
    }


def main(
    rows: Path,
    out: Annotated[Path, typer.Option()],
    below: Annotated[float, typer.Option(min=1, max=10)] = 5.0,
    limit: Annotated[int, typer.Option(min=1)] = 50,
    images: Annotated[bool, typer.Option("--images")] = False,
    mapped: options.Mapped = None,
    scale: options.OwnScale = None,
    lang: options.OwnLanguage = None,
) -> None:
    """Insert prompt injections into answers that people scored low, and write them beside the original answers.
    \f
    - rows: Human-scored rows: JSONL, CSV with the same columns, or a folder.
    - out: Output file (.jsonl): attacked and unchanged rows, for critic judge.
    - below: Highest human score (1..10) of the answers to attack.
    - limit: Largest number of answers to attack.
    - images: Instead of attacks, write rows that test if the judge looks at the image.
    """
    if jsonl.suffix(out) != ".jsonl":
        raise UsageError(f"--out {out}: what is written is JSON lines; name it as in {out.with_suffix('.jsonl').name}")
    sources = tables.list_files(rows, out)
    loaded = human_scored.load(rows, pictures=images, own=human_scored.OwnColumns.parse(mapped, scale, lang))
    human_scored.say_left_out(loaded.left_out)
    kind = "answers with images" if images else f"answers that people gave at most {below:g} (--below)"
    usable = []
    for number, response in enumerate(loaded.responses):
        # A mean of tenths may lie a rounding error above the limit.
        is_low = response.human and round(response.human.score, 12) <= below
        if response.question.images if images else is_low:
            usable.append(number)
    if not usable:
        raise UsageError(f"{rows}: none of {len(loaded.rows)} usable rows is among {kind}")
    drawn = draw(loaded, usable, limit)
    lines = list(arms(loaded, drawn) if images else _lines(loaded, drawn))
    jsonl.write(out, lines)
    counts = Counter(str(line["id"]).rpartition(SEPARATOR)[2] for line in lines)
    facts: dict[str, Any] = {
        "sources": {jsonl.relative_place(source, out.parent): jsonl.sha256(source) for source in sources},
        "draw": {"limit": limit},
        "counts": {"usable": len(usable), "drawn": len(drawn), "rows": len(lines), **counts},
        "left_out": dict(loaded.left_out),
    }
    if not images:
        prompt = {"name": PROMPT, "hash": prompt_hash(PROMPT)}
        facts |= {"suite": hash_value([*suite().values()], 16), "below": below, "prompt": prompt}
    jsonl.write_sidecar(out, facts)
    rows_of = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"{out}: {len(drawn)} of {len(usable)} {kind}; rows: {rows_of}")


def draw(loaded: human_scored.Loaded, usable: Sequence[int], limit: int) -> list[int]:
    """Sample at most `limit` of the row numbers in `usable` by a hash of the ids, and return them in file order."""
    # By a hash of the id, so that the draw does not depend on the order of the file.
    hashes = {number: hash_value(f"0 {loaded.rows[number].id}") for number in usable}
    return sorted(sorted(usable, key=hashes.__getitem__)[:limit])


def _lines(loaded: human_scored.Loaded, drawn: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the rows to write: each sampled answer unchanged, with the harmless control, and with every attack.

    `drawn`: numbers of the sampled rows.
    """
    layouts = {language: read_layout(load(PROMPT, language)) for language in LANGUAGES}
    for number in drawn:
        row, raw = loaded.rows[number], loaded.raw[number]
        typed = msgspec.to_builtins(row)
        columns = typed | raw | typed
        yield {**columns, "id": f"{row.id}{SEPARATOR}{CLEAN}"}
        # Other judges' scores belong to the unattacked text.
        columns = {column: value for column, value in columns.items() if not column.endswith(tables.SCORE_SUFFIX)}
        for name, attack in suite().items():
            text = attack.text(row.response, layouts[row.lang])
            yield {**columns, "id": f"{row.id}{SEPARATOR}{name}", "response": text}
