"""Choose the images of a benchmark: the first part of `critic build`."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from critic import jsonl
from critic.building import pictures
from critic.building.pictures import DroppedImage
from critic.stages.ask_rows import BenchmarkBuild


def choose_images(building: BenchmarkBuild, *, min_side: int, quality: int, rare: int, cap: int) -> dict[str, Any]:
    """Choose the images of a benchmark; return, by path, the fields of ImageFile, `category` and `sub_category`.

    `min_side`: drop images with a shorter side, in pixels. Near-duplicates are dropped, too.
    `quality`: drop images if one of the model's grades (1..5) is lower.
    `rare`: merge categories with fewer images into one, and drop that one if it is still smaller.
    `cap`: sample at most this many of the remaining images.

    Raises NeedsModelError at the first step that needs a model if the user names none.
    """
    building.images = pictures.scan(building.root, building.out / "images.jsonl")
    building.drop("files", pictures.find_unusable(building.root, building.images, min_side))
    building.drop("duplicates", pictures.find_duplicates(building.images))

    def leave_out(step: str, reasons: Mapping[str, str]) -> None:
        """Drop images in a step; `reasons` maps their paths to the reasons."""
        building.drop(step, [DroppedImage(path=path, step=step, reason=why) for path, why in sorted(reasons.items())])

    grades = building.ask("quality", building.rows())
    # A failed call is no grade: the image goes under a name of its own, and --retry-failed brings it back.
    reasons = {image.path: "not_graded" for image in building.images if image.path not in grades}
    reasons |= {path: "low_quality" for path, grade in grades.items() if min(msgspec.structs.astuple(grade)) < quality}
    leave_out("quality", reasons)
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
