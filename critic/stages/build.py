"""critic build: build a benchmark of your own, from a folder of images to a frozen test.

critic build images/ --out runs/mine
critic build images/ --out runs/mine --plan multiverse --base-url http://127.0.0.1:8000/v1
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from critic import jsonl
from critic.building import pictures
from critic.building.pictures import DroppedImage
from critic.errors import UsageError
from critic.records import Language
from critic.stages import options
from critic.stages.build_conversations import PLANS, BenchmarkBuild, NeedsModelError, build


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


@partial(options.takes_options, names=options.ONE_MODEL)
def main(
    folder: Annotated[Path, typer.Argument(help="Folder of images; its subfolders count as well.")],
    out: Annotated[Path, typer.Option(help="Output folder; rerun the same command to resume.")],
    endpoint: options.Endpoint,
    plan: Annotated[
        str | None,
        typer.Option(help=f"Benchmark to build, in its file format: {', '.join(PLANS)}.", show_default="images alone"),
    ] = None,
    min_side: Annotated[int, typer.Option(min=1, help="Leave out images with a shorter side, in pixels.")] = 224,
    quality: Annotated[int, typer.Option(min=1, max=5, help="Lowest grade, 1 to 5, that an image may have.")] = 5,
    rare: Annotated[int, typer.Option(min=1, help="Merge rarer categories; drop the merged one if still rarer.")] = 50,
    cap: Annotated[int, typer.Option(min=1, help="Most images to sample, from each category in proportion.")] = 1000,
    lang: Annotated[Language, typer.Option(help="Language of the prompts and of the conversations.")] = "en",
    blind: Annotated[
        float, typer.Option(min=0, help="Leave out conversations that score this or more without the image, 0 to 1.")
    ] = 0.7,
    second: Annotated[str | None, typer.Option(metavar="MODEL", help="Second model for checklists.")] = None,
    unreviewed: Annotated[bool, typer.Option("--unreviewed", help="Skip the review by people.")] = False,
) -> int:
    """Build a benchmark from a folder of images.

    Without --plan, only choose images: remove near-duplicates and poor images, assign categories, draw a sample. With
    --plan, also generate conversations, references and checklists, check them, write a review sheet for people, and
    freeze the test with its data card. Every step writes a file in the folder --out; a rerun repeats no step.
    """
    if plan is not None and plan not in PLANS:
        raise UsageError(f"--plan {plan}: unknown; choose {', '.join(PLANS)}")
    if second and not (plan and PLANS[plan].checklists):
        raise UsageError(f"--second {second}: checklists are made by --plan multiverse")
    # What is written there would be taken for images on a rerun.
    if out.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--out {out}: lies in the folder of images")
    building = BenchmarkBuild(folder, out, lang, endpoint, second)
    try:
        with jsonl.lock_folder(out):
            chosen = choose_images(building, min_side=min_side, quality=quality, rare=rare, cap=cap)
            if plan is not None:
                build(building, chosen, plan, blind=blind, unreviewed=unreviewed)
    # The steps before it need no model, and are done.
    except NeedsModelError as step:
        print(f"{step} asks a model: give --base-url or --model, and run the same command again")
    return building.code
