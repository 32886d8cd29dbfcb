"""The part of `critic build` that chooses images."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from critic import jsonl
from critic.building import pictures
from critic.building.pictures import DroppedImage
from critic.stages.ask_rows import Building


class ImageRules(Struct, frozen=True, kw_only=True):
    """Which images are taken: those of at least `min_side` pixels, `licensed` ones only, of near-duplicates (`bits`)
    one; those whose every grade is `quality` or more; categories of fewer than `rare` images merged, and what is then
    still rare left out; `cap` of the rest, drawn by `seed`. None that is in the folder `known`, or near one of it."""

    min_side: int
    licensed: bool
    bits: int
    quality: int
    rare: int
    cap: int
    seed: int
    known: Path | None = None


def choose_images(building: Building, rules: ImageRules, sources: Path | None) -> dict[str, Any]:
    """The images that the benchmark is made of, in `building`, and their categories by path. Raises NeedsModelError
    behind the steps that need none."""
    origins = pictures.sources(sources)
    building.images = pictures.scan(building.root, building.out / "images.jsonl", origins)
    if unused := pictures.unused(origins, (image.path for image in building.images)):
        print(
            f"{sources}: {len(unused)} of {len(origins)} lines name nothing below {building.root}, such as {unused[0]}"
        )
    building.drop("files", pictures.unusable(building.root, building.images, rules.min_side, rules.licensed))
    building.drop("duplicates", pictures.duplicates(building.images, rules.bits))
    if rules.known is not None:
        others = pictures.scan(rules.known, building.out / "known.jsonl", {})
        building.drop("known", pictures.known(building.images, others, rules.bits))

    def leave_out(step: str, reasons: Mapping[str, str]) -> None:
        building.drop(step, [DroppedImage(path=path, step=step, reason=why) for path, why in sorted(reasons.items())])

    grades = building.ask("quality", building.rows())
    lowest = {path: min(msgspec.structs.astuple(grade)) for path, grade in grades.items()}
    poor = {path: "low_quality" for path, grade in lowest.items() if grade < rules.quality}
    leave_out("quality", {image.path: "not_graded" for image in building.images if image.path not in grades} | poor)
    named = building.ask("category", building.rows())
    leave_out("category", {image.path: "no_category" for image in building.images if image.path not in named})
    categories = pictures.merged({path: image.category.strip() for path, image in named.items()}, rules.rare)
    counts = Counter(categories.values())
    left = {path: name for path, name in categories.items() if counts[name] >= rules.rare}
    leave_out("rare", dict.fromkeys(categories.keys() - left.keys(), "rare_category"))
    leave_out("drawn", dict.fromkeys(left.keys() - pictures.drawn(left, rules.cap, rules.seed), "not_drawn"))
    kept = [
        {**msgspec.to_builtins(image), "category": left[image.path], "sub_category": named[image.path].sub_category}
        for image in building.images
    ]
    jsonl.write(building.out / "chosen.jsonl", kept)
    return {image["path"]: image for image in kept}
