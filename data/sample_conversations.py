"""python data/sample_conversations.py --out data/samples

Write small complete conversations of our own in the published format of every benchmark, each in a folder that is its
own data root: `convbench/ConvBench.csv`, `multiverse/conversations.jsonl`, `visitbench/visit_bench.csv`,
`alignmmbench/metadata.jsonl`, and their drawings under `images/`. Words and drawings: `sample_conversations.toml`.
"""

import csv
import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image, ImageDraw, ImageFont

from critic.benchmarks import convbench
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.cli import run_program

SIZE = (256, 192)


Sample = dict[str, Any]
"""A sample as it stands in the TOML file."""


def draw(shapes: str) -> Image.Image:
    """The picture that a text of shapes, one a line, describes."""
    picture = Image.new("RGB", SIZE, "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default()
    for line in shapes.strip().splitlines():
        kind, rest = line.split(maxsplit=1)
        if kind == "text":
            left, top, words = rest.split(maxsplit=2)
            pen.text((int(left), int(top)), words, fill="black", font=font)
            continue
        *corners, colour = rest.split()
        box = [int(corner) for corner in corners]
        if kind == "line":
            pen.line(box, fill=colour, width=3)
        else:
            {"rectangle": pen.rectangle, "ellipse": pen.ellipse}[kind](box, fill=colour)
    return picture


def image(drawing: str) -> str:
    return f"images/{drawing}.png"


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


ASPECTS = (("Correctness", "Main Claim"), ("Completeness", "Second Detail"), ("Clarity", "Brevity"))
"""What the items of a checklist are about, in their order."""


def convbench_row(number: int, one: Sample) -> dict[str, Any]:
    return {
        "ID": number,
        convbench.IMAGE: image(one["drawing"]),
        convbench.CAPTION: one["caption"],
        **dict(zip(convbench.INSTRUCTIONS, one["ask"], strict=True)),
        **dict(zip(convbench.TASKS, one["tasks"], strict=True)),
        **dict(zip(convbench.REFERENCES, one["references"], strict=True)),
        convbench.FOCUS: one["focus"],
        "lang": one["lang"],
    }


def multiverse_row(number: int, one: Sample) -> dict[str, Any]:
    spoken = []
    for question, reference, checklist in one["turns"]:
        items = [
            {"question": item, "main_criteria": main, "sub_criteria": sub}
            for item, (main, sub) in zip(checklist, ASPECTS, strict=False)
        ]
        spoken.append({"speaker": "user", "utterance": question, "checklist": items})
        spoken.append({"speaker": "assistant", "utterance": reference, "checklist": []})
    return {
        "index": f"sample-{number}",
        "image": image(one["drawing"]),
        "conversation": spoken,
        "main_goal_category": one["goal"],
        "main_task_category": one["task"],
        "image_main_category": one["domain"],
        "lang": one["lang"],
    }


def visitbench_row(one: Sample) -> dict[str, Any]:
    correct = one.get("correct", True)
    return {
        "instruction_category": one["category"],
        "images": json.dumps([image(drawing) for drawing in one["drawings"]]),
        "is_multiple_images": len(one["drawings"]) > 1,
        "instruction": one["ask"],
        "gpt4_prediction": one["reference"],
        "images_dense_captions": json.dumps(one["captions"], ensure_ascii=False),
        "human_ratings_gpt4_correct": correct,
        "human_ratings_problem_in_caption": one.get("caption_problem", False),
        "human_ratings_problem_in_gpt4": not correct,
        "lang": one["lang"],
    }


def alignmmbench_rows(one: Sample) -> list[dict[str, Any]]:
    return [
        {
            "question_id": f"{one['seed']}-{number}",
            "image_path": image(one["drawing"]),
            "history": one.get("history", []),
            "prompt": prompt,
            "ref_answer": one["reference"],
            "task": one["task"],
            "category": CATEGORY_OF[one["task"]],
        }
        for number, prompt in enumerate(one["ask"])
    ]


def main(out: Annotated[Path, typer.Option(help="The folder to write the four benchmarks into.")]) -> None:
    """Write the samples of every benchmark."""
    samples = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    drawings = samples.pop("drawings")
    for benchmark, its in samples.items():
        (out / benchmark / "images").mkdir(parents=True, exist_ok=True)
        for name in {name for one in its for name in one.get("drawings", [one.get("drawing")])}:
            draw(drawings[name]).quantize(64).save(out / benchmark / image(name), optimize=True)
    rows = [convbench_row(number, one) for number, one in enumerate(samples["convbench"], 1)]
    write_csv(out / "convbench" / "ConvBench.csv", rows)
    rows = [multiverse_row(number, one) for number, one in enumerate(samples["multiverse"], 1)]
    write_jsonl(out / "multiverse" / "conversations.jsonl", rows)
    write_csv(out / "visitbench" / "visit_bench.csv", [visitbench_row(one) for one in samples["visitbench"]])
    rows = [row for one in samples["alignmmbench"] for row in alignmmbench_rows(one)]
    write_jsonl(out / "alignmmbench" / "metadata.jsonl", rows)


if __name__ == "__main__":
    run_program(main)
