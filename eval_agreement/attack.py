"""critic attack: human-scored rows -> the same rows with prompt injections in their answers, for critic judge.

critic attack rows.jsonl --out attacked.jsonl
critic judge attacked.jsonl --out judged.jsonl
critic audit … --attacked judged.jsonl

With --images the arms that tell whether the judge looks: without the image, with another question's, and with one fact
of the answer edited (`edits.toml`, or the row's own column `edit`, {"old": …, "new": …}).

`attacks.toml` holds the attacks. Each is put into answers that people scored low, beside harmless padding and the
answers as they are.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from critic import human_scored, jsonl
from critic.asking.forms import BY_NAME, form_of, prompt_of
from critic.asking.prompt import LANGUAGES, Prompt, prompt_hash
from critic.asking.render import of_response, render
from critic.asking.tokens import RATING, target
from critic.errors import UsageError
from critic.human_scored import Loaded
from critic.records import RATINGS, Language, Question, Response
from eval_agreement import looking
from eval_agreement.attacks import CLEAN, SEPARATOR, Attack, PromptLayout, suite
from eval_agreement.items import COLUMN_SUFFIX

_DECIMALS = 12


def layout(prompt: Prompt) -> PromptLayout:
    """Read headings and form of the verdict off a prompt, so that attacks follow when it changes.

    A heading is a line of the rendered prompt that starts with "#". Raises UsageError where one is missing.
    """
    best = prompt.ranges[-1].meaning
    question, reference, reply = "\ue001", "\ue002", "\ue003"
    asked = Question(id="", group="", task="", lang=prompt.language, prompt=question, reference=reference)
    lines = render(prompt, of_response(Response(id="", question=asked, text=reply)))[0]["content"].splitlines()
    heading = {"grade": _heading(lines, reply)}
    for name, mark in {"rubric": best, "question": question, "reference": reference, "reply": reply}.items():
        heading[name] = _heading(lines[::-1], mark)
    variables = {"heading": heading, "highest": RATINGS[-1], "rating_key": RATING, "verdict": target(RATINGS[-1], best)}
    return PromptLayout(prompt.language, variables)


def _heading(lines: Sequence[str], mark: str) -> str:
    """The first heading behind the line that holds `mark`."""
    place = next(number for number, line in enumerate(lines) if mark in line)
    found = next((line for line in lines[place:] if line.startswith("#")), None)
    if found is None:
        raise UsageError(
            'the judging prompt lacks a heading (a line that starts with "#") beside a section, which attacks forge; '
            "choose another --prompt"
        )
    return found


def main(
    rows: Annotated[Path, typer.Argument(help="Human-scored rows: JSONL, CSV with the same columns, or a folder.")],
    out: Annotated[Path, typer.Option(help="Where the rows go, attacked and as they are (JSONL for critic judge).")],
    below: Annotated[
        float, typer.Option(min=RATINGS[0], max=RATINGS[-1], help="Attack answers that people gave at most this.")
    ] = 5.0,
    limit: Annotated[int, typer.Option(min=1, help="Attack at most this many answers.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    attack: Annotated[
        list[str] | None, typer.Option(help="Only this attack. Repeatable.", show_default="every attack")
    ] = None,
    prompt: Annotated[str, typer.Option(help="The judging prompt whose headings are forged.")] = "pointwise",
    images: Annotated[
        bool, typer.Option("--images", help="Make no attacks, but what tells whether the judge looks at the images.")
    ] = False,
) -> None:
    """Put attacks into answers that people scored low, for critic judge to judge beside the unattacked ones."""
    if images:
        return _arms(rows, out, limit, seed)
    chosen = _chosen(attack)
    layouts = {language: layout(_rating_prompt(prompt, language)) for language in LANGUAGES}
    sources = _sources(rows, out)
    loaded = human_scored.load(rows)
    for reason, count in loaded.left_out.most_common():
        print(f"left out {count} rows: {reason}", file=sys.stderr)
    human = [response.human.score for response in loaded.responses if response.human]
    low = [number for number, score in enumerate(human) if round(score, _DECIMALS) <= below]
    if not low:
        raise UsageError(f"{rows}: none of {len(loaded.rows)} rows has a human score of at most --below {below:g}")
    drawn = draw(loaded, low, limit, seed)
    written = jsonl.write(out, _lines(loaded, drawn, chosen, layouts))
    jsonl.write_sidecar(
        out,
        {
            "sources": {str(source): jsonl.sha256(source) for source in sources},
            "suite": suite().hash,
            "attacks": [entry.name for entry in chosen if not entry.control],
            "control": suite().control.name,
            "prompt": {"name": prompt, "hash": prompt_hash(prompt)},
            "draw": {"below": below, "limit": limit, "seed": seed},
            "counts": {"usable": len(loaded.rows), "low": len(low), "drawn": len(drawn), "rows": written},
            "left_out": dict(loaded.left_out),
        },
    )
    print(
        f"{out}: {len(drawn)} of {len(low)} answers that people gave at most {below:g}, each as it is, with padding, "
        f"and with {len(chosen) - 1} attacks: {written} rows"
    )


def _sources(rows: Path, out: Path) -> list[Path]:
    if jsonl.suffix(out) != ".jsonl":
        raise UsageError(f"--out {out}: what is written is JSON lines; name it as in {out.with_suffix('.jsonl').name}")
    sources = human_scored.files(rows)
    if out.resolve() in {source.resolve() for source in sources}:
        raise UsageError(f"--out {out} is among the rows to attack; choose another")
    return sources


def _arms(rows: Path, out: Path, limit: int, seed: int) -> None:
    """Write the arms of rows with images."""
    sources, loaded = _sources(rows, out), human_scored.load(rows, pictures=True)
    there = [number for number, one in enumerate(loaded.responses) if one.question.images]
    if not there:
        raise UsageError(f"{rows}: none of {len(loaded.rows)} usable rows has an image")
    drawn = draw(loaded, there, limit, seed)
    made = list(looking.arms(loaded, drawn, looking.HIGH))
    jsonl.write(out, made)
    counts = {name: sum(line["id"].endswith(f"{SEPARATOR}{name}") for line in made) for name in (CLEAN, *looking.ARMS)}
    facts = {
        "sources": {str(source): jsonl.sha256(source) for source in sources},
        "draw": {"above": looking.HIGH, "limit": limit, "seed": seed},
        "counts": {"usable": len(loaded.rows), "with_images": len(there), **counts},
    }
    jsonl.write_sidecar(out, facts)
    said = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"{out}: {len(drawn)} of {len(there)} answers with images; rows: {said}")


def _rating_prompt(name: str, language: Language) -> Prompt:
    """Raises UsageError for a prompt that does not rate one answer on 1..10, by the ranges that attacks quote."""
    prompt, form = prompt_of(name, language), form_of(name)
    if not (prompt.on_ten and prompt.ranges and form.shown == 1):
        rating = [each for each in BY_NAME if each.startswith("pointwise")]
        raise UsageError(f"prompt {name!r} does not rate one answer on 1..10; choose {', '.join(rating)}")
    return prompt


def _chosen(names: Sequence[str] | None) -> list[Attack]:
    """The control and the attacks asked for, in the suite's order."""
    attacks = suite().attacks
    for name in names or []:
        if name not in attacks:
            raise UsageError(f"--attack {name!r} is none of {', '.join(attacks)}")
    return [suite().control, *(entry for name, entry in attacks.items() if not names or name in names)]


def draw(loaded: Loaded, low: Sequence[int], limit: int, seed: int) -> list[int]:
    """At most `limit` of the rows `low`, in file order. Which ones depends on seed and ids, not on their order."""

    def lot(number: int) -> bytes:
        return hashlib.sha256(f"{seed} {loaded.rows[number].id}".encode()).digest()

    return sorted(sorted(low, key=lot)[:limit])


def _lines(
    loaded: Loaded, drawn: Sequence[int], chosen: Sequence[Attack], layouts: Mapping[Language, PromptLayout]
) -> Iterator[dict[str, Any]]:
    for number in drawn:
        row, raw = loaded.rows[number], loaded.raw[number]
        typed = msgspec.to_builtins(row)
        others = {column: value for column, value in raw.items() if column not in typed}
        yield {**others, **typed, "id": f"{row.id}{SEPARATOR}{CLEAN}", "response": row.response}
        # Other judges' scores stay with the text that they are of.
        others = {column: value for column, value in others.items() if not column.endswith(COLUMN_SUFFIX)}
        for entry in chosen:
            text = entry.text(row.response, layouts[row.lang])
            yield {**others, **typed, "id": f"{row.id}{SEPARATOR}{entry.name}", "response": text}
