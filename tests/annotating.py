"""Rows to label, a page in this process, and a server in another that can be killed."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from conftest import ROOT, free_port, read_jsonl, run, write_jsonl
from lxml.html import document_fromstring
from starlette.testclient import TestClient

from critic.images import Images
from critic.records import Conversation, ConversationTurn, ModelTurn, Sampling
from eval_agreement.annotate.schemes import SCHEMES
from eval_agreement.annotate.server import Annotation
from eval_agreement.annotate.store import Store

CHECKLIST = ["Does it name the number?", "Does it name the colour?"]
CRITERIA = {"clarity": "Is it easy to follow?"}


def row(number: int, **changes: Any) -> dict[str, Any]:
    """Two answers to each question, by two models."""
    question = f"How many apples lie on table {number // 2}?"
    fields = {"id": f"row-{number}", "task": "Counting", "lang": "en", "question": question, "group": f"g{number // 2}"}
    fields |= {
        "reference": f"There are {number // 2 % 7 + 2} apples.",
        "response": f"I count {number % 5 + 2} of them.",
    }
    return fields | {"system": ["alpha", "beta"][number % 2], "checklist": CHECKLIST, "criteria": CRITERIA} | changes


def rows_file(folder: Path, count: int = 12, **changes: Any) -> Path:
    return write_jsonl(folder / "rows.jsonl", [row(number, **changes) for number in range(count)])


def planned(folder: Path, *options: object, rows: Path | None = None) -> Store:
    """A database with its plan: --export leaves without serving, and complains that nothing is labelled."""
    db = folder / "labels.sqlite"
    run("critic", "annotate", rows or rows_file(folder), "--db", db, *options, "--export", folder / "nothing.jsonl")
    store = Store.find(db)
    assert store is not None
    return store


def page_of(store: Store, root: Path | None = None) -> TestClient:
    images = None if root is None else Images(root)
    return TestClient(Annotation(store, images).app(["testserver"]), follow_redirects=False)


class Fields:
    """A page's form as a browser would send it, and all that is text."""

    def __init__(self, html: str) -> None:
        page = document_fromstring(html)
        self.text, self.tags = page.text_content(), [(node.tag, dict(node.attrib)) for node in page.iter("*")]
        self.hidden = {node.get("name"): node.get("value") for node in page.xpath("//input[@type='hidden']")}
        self.choices: dict[str, list[str]] = {}
        for node in page.xpath("//input[@type='radio'] | //textarea[starts-with(@name, 'choice')]"):
            self.choices.setdefault(node.get("name"), []).append(node.get("value", "in words"))


def fields(client: Any, rater: str, **query: object) -> Fields:
    reply = client.get("/", params={"rater": rater, **query})
    assert reply.status_code == 200, reply.text
    return Fields(reply.text)


def label(client: Any, rater: str, form: Fields, choose: Any = lambda name, values: values[0], **more: str) -> Any:
    said = {name: choose(name, values) for name, values in form.choices.items()}
    body = {**form.hidden, **said, "seconds": "4.2", **more}
    return client.post("/label", params={"rater": rater}, data=body)


def label_all(client: Any, rater: str, choose: Any = lambda name, values: values[0]) -> int:
    count = 0
    while (form := fields(client, rater)).hidden:
        assert label(client, rater, form, choose).status_code == 200
        count += 1
    return count


def exported(store: Store, name: str = "labels.jsonl") -> Path:
    path = store.path.with_name(name)
    run("critic", "annotate", "--db", store.path, "--export", path, code=0)
    return path


def send(store: Store, form: str, folder: Path) -> None:
    run("critic", "annotate", "--db", store.path, "--to", form, "--export", folder, code=0)


def taken(store: Store, path: Path) -> str:
    """Import labels, and return what was printed."""
    return run("critic", "annotate", "--db", store.path, "--import", path, code=0).stdout


def by_rater(store: Store, choose: Any) -> None:
    page = page_of(store)
    for rater in store.counts():
        label_all(page, rater, lambda name, values, rater=rater: choose(rater, name, values))


@contextmanager
def forked(db: Path, port: int | None = None) -> Iterator[tuple[int, str]]:
    """The real server in a child of this process, which is killed in the end: its process id and its URL."""
    port = port or free_port()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            import uvicorn

            store = Store.find(db)
            assert store is not None
            app = Annotation(store, None).app(["*"])
            uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical")
        finally:
            os._exit(0)
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield child, f"http://127.0.0.1:{port}"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=30, trust_env=False)


SECRET = "Zeppelin-9B"
"""Stands wherever a row may say who answered and what others thought of it."""


def replies(path: Path, system: str, count: int = 4) -> Path:
    turns = [ConversationTurn(prompt=f"Ask {n}", reference=f"The reference of {n}", images=[]) for n in (1, 2, 3)]
    lines = []
    for number in range(count):
        about: dict[str, Any] = {"lang": "en", "group": f"{SECRET}-group", "turns": turns}
        talk = Conversation(id=f"{SECRET}-{number}", benchmark="convbench", **about)
        for turn in (1, 2, 3):
            about = {"condition": "own", "turn": turn, "system": system, "sampling": Sampling(max_tokens=9)}
            reply = ModelTurn(conversation=talk, reply=f"Reply {turn} of talk {number}", **about)
            lines.append(msgspec.to_builtins(reply))
    return write_jsonl(path, lines)


def judgments(path: Path) -> Path:
    """A judge's ratings of each turn in `replies`: 7 in the standard way, 4 without focus points."""
    lines = []
    for reply in read_jsonl(replies(path.with_name("of.jsonl"), SECRET)):
        sample = {"id": reply["conversation"]["id"], "system": SECRET, "answer": reply["reply"]}
        sample |= {"turn": reply["turn"], "conversation": reply["conversation"]}
        for judging, rating in (("standard", 7), ("no_focus", 4)):
            verdict: dict[str, Any] = {"rating": rating, "reason": f"As for a {rating}."}
            about: dict[str, Any] = {"setup": {"judge": SECRET, "score_kind": "argmax"}, "prompt": "direct_turn"}
            about |= {
                "protocol": "direct",
                "judging": judging,
                "score": rating,
                "calls": [{"reply": "{}", "value": str(rating)}],
            }
            lines.append({"sample": sample, "verdict": verdict, **about})
    return write_jsonl(path, lines)


def source(folder: Path, scheme: str) -> Path:
    """Something to label by the scheme, with the secret wherever it must not be shown."""
    if SCHEMES[scheme].source == "replies":
        return replies(folder / "replies.jsonl", SECRET)
    if scheme == "judgments":
        return judgments(folder / "judged.jsonl")
    labels = {"human_score": 9.25, "scale_min": 1, "scale_max": 10, "reason": SECRET, "annotators": {SECRET: 9.25}}
    # A VisIT-Bench sheet as well.
    labels |= {"instruction_category": "counting", "instruction": "Count.", "image_url": f"https://a.b/{SECRET}.png"}
    labels |= {"image_dense_caption": "Two kites.", "gpt4_prediction": "Two.", "human_ratings_gpt4_correct": True}
    labels |= {"human_ratings_problem_in_caption": False, "image": f"{SECRET}.png", f"{SECRET}_score_1_10": 9.25}
    rows = []
    for n in range(8):
        rows.append(row(n, id=f"{SECRET}/{n}", group=f"{SECRET}-{n // 2}", system=f"{SECRET}{n % 2}", **labels))
    (folder / f"{SECRET}.png").write_bytes((ROOT / "data/samples/convbench/images/fruit.png").read_bytes())
    return write_jsonl(folder / "rows.jsonl", rows)
