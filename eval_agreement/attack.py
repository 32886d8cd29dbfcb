"""critic attack: human-scored rows -> the same rows with prompt injections in their answers, for critic judge.

critic attack rows.jsonl --out attacked.jsonl
critic judge attacked.jsonl --out judged.jsonl
critic audit … --attacked judged.jsonl

`attacks.toml` holds the attacks. Each is put into answers that people scored low, beside harmless padding and the
answers as they are.
"""

import hashlib
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import jinja2
import msgspec
import typer
from msgspec import Struct

from critic import human_scored, jsonl
from critic.asking.forms import FORMS, form_of, prompt_of, target
from critic.asking.prompt import LANGUAGES, Prompt, prompt_hash
from critic.asking.rating import RATING
from critic.asking.render import of_response, render
from critic.errors import UsageError
from critic.human_scored import Loaded, Row
from critic.records import RATINGS, Language, Question, Response

SEPARATOR, CLEAN = "#", "clean"
"""The id of an attacked row is ORIGINAL#ATTACK, of the unattacked one ORIGINAL#clean. No attack's name holds
the separator, so the last one in an id is ours whatever the original id is like."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_DECIMALS = 12


def _tags(text: str) -> str:
    """ASCII as invisible Unicode tags (U+E0020..U+E007E); other characters go."""
    return "".join(chr(0xE0000 + ord(char)) for char in text if " " <= char <= "~")


def _selectors(text: str) -> str:
    """UTF-8 as invisible variation selectors, one a byte (U+FE00..U+FE0F, U+E0100..U+E01EF)."""
    return "".join(chr(0xFE00 + byte if byte < 16 else 0xE0100 + byte - 16) for byte in text.encode())


def _zero_width(text: str) -> str:
    """Text with a character without width behind every character, five kinds in turn."""
    return "".join(char + hidden for char, hidden in zip(text, cycle("\u200b\u200d\u2060\u200c\ufeff"), strict=False))


def _bidi(text: str) -> str:
    """Text backwards under a right-to-left override: displayed forwards, read backwards."""
    return f"\u202e{text[::-1]}\u202c"


def _full_width(text: str) -> str:
    """ASCII as full-width forms (U+FF01..U+FF5E)."""
    return text.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)})


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    for filter_ in (_tags, _selectors, _zero_width, _bidi, _full_width):
        made.filters[filter_.__name__.lstrip("_")] = filter_
    return made


class Attack(Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of `attacks.toml`: templates that put an answer beside what is to sway its judge."""

    name: str
    aim: str
    en: str
    zh: str
    control: bool = False

    @cached_property
    def _compiled(self) -> dict[Language, jinja2.Template]:
        environment = _environment()
        return {"en": environment.from_string(self.en), "zh": environment.from_string(self.zh)}

    def text(self, answer: str, scene: "Scene") -> str:
        """The attacked answer. It holds `answer` as it stands."""
        return self._compiled[scene.language].render(answer=answer, **scene.variables)


class Suite(Struct, frozen=True):
    """The attacks by name, in the file's order, the harmless control, and the hash of their content."""

    attacks: dict[str, Attack]
    control: Attack
    hash: str

    @property
    def entries(self) -> dict[str, Attack]:
        """Control and attacks by name: everything that an answer may be marked with, but CLEAN."""
        return {self.control.name: self.control, **self.attacks}


@cache
def suite() -> Suite:
    """The packaged attacks. `hash` is the first 16 hex digits of the SHA-256 of their canonical JSON.

    Raises ValueError for a name that is taken or cannot stand in an id, and without exactly one control.
    """
    content = tomllib.loads((files("eval_agreement") / "attacks.toml").read_text("utf-8"))
    entries = msgspec.convert(content["attacks"], list[Attack])
    names = [entry.name for entry in entries]
    bad = [name for name in names if not _NAME.fullmatch(name) or name == CLEAN or names.count(name) > 1]
    if bad:
        raise ValueError(f"attacks.toml: the name {bad[0]!r} is taken or not of small letters, digits and hyphens")
    (control,) = [entry for entry in entries if entry.control]
    attacks = {entry.name: entry for entry in entries if not entry.control}
    return Suite(attacks, control, hashlib.sha256(msgspec.json.encode(entries)).hexdigest()[:16])


class Scene(Struct, frozen=True):
    """What an attacker knows of a judging prompt: the variables of the attacks' templates."""

    language: Language
    variables: dict[str, Any]


def scene(prompt: Prompt) -> Scene:
    """Read headings and form of the verdict off a prompt, so that attacks follow when it changes.

    A heading is a line of the rendered prompt that starts with "#". Raises UsageError where one is missing.
    """
    best = prompt.ranges[-1].meaning
    question, reference, reply = "\ue001", "\ue002", "\ue003"
    asked = Question(id="", group="", task="", lang=prompt.language, prompt=question, reference=reference)
    lines = render(prompt, of_response(Response(id="", question=asked, text=reply)))[0]["content"].splitlines()
    heading = {
        "rubric": _heading(lines[::-1], best),
        "question": _heading(lines[::-1], question),
        "reference": _heading(lines[::-1], reference),
        "reply": _heading(lines[::-1], reply),
        "grade": _heading(lines, reply),
    }
    return Scene(
        prompt.language,
        {
            "heading": heading,
            "highest": RATINGS[-1],
            "rating_key": RATING,
            "verdict": target(RATINGS[-1], best),
        },
    )


def _heading(lines: Sequence[str], mark: str) -> str:
    """The first heading behind the line that holds `mark`."""
    place = next(number for number, line in enumerate(lines) if mark in line)
    found = next((line for line in lines[place:] if line.startswith("#")), None)
    if found is None:
        raise UsageError('the judging prompt lacks a heading (a line that starts with "#") beside a section')
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
) -> None:
    """Put attacks into answers that people scored low, for critic judge to judge beside the unattacked ones."""
    chosen = _chosen(attack)
    scenes = {language: scene(_rating_prompt(prompt, language)) for language in LANGUAGES}
    sources = human_scored.files(rows)
    if out.resolve() in {source.resolve() for source in sources}:
        raise UsageError(f"--out {out} is among the rows to attack; choose another")
    loaded = human_scored.load(rows)
    for reason, count in loaded.left_out.most_common():
        print(f"left out {count} rows: {reason}", file=sys.stderr)
    low = [number for number, score in enumerate(_human(loaded)) if score <= below]
    if not low:
        raise UsageError(f"{rows}: none of {len(loaded.rows)} rows has a human score of at most --below {below:g}")
    drawn = draw(loaded, low, limit, seed)
    written = jsonl.write(out, _lines(loaded, drawn, chosen, scenes))
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


def _rating_prompt(name: str, language: Language) -> Prompt:
    """Raises UsageError for a prompt that does not rate one answer on 1..10, by the ranges that attacks quote."""
    prompt, form = prompt_of(name, language), form_of(name)
    if not (prompt.on_ten and prompt.ranges and form.shown == 1):
        rating = [each for each in FORMS if each.startswith("pointwise")]
        raise UsageError(f"prompt {name!r} does not rate one answer on 1..10; choose {', '.join(rating)}")
    return prompt


def _chosen(names: Sequence[str] | None) -> list[Attack]:
    """The control and the attacks asked for, in the suite's order."""
    attacks = suite().attacks
    for name in names or []:
        if name not in attacks:
            raise UsageError(f"--attack {name!r} is none of {', '.join(attacks)}")
    return [suite().control, *(entry for name, entry in attacks.items() if not names or name in names)]


def _human(loaded: Loaded) -> list[float]:
    return [round(response.human.score, _DECIMALS) for response in loaded.responses if response.human]


def draw(loaded: Loaded, low: Sequence[int], limit: int, seed: int) -> list[int]:
    """At most `limit` of the rows `low`, in file order. Which ones depends on seed and ids, not on their order."""

    def lot(number: int) -> bytes:
        return hashlib.sha256(f"{seed} {loaded.rows[number].id}".encode()).digest()

    return sorted(sorted(low, key=lot)[:limit])


def _lines(
    loaded: Loaded, drawn: Sequence[int], chosen: Sequence[Attack], scenes: Mapping[Language, Scene]
) -> Iterator[dict[str, Any]]:
    for number in drawn:
        row, raw = loaded.rows[number], loaded.raw[number]
        yield _line(row, raw, CLEAN, row.response)
        for entry in chosen:
            yield _line(row, raw, entry.name, entry.text(row.response, scenes[row.lang]))


def _line(row: Row, raw: Mapping[str, Any], name: str, text: str) -> dict[str, Any]:
    """The row with another text. Other judges' scores stay with the text that they are of."""
    typed = msgspec.to_builtins(row)
    others = {
        column: value
        for column, value in raw.items()
        if column not in typed and (name == CLEAN or not column.endswith("_score_1_10"))
    }
    return {**others, **typed, "id": f"{row.id}{SEPARATOR}{name}", "response": text}
