"""critic build: a benchmark of your own, from a folder of images to a frozen test.

critic build images/ --out runs/mine
critic build images/ --out runs/mine --plan multiverse --base-url http://127.0.0.1:8000/v1
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from critic import jsonl
from critic.backends import Request
from critic.records import Language
from critic.stages import options
from critic.stages.ask_rows import BenchmarkBuild, NeedsModelError, RequestSource
from critic.stages.build_conversations import PLANS, build
from critic.stages.build_images import choose_images
from critic.stages.options import check

TOKENS = 4096
"""Longest reply: a conversation of four turns in full."""


@partial(options.takes_options, names=options.ONE_MODEL)
def main(
    folder: Annotated[Path, typer.Argument(help="The folder of images; those of its folders count as well.")],
    out: Annotated[Path, typer.Option(help="Folder for all that is made. Run again to go on.")],
    endpoint: options.Endpoint,
    plan: Annotated[
        str | None,
        typer.Option(help=f"What is made: {', '.join(PLANS)}; in that benchmark's form.", show_default="images alone"),
    ] = None,
    min_side: Annotated[int, typer.Option(min=1, help="Leave out images with a shorter side, in pixels.")] = 224,
    quality: Annotated[int, typer.Option(min=1, max=5, help="The least of a model's grades, 1 to 5, to stay.")] = 5,
    rare: Annotated[int, typer.Option(min=1, help="Merge categories of fewer images; leave out what is left.")] = 50,
    cap: Annotated[int, typer.Option(min=1, help="Images drawn, by category in proportion.")] = 1000,
    lang: Annotated[Language, typer.Option(help="In which language the model is asked, and writes.")] = "en",
    blind: Annotated[
        float, typer.Option(min=0, help="Leave out what a model gets as good without the image, 0 to 1; above 1: not.")
    ] = 0.7,
    second: Annotated[str | None, typer.Option(metavar="MODEL", help="Another, for checklists of both.")] = None,
    unreviewed: Annotated[bool, typer.Option("--unreviewed", help="Ask nobody; frozen.json says so.")] = False,
) -> int:
    """Make a benchmark from images: hashes, duplicates, quality, categories, a drawn sample; then by a --plan
    conversations, references, checklists, machine checks, a sheet for people, and a frozen test with its card. Every
    step is a file in the folder --out; what is there is not made again."""
    check(
        (plan is None or plan in PLANS, f"--plan {plan}: unknown; choose {', '.join(PLANS)}"),
        (
            not second or (plan and PLANS[plan].checklists),
            f"--second {second}: checklists are made by --plan multiverse",
        ),
        (not out.resolve().is_relative_to(folder.resolve()), f"--out {out}: lies in the folder of images"),
    )
    settings = {name: getattr(endpoint, name) for name in options.ONE_MODEL}
    source = RequestSource(
        connect=endpoint.open_one if endpoint.model or endpoint.base_url else None,
        second=(lambda: replace(endpoint, model=None, base_url=None).open("--second", [second])[0]) if second else None,
        request=Request(messages=[], max_tokens=TOKENS, temperature=0.0),
        options={name: settings[name] for name in ("concurrency", "max_failed", "retry_failed")},
    )
    building = BenchmarkBuild(folder, out, lang, source)
    try:
        with jsonl.lock_folder(out):
            chosen = choose_images(building, min_side=min_side, quality=quality, rare=rare, cap=cap)
            if plan is not None:
                build(building, chosen, plan, blind=blind, unreviewed=unreviewed, endpoint=settings)
    except NeedsModelError as step:
        print(f"{step} asks a model: give --base-url or --model, and run the same command again")
    return building.code
