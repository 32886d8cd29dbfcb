"""A benchmark built from drawn images with a scripted model: what `critic build` finds of planted faults, in a minute.

    python data/build_demo.py --out runs/build-demo

Sixty images, among them copies, near copies, blurred, torn and tiny ones; conversations of which some are in the wrong
language, go round in circles, need no image or say what another says; a checklist item that the reference fails. The
model is a web server in this process that answers by rules; two reviewers fill in their sheet by rules as well.
"""

import base64
import csv
import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer
from drawing import COLOURS, SHAPES, Canvas
from msgspec import Struct
from PIL import Image, ImageFilter

from critic.building.pictures import NEAR, drawn, perceptual_hash
from critic.cli import run_program
from critic.stages.demo import done, run, script, step

KINDS = {"two": (2, 14), "three": (3, 10), "four": (4, 6), "five": (5, 6), "seven": (7, 2)}
"""Kind of drawing -> how many shapes are in it, and how many are drawn that nothing is wrong with."""

COPIES, NEAR_COPIES, BLURRED, TORN, TINY = 6, 6, 5, 3, 2

RARE, CAP = 4, 17
"""Two of seven shapes are a rare category; of the other 36 images as many are taken."""

FAULTS = (
    "wrong_language",
    "degenerate",
    "solved_blind",
    "repeats_another",
    "says_much_of_another",
    "failing_item",
    "unnatural",
)
"""One drawn image each; the others are sound. Two further ones are what is repeated, and what is said much of."""

STARTS, ENDS = ("ka", "mo", "ti", "ru", "se", "la", "ne", "po"), ("lan", "mir", "dos", "tek", "ven", "rop")

WORDS = [start + end for start in STARTS for end in ENDS]
"""What is talked about: words that no two conversations put alike."""

QUESTION = "Which of {} and {} lies nearer to the {}, and why would {} matter there?"


class DrawnImage(Struct):
    """A drawn image; `fault` is what is wrong with the conversation that the model makes of it."""

    name: str
    kind: str
    poor: bool = False
    fault: str | None = None
    partner: str | None = None


def _picture(shapes: int, seed: str) -> Image.Image:
    """So many shapes in any of the nine cells."""
    canvas = Canvas(random.Random(seed))
    for cell in canvas.random.sample(range(9), shapes):
        canvas.shape(cell, canvas.random.choice(SHAPES), canvas.random.choice(sorted(COLOURS)))
    return canvas.image.resize((240, 240))


def images(folder: Path) -> list[DrawnImage]:
    """Draw the images into a folder. No two of those that nothing is wrong with look alike."""
    folder.mkdir(parents=True, exist_ok=True)
    scenes, hashes, number = list[DrawnImage](), list[int](), 0
    for kind, (shapes, count) in {**KINDS, "blurred": (3, BLURRED)}.items():
        for place in range(count):
            while True:
                number += 1
                image = _picture(shapes, str(number))
                image = image.filter(ImageFilter.GaussianBlur(6)) if kind == "blurred" else image
                value = int(perceptual_hash(image), 16)
                if all((value ^ one).bit_count() > NEAR for one in hashes):
                    break
            hashes.append(value)
            scenes.append(DrawnImage(f"{kind}-{place:02}.png", kind, poor=kind == "blurred"))
            image.save(folder / scenes[-1].name)
    for place, scene in enumerate(scenes[: COPIES + NEAR_COPIES]):
        if place < COPIES:
            (folder / f"z-same-{place:02}.png").write_bytes((folder / scene.name).read_bytes())
        else:
            with Image.open(folder / scene.name) as plain:
                plain.resize((200, 200)).save(folder / f"z-similar-{place:02}.jpg", quality=90)
    whole = (folder / scenes[0].name).read_bytes()
    for place in range(TORN):
        (folder / f"torn-{place}.png").write_bytes(whole[: len(whole) // (place + 2)])
    for place in range(TINY):
        _picture(3, f"tiny {place}").resize((30, 30)).save(folder / f"tiny-{place}.png")
    return scenes


def plant(scenes: list[DrawnImage], names: list[str]) -> None:
    """Give the conversations about some of the drawn images a fault each, the last of them first."""
    by_name = {scene.name: scene for scene in scenes}
    for fault, name in zip(FAULTS, reversed(names), strict=False):
        by_name[name].fault = fault
    repeated, much = (next(one for one in scenes if one.fault == fault) for fault in FAULTS[3:5])
    repeated.partner, much.partner = names[0], names[1]


def _talk(name: str) -> list[dict[str, str]]:
    """Four questions and answers of words drawn by the image's name."""
    chance = random.Random(name)
    turns = []
    for number in range(4):
        asked = QUESTION.format(*chance.sample(WORDS, 4)) + " And then?" * number
        turns.append({"question": asked, "answer": "It is " + " ".join(chance.sample(WORDS, 12 + 4 * number)) + "."})
    return turns


def talk(scene: DrawnImage) -> list[dict[str, str]]:
    """The conversation about an image, with its fault."""
    turns = _talk(scene.partner or scene.name)
    if scene.fault == "says_much_of_another":
        turns[3:] = _talk(scene.name)[3:]
    if scene.fault == "wrong_language":
        turns[2]["answer"] = "图里有三个红色的圆形和一个蓝色的方块。"
    if scene.fault == "degenerate":
        turns[1]["answer"] = "the red circle " * 12
    return turns


class ScriptedModel:
    """A web server that answers each step of `critic build` by rules. It knows an image by its bytes, and which
    conversation a question is of by its words; `calls` counts what it was asked."""

    def __init__(self, folder: Path, scenes: list[DrawnImage]) -> None:
        self.calls = 0
        self._by_bytes = {hashlib.sha256((folder / one.name).read_bytes()).hexdigest(): one for one in scenes}
        self._scenes = scenes

    def reply(self, body: dict[str, Any]) -> str:
        self.calls += 1
        content = body["messages"][-1]["content"]
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        shown = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        if schema is None:
            return self._without_image(text)
        if not shown:
            return self._judged(text, schema)
        data = base64.b64decode(shown[0].partition(",")[2])
        scene = self._by_bytes.get(hashlib.sha256(data).hexdigest(), DrawnImage("copy", "copy"))
        asked = next(name for name in schema["$defs"] if name in STEPS)
        return json.dumps(STEPS[asked](scene, text))

    def _without_image(self, question: str) -> str:
        """The answer to a question without its image: only the one that needs none is known."""
        blind = [turn for scene in self._scenes if scene.fault == "solved_blind" for turn in talk(scene)]
        answers = {turn["question"]: turn["answer"] for turn in blind}
        return answers.get(question.strip(), "I cannot see the picture.")

    def _judged(self, text: str, schema: dict[str, Any]) -> str:
        reply = text.rpartition("# Reply")[2]
        return json.dumps(dict.fromkeys(schema["properties"], "no" if "cannot see" in reply else "yes"))


def _checklist(scene: DrawnImage, text: str) -> dict[str, Any]:
    answer = text.partition("# Best answer\n> ")[2].split("\n")[0]
    named = [word.strip(".") for word in answer.split()[2:5]]
    items = [{"question": f"Does it name the {word}?", "main": "Factual Correctness", "sub": word} for word in named]
    if scene.fault == "failing_item" and "# Earlier" not in text:
        items.append({"question": "Does it name a unicorn?", "main": "Perceptual Understanding", "sub": "animals"})
    return {"items": items}


def _held(_: DrawnImage, text: str) -> dict[str, Any]:
    listed = [line for line in text.partition("# List")[2].split("\n") if line.startswith("> ")]
    return {"answers": ["no" if "unicorn" in line else "yes" for line in listed]}


STEPS: dict[str, Callable[[DrawnImage, str], dict[str, Any]]] = {
    "Quality": lambda scene, _: dict.fromkeys(("clarity", "resolution", "plausibility"), 2 if scene.poor else 5),
    "Category": lambda scene, _: {"category": f"Drawings of {scene.kind} shapes", "sub_category": scene.kind},
    "Persona": lambda scene, _: {
        "character": f"Somebody who looks at {scene.name}",
        "scenario": "They sort drawings.",
        "goal": "Analysis" if scene.kind == "three" else "Verification",
        "sub_goal": "Sorting",
    },
    "Talk": lambda scene, _: {"task": "Reasoning", "sub_task": scene.kind, "turns": talk(scene)},
    "Checklist": _checklist,
    "HeldItems": _held,
}
"""The reply's name in its schema -> what the model says."""


@contextmanager
def served(model: ScriptedModel) -> Iterator[str]:
    """The model behind an OpenAI-compatible URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # head and content in one packet: two would wait for each other

        def _send(self, value: dict[str, Any]) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self._send({"data": [{"id": "scripted", "max_model_len": 100_000}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = {"role": "assistant", "content": model.reply(body)}
            self._send({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def words(folder: Path, out: Path, url: str) -> list[str]:
    """The command behind `critic`."""
    options = {"plan": "multiverse", "base-url": url, "min-side": 100, "rare": RARE, "cap": CAP, "concurrency": 1}
    return ["build", str(folder), "--out", str(out), *(f"--{name}={said}" for name, said in options.items())]


def prepare(folder: Path) -> list[DrawnImage]:
    """Draw the images and plant the faults, which needs to know what is drawn of them."""
    scenes = images(folder)
    sound = {one.name: f"Drawings of {one.kind} shapes" for one in scenes if not one.poor and one.kind != "seven"}
    plant(scenes, sorted(drawn(sound, CAP)))
    return scenes


def fill_in(sheet: Path, unnatural: str | None) -> None:
    """What the reviewers say: all is well, but one conversation does not flow, and on one they differ."""
    with sheet.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    doubtful = min(row["image"] for row in rows if row["image"] != unnatural)
    for row in rows:
        row |= {"natural": "no" if row["image"] == unnatural else "yes", "correct": "yes", "needs_image": "yes"}
        if row["image"] == doubtful and row["reviewer"] == "2":
            row["correct"] = "no"
    with sheet.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("runs/build-demo"),
) -> None:
    """Sixty drawn images to a frozen benchmark of twelve conversations. Run again, it goes on where it stopped."""
    start, critic, made = time.monotonic(), script("critic"), out / "bench"
    step("1/4", "sixty drawn images, two dozen of them with a fault", start)
    scenes = prepare(out / "images")
    with served(ScriptedModel(out / "images", scenes)) as url:
        step("2/4", "build: images, conversations, checklists, checks", start)
        run([critic, *words(out / "images", made, url)])
        step("3/4", "two reviewers, and a third where they differ", start)
        unnatural = next(one.name for one in scenes if one.fault == "unnatural")
        for _ in range(2):
            fill_in(made / "review/sheet.csv", unnatural)
            run([critic, *words(out / "images", made, url)])
    step("4/4", "the card, of the frozen files", start)
    frozen = made / "benchmark"
    run([critic, "describe", str(frozen / "benchmark.jsonl"), "--benchmark", "multiverse", "--out", str(frozen)])
    done(out, "bench/benchmark/card.html", start)


if __name__ == "__main__":
    run_program(main)
