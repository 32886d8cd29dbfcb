"""The part of `critic build` that chooses images."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from critic import jsonl
from critic.building import pictures
from critic.building.pictures import DroppedImage
from critic.stages.ask_rows import BenchmarkBuild


def choose_images(building: BenchmarkBuild, *, min_side: int, quality: int, rare: int, cap: int) -> dict[str, Any]:
    """The images that the benchmark is made of, in `building`, and their categories by path: those of at least
    `min_side` pixels, of near-duplicates one, those whose every grade is `quality` or more; categories of fewer than
    `rare` images merged, and what is then still rare left out; `cap` of the rest. Raises NeedsModelError behind the
    steps that need none."""
    building.images = pictures.scan(building.root, building.out / "images.jsonl")
    building.drop("files", pictures.unusable(building.root, building.images, min_side))
    building.drop("duplicates", pictures.duplicates(building.images))

    def leave_out(step: str, reasons: Mapping[str, str]) -> None:
        building.drop(step, [DroppedImage(path=path, step=step, reason=why) for path, why in sorted(reasons.items())])

    grades = building.ask("quality", building.rows())
    lowest = {path: min(msgspec.structs.astuple(grade)) for path, grade in grades.items()}
    poor = {path: "low_quality" for path, grade in lowest.items() if grade < quality}
    leave_out("quality", {image.path: "not_graded" for image in building.images if image.path not in grades} | poor)
    named = building.ask("category", building.rows())
    leave_out("category", {image.path: "no_category" for image in building.images if image.path not in named})
    categories = pictures.merge_rare({path: image.category.strip() for path, image in named.items()}, rare)
    counts = Counter(categories.values())
    left = {path: name for path, name in categories.items() if counts[name] >= rare}
    leave_out("rare", dict.fromkeys(categories.keys() - left.keys(), "rare_category"))
    leave_out("drawn", dict.fromkeys(left.keys() - pictures.draw_sample(left, cap), "not_drawn"))
    kept = [
        {**msgspec.to_builtins(image), "category": left[image.path], "sub_category": named[image.path].sub_category}
        for image in building.images
    ]
    jsonl.write(building.out / "chosen.jsonl", kept)
    return {image["path"]: image for image in kept}
