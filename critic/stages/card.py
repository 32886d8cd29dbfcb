"""critic card: what a benchmark is made of, as tables and pictures.

critic card questions.jsonl --benchmark alignmmbench --out runs/alignmmbench
"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from critic import benchmarks, jsonl
from critic.building import card, pictures
from critic.page import page
from critic.page.blocks import as_text
from critic.records import Conversation
from critic.stages import options


def write(
    out: Path, name: str, file: Path, found: list[Conversation], root: Path, counted: str, bits: int
) -> tuple[card.CardFacts, str]:
    """Write card.md, card.html and card.json into a folder; what they say, and as text."""
    tokens, title = card.tokenizer(counted), benchmarks.load(name).title
    facts, images = card.facts(title, found, counted, tokens), card.image_facts(found, root, bits)
    turns = [turn for one in found for turn in one.turns]
    lengths = {
        "questions": [len(tokens(turn.prompt)) for turn in turns],
        "answers": [len(tokens(turn.reference)) for turn in turns if turn.reference],
    }
    sections = card.sections(facts, images, lengths)
    title, about = f"Data card: {title}", f"{facts.conversations} conversations, {facts.images} images"
    origin = {file.name: {"benchmark": name, "sha256": jsonl.sha256(file), "tokenizer": counted}}
    page.write(out / "card.html", title, about, sections, origin)
    said = {"title": title, "about": about, "sections": sections}
    jsonl.write_text(out / "card.md", page.render("critic.page", "sections.md.jinja", said))
    jsonl.write_json(out / "card.json", {**msgspec.to_builtins(facts), "image_files": msgspec.to_builtins(images)})
    return facts, as_text(sections[:1])


def main(
    file: Annotated[Path, typer.Argument(help="A benchmark's file: a published one, or one of critic build.")],
    benchmark: Annotated[str, typer.Option(help=f"Which one: {', '.join(benchmarks.BENCHMARKS)}.")],
    out: Annotated[Path, typer.Option(help="Folder for card.md, card.html and card.json.")],
    tokenizer: Annotated[
        str, typer.Option(help="Lengths in: words, characters, or a folder's tokenizer.json.")
    ] = "words",
    data_root: options.DataRoot = None,
    near: Annotated[int, typer.Option(min=0, max=32, help="Bits by which near-duplicate images differ.")] = (
        pictures.NEAR
    ),
) -> None:
    """The data card of a benchmark: counts, turns, lengths, lexical diversity, distributions, near-duplicates left."""
    found = benchmarks.read(benchmark, file)
    _, text = write(out, benchmark, file, found, data_root or file.parent, tokenizer, near)
    print(text)
    print(f"{out / 'card.html'}, card.md, card.json")
