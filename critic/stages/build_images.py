"""The part of `critic build` that chooses images."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from critic import jsonl
from critic.building import pairs, pictures
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
    building.images = pictures.scan(building.root, building.out / "images.jsonl", pictures.sources(sources))
    building.drop("files", pictures.unusable(building.images, rules.min_side, rules.licensed))
    building.drop("duplicates", duplicates := pictures.duplicates(building.images, rules.bits))
    pairs.write(building.out / "near.html", building.root, duplicates, rules.bits)
    if rules.known is not None:
        others = pictures.scan(rules.known, building.out / "known.jsonl", {})
        building.drop("known", pictures.known(building.images, others, rules.bits))
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
