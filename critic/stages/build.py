"""critic build: a benchmark of your own, from a folder of images to a frozen test.

critic build images/ --out runs/mine --sources sources.csv
critic build images/ --out runs/mine --sources sources.csv --plan multiverse --base-url http://127.0.0.1:8000/v1
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from critic import jsonl
from critic.backends import ATTEMPTS, TIMEOUT, Backend, Request
from critic.building import pairs, pictures
from critic.building.pictures import DroppedImage, ImageFile
from critic.images import Images
from critic.records import Language
from critic.stages import ask_rows, options
from critic.stages.ask_rows import AskRows, BuildRow
from critic.stages.run import RunOptions, listed

TOKENS = 4096
"""Longest reply: a conversation of four turns in full."""


class ImageRules(Struct, frozen=True, kw_only=True):
    """Which images are taken: those of at least `min_side` pixels, `licensed` ones only, of near-duplicates (`bits`)
    one; those whose every grade is `quality` or more; categories of fewer than `rare` images merged, and what is then
    still rare left out; `cap` of the rest, drawn by `seed`."""

    min_side: int
    licensed: bool
    bits: int
    quality: int
    rare: int
    cap: int
    seed: int


class Building:
    """A benchmark in the making, in the folder `out`. Every file is kept there, and what it says is not asked again."""

    def __init__(self, root: Path, out: Path, lang: Language, connect: Callable[[], Backend] | None, run: Any) -> None:
        self.root, self.out, self.lang = root, out, lang
        self._connect, self._run = connect, run
        self.images, self.dropped = list[ImageFile](), list[DroppedImage]()
        self.code = 0

    def drop(self, step: str, dropped: Sequence[DroppedImage]) -> None:
        """Leave images out, and say how many and why."""
        gone = {one.path for one in dropped}
        before, self.images = len(self.images), [one for one in self.images if one.path not in gone]
        self.dropped += dropped
        why = f" ({listed(Counter(one.reason for one in dropped))})" if dropped else ""
        share = f", {len(dropped) / before:.1%}" if before else ""
        print(f"{step}: {before} -> {len(self.images)} images; {len(dropped)} left out{share}{why}")
        jsonl.write(self.out / "dropped.jsonl", self.dropped)

    def ask(self, step: str, rows: Sequence[BuildRow]) -> Mapping[str, Any]:
        """The usable replies to a step by key; asked for where they are not in the step's file."""
        path = self.out / f"{step}.jsonl"
        if self._connect is None:
            raise NeedsModelError(step)
        if rows:
            run = RunOptions(out=path, **self._run["options"])
            stage = AskRows(run, self._connect(), step, rows, Images(self.root), self._run["request"])
            self.code = max(self.code, stage.run())
        return ask_rows.read(path, step, [row.key for row in rows]) if rows else {}

    def rows(self) -> list[BuildRow]:
        return [BuildRow(key=one.path, lang=self.lang, image=one.path) for one in self.images]


class NeedsModelError(Exception):
    """A step has to ask a model, and none is named."""


def choose_images(building: Building, rules: ImageRules, sources: Path | None) -> dict[str, Any]:
    """The images that the benchmark is made of, in `building`, and their categories by path. Raises NeedsModelError
    behind the steps that need none."""
    building.images = pictures.scan(building.root, building.out / "images.jsonl", pictures.sources(sources))
    building.drop("files", pictures.unusable(building.images, rules.min_side, rules.licensed))
    building.drop("duplicates", duplicates := pictures.duplicates(building.images, rules.bits))
    pairs.write(building.out / "near.html", building.root, duplicates, rules.bits)
    grades = building.ask("quality", building.rows())
    poor = []
    for one in building.images:
        said = grades.get(one.path)
        if said is None or min(msgspec.structs.astuple(said)) < rules.quality:
            reason = "not_graded" if said is None else "low_quality"
            poor.append(DroppedImage(path=one.path, step="quality", reason=reason))
    building.drop("quality", poor)
    said = building.ask("category", building.rows())
    lost = [one.path for one in building.images if one.path not in said]
    building.drop("category", [DroppedImage(path=path, step="category", reason="no_category") for path in lost])
    categories = pictures.merged({path: one.category.strip() for path, one in said.items()}, rules.rare)
    counts = Counter(categories.values())
    rare = {path for path, name in categories.items() if counts[name] < rules.rare}
    building.drop("rare", [DroppedImage(path=one, step="rare", reason="rare_category") for one in sorted(rare)])
    left = {path: name for path, name in categories.items() if path not in rare}
    taken = pictures.drawn(left, rules.cap, rules.seed)
    over = [DroppedImage(path=one, step="drawn", reason="not_drawn") for one in sorted(left.keys() - taken)]
    building.drop("drawn", over)
    kept = [
        {**msgspec.to_builtins(one), "category": left[one.path], "sub_category": said[one.path].sub_category}
        for one in building.images
    ]
    jsonl.write(building.out / "chosen.jsonl", kept)
    return {one["path"]: one for one in kept}


Folder = Annotated[Path, typer.Argument(help="The folder of images; those of its folders count as well.")]
Sources = Annotated[
    Path | None,
    typer.Option(
        help="Where images are from: a table with image (a path in the folder, or a folder), source, licence."
    ),
]
Near = Annotated[
    int,
    typer.Option(min=0, max=32, help="Near-duplicates: bits of 64 by which the perceptual hashes (pHash) may differ."),
]


def main(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="Folder for all that is made. Run again to go on.")],
    sources: Sources = None,
    licensed: Annotated[bool, typer.Option("--licensed", help="Only images whose licence the table says.")] = False,
    min_side: Annotated[int, typer.Option(min=1, help="Leave out images with a shorter side, in pixels.")] = 224,
    near: Near = pictures.NEAR,
    quality: Annotated[int, typer.Option(min=1, max=5, help="The least of a model's grades, 1 to 5, to stay.")] = 5,
    rare: Annotated[int, typer.Option(min=1, help="Merge categories of fewer images; leave out what is left.")] = 50,
    cap: Annotated[int, typer.Option(min=1, help="Images drawn, by category in proportion.")] = 1000,
    lang: Annotated[Language, typer.Option(help="In which language the model is asked, and writes.")] = "en",
    model: Annotated[
        str | None,
        typer.Option(help="A checkpoint folder (vLLM in this process); with --base-url the model to ask for."),
    ] = None,
    base_url: options.BaseUrl = None,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    max_tokens: Annotated[int, options.max_tokens(8)] = TOKENS,
    concurrency: Annotated[int | None, options.concurrency("Requests under way at once.")] = None,
    max_failed: options.MaxFailed = options.MAX_FAILED,
    retry_failed: Annotated[bool, options.retry_failed("Ask again what failed or was turned down before.")] = False,
    cache: options.CacheOf = None,
    attempts: options.Attempts = ATTEMPTS,
    timeout: options.Timeout = TIMEOUT,
    api_key: options.ApiKey = None,
) -> int:
    """Make a benchmark from images: hashes, duplicates, quality, categories, a drawn sample. Every step is a file in
    the folder --out; what is there is not made again."""
    endpoint = options.Endpoint(
        model=model, base_url=base_url, api_key=api_key, timeout=timeout, attempts=attempts, concurrency=concurrency,
        cache=cache, fresh=retry_failed,
    )  # fmt: skip
    asking = {
        "options": {"concurrency": concurrency, "max_failed": max_failed, "retry_failed": retry_failed},
        "request": Request(
            messages=[], max_tokens=max_tokens, temperature=temperature, seed=seed if temperature else None
        ),
    }
    connect = endpoint.open_one if model or base_url else None
    building = Building(folder, out, lang, connect, asking)
    rules = ImageRules(min_side=min_side, licensed=licensed, bits=near, quality=quality, rare=rare, cap=cap, seed=seed)
    try:
        choose_images(building, rules, sources)
    except NeedsModelError as step:
        print(f"{step} asks a model: give --base-url or --model, and run the same command again")
    return building.code
