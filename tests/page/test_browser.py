"""The reports of all four benchmarks with 16 models under two conditions, and every other page, in a real browser, as
wide as a desk's and as a phone's: nothing is cut, names stand on one line.

Geometry is measured on whole pages by `looking.js`, to which is added what a person sees wrong in a picture of one: a
cut column may be few pixels. All is set in one font, which comes with matplotlib and is a wide one: what fits in it
fits in those of readers.
"""

import io
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
from chromium import Chromium
from conftest import ROOT, human_row, run, write_jsonl
from PIL import Image
from samples import build_question, build_sample
from scoring import ASKED, CONV, grades, judged, score_of_sample, write_judged

from critic import tables
from critic.page.blocks import Section
from critic.records import HumanScore, Response
from eval_agreement.annotate.people import owner_page
from eval_agreement.measures.measure import Findings
from eval_agreement.page import report

pytestmark = pytest.mark.e2e

SIZES = {"own": 1280, "phone": 390}

LEAST = {"label": (0, 0, 0), "owner": (3, 0, 0)}
"""Least number of names, tables and drawings on the pages of raters and of their owner."""

MODELS = [
    *("LLaVA-1.5-7B", "LLaVA-NeXT-7B", "LLaVA-OneVision-Qwen2-7B-ov-chat-2024-09-15-quantised-w4a16", "Qwen2-VL-7B"),
    *("Qwen2.5-VL-3B-Instruct", "Qwen2.5-VL-7B-Instruct", "Qwen2.5-VL-72B-Instruct", "InternVL2-8B", "InternVL2.5-1B"),
    *("InternVL2.5-2B", "InternVL2.5-4B", "InternVL2.5-8B", "LLaMA-3.2-11B-Vision-Instruct"),
    *("LLaMA-3.2-90B-Vision-Instruct", "GPT-4o-2024-11-20", "Claude-3.7-Sonnet-2025-02-19"),
]

HEIGHT, SEEN = 3008, 3520
"""Pixels of a page that is short enough, and of what its picture shows."""

FONT = b64encode((Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf").read_bytes()).decode()

LOOKING = (ROOT / "tests/page/looking.js").read_text("utf-8")
"""Functions of the object `looking`, which every page gets that is opened."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of each benchmark, of battles too, and that of an audit."""
    folder = tmp_path_factory.mktemp("runs-whose-path-does-not-fit-into-a-line-of-a-phone")
    reports = {}
    for benchmark, cells in ASKED.items():
        out = folder / benchmark
        files = write_judged(out, benchmark, cells, score_of_sample, MODELS)
        if benchmark in ("visitbench", "convbench"):
            battles = [
                judged(out / "battle.jsonl", benchmark, [("pairwise", "own", 1)], score_of_sample, *pair).read_bytes()
                for pair in combinations(MODELS, 2)
            ]
            (out / "battles.jsonl").write_bytes(b"".join(battles))
            files.append(out / "battles.jsonl")
        run("critic", "score", *files, "--benchmark", benchmark, "--out", out, "--baseline", MODELS[-2], code=0)
        reports[benchmark] = out / "report.html"
    rows = [human_row(number, gpt4_score_1_10=float((number * 7) % 10 + 1)) for number in range(120)]
    file = write_jsonl(folder / "rows.jsonl", rows)
    run(
        "critic", "audit", "--human", file, "--judge", f"gpt4={file}:gpt4_score_1_10", "--out", folder / "audit", code=0
    )
    return reports | {"audit": folder / "audit" / "report.html"} | of_people(folder)


def of_people(folder: Path) -> dict[str, Path]:
    """The pages of raters and of their owner, and the scores of people beside a judge's."""
    pytest.importorskip("starlette")
    from annotating import by_rater, page_of, planned, row

    labels = folder / "labels"
    labels.mkdir()
    long = "A long answer. " * 40 + "\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    rows = write_jsonl(labels / "rows.jsonl", [row(number, response=f"{number}. {long}") for number in range(12)])
    store = planned(labels, "--raters", 3, "--scheme", "pairwise", rows=rows)
    style = (ROOT / "eval_agreement/annotate/page/page.css").read_text("utf-8")
    label = page_of(store).get("/", params={"rater": "rater-1"}).text
    by_rater(store, lambda rater, name, values: values[int(rater[-1]) % 2])
    (labels / "label.html").write_text(label.replace("<title>", f"<style>{style}</style><title>", 1), "utf-8")
    (labels / "owner.html").write_text(owner_page(store), "utf-8")
    files = [
        judged(folder / "judges" / f"{name}.jsonl", "convbench", CONV, grades, MODELS[-1], judge=name)
        for name in ("people", "judge-one-of-6B", "another-judge-of-72B")
    ]
    run("critic", "score", *files, "--benchmark", "convbench", "--out", folder / "judges", code=0)
    return {"label": labels / "label.html", "owner": labels / "owner.html", "people": folder / "judges" / "report.html"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with closing(Chromium(tmp_path_factory.mktemp("profile"))) as opened:
        yield opened


def open_page(browser: Chromium, page: Path, width: int = 1280) -> float:
    """Open a page with the functions of LOOKING, and return how many seconds a processor was at work for it."""
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    before = read_clock(browser)
    browser.open(page.as_uri())
    browser.js(LOOKING)
    return read_clock(browser) - before


def read_clock(browser: Chromium) -> float:
    """Return the processor's time of the page's process, which other programs do not lengthen."""
    metrics = browser.call("Performance.getMetrics")["metrics"]
    return sum(float(each["value"]) for each in metrics if each["name"] == "ProcessTime")


def press_enter(browser: Chromium, words: str) -> None:
    """Press Enter on the first element that a selector finds."""
    browser.js(f"document.querySelector('{words}').focus()")
    browser.key("Enter")


Looked = dict[tuple[str, int], Any]
"""The browser's measurements of each page, by page and width."""


@pytest.fixture(scope="module")
def looked(pages: dict[str, Path], browser: Chromium) -> Looked:
    """What the browser measures with its script, its height without, and its picture at half the size, in one font."""
    found: Looked = {}
    browser.call("Page.setBypassCSP", enabled=True)
    for name, width in product(pages, SIZES.values()):
        heights = []
        for disabled in (True, False):
            browser.call("Emulation.setScriptExecutionDisabled", value=disabled)
            open_page(browser, pages[name], width)
            heights.append(browser.js(f"looking.dress('{FONT}').then(() => document.documentElement.scrollHeight)"))
        clip = {"x": 0, "y": 0, "width": width, "height": SEEN, "scale": 0.5}
        shot = b64decode(browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])
        picture = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))
        found[name, width] = {**browser.js("looking.measure()"), "heights": heights, "picture": picture}
    browser.call("Page.setBypassCSP", enabled=False)
    return found


@pytest.mark.parametrize("width", SIZES.values())
@pytest.mark.parametrize("name", [*ASKED, "audit", "people", *LEAST])
def test_nothing_is_cut_and_names_stand_on_one_line(looked: Looked, name: str, width: int) -> None:
    measured = looked[name, width]
    names, tables, drawn = LEAST.get(name, (10, 4, 3))
    assert measured["wrong"] == []
    assert measured["names"] >= names and measured["tables"] >= tables and measured["drawn"] >= drawn
    is_short = max(measured["heights"]) <= 1.2 * HEIGHT
    assert is_short or name in ("audit", *LEAST) or width == SIZES["phone"], "scores fit in three screens"


def _shown(picture: Any, colour: str) -> Any:
    """Return the places with exactly this colour (#rrggbb), without blended ones."""
    return (picture == [int(colour[place : place + 2], 16) for place in (1, 3, 5)]).all(axis=2)


@pytest.mark.parametrize("width", SIZES.values())
@pytest.mark.parametrize(
    ("name", "colours"), [*((name, 8) for name in ASKED), ("audit", 2), ("people", 1), ("owner", 0)]
)
def test_pages_begin_with_a_headline_and_have_colours(looked: Looked, name: str, colours: int, width: int) -> None:
    """In its picture: the bar beside the headline, so many colours, and nothing in the margin to the right."""
    picture = looked[name, width]["picture"]
    palette = re.findall(r"\"?(#\w{6}) ", (ROOT / "critic/page/macros.html.jinja").read_text("utf-8"))[:8]
    assert (picture[:, -6:] == 255).all()
    assert (_shown(picture[:400], palette[0]).sum(axis=0).max() >= 20) == (name != "owner")
    assert sum(bool(_shown(picture[200:], each).any()) for each in palette) >= colours


HOSTILE = "=1+1</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"


@pytest.fixture(scope="module")
def list_of_answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an audit of 10,500 answers: the larger an answer's number, the further the judge is from people."""
    folder, n = tmp_path_factory.mktemp("answers"), 10_500
    Image.new("RGB", (900, 600), "#0072b2").save(folder / "blue.png")
    question = build_question(prompt=f"Which? {HOSTILE}", images=["blue.png"])
    human = HumanScore(score=5.0, reason="It is blue.")
    responses = [Response(id="r", question=question, text=HOSTILE * 4, human=human)] * n
    about = {"parts": {"task": [HOSTILE, "OCR", "OCR"] * (n // 3)}, "ids": [f"r{place:05}" for place in range(n)]}
    sample = build_sample(np.full(n, 5.0), 5 + np.arange(n) / n, responses=responses, **about)
    audits = {"s": Findings(sample=sample, by_measure={"calibration": SimpleNamespace(bins=[])})}
    origin = {"samples": {"s": {"files": {"people": {"file": str(folder / "rows.jsonl")}}}}}
    head: dict[str, Any] = {"title": "t", "about": "", "verdicts": {}, "sections": [Section(key="k", heading="h")]}
    return report.write(folder, origin, audits, **head)


def test_answers_are_sorted_filtered_opened_and_saved(browser: Chromium, list_of_answers: Path, tmp_path: Path) -> None:
    """By keyboard, among 10,000 rows within a second, and without a text of a file that becomes markup."""
    browser.call("Performance.enable")
    assert 0 < min(open_page(browser, list_of_answers) for _ in range(3)) < 1
    assert "The page holds the 10,000 worst of 10,500" in browser.js("document.body.innerText")
    assert browser.js(f"looking.use({json.dumps(HOSTILE)})") == [
        ["r10499", "25 of 10,000 rows shown.", None],
        ["r10499", "25 of 10,000 rows shown.", "descending"],
        ["r00500", "25 of 10,000 rows shown.", "ascending"],
        ["r09451", "25 of 1,049 rows shown (10,000 without filters).", "ascending"],
        ["r09453", "25 of 349 rows shown (10,000 without filters).", "ascending"],
        ["r09453", "125 of 349 rows shown (10,000 without filters).", "ascending"],
    ]
    press_enter(browser, "#answers tbody button[aria-expanded=false]")
    opened = browser.js("looking.rows()[1]")
    assert all(text in opened for text in (f"Which? {HOSTILE}", HOSTILE * 4, "It is blue."))
    assert [browser.js(f"looking.width('{place}')") for place in ("#answers", "#worst")] == [547, 547], "small copies"
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path), eventsEnabled=True)
    press_enter(browser, ".filters button")
    browser.wait_for("Browser.downloadProgress", state="completed")
    row, *others = (row for _, row in tables.rows(tmp_path / "answers.csv"))
    assert (row["id"], row["task"], row["answer"]) == ("r09453", f"'{HOSTILE}", f"'{HOSTILE * 4}") and len(
        others
    ) == 348
    press_enter(browser, "#answers th[aria-sort] button")
    assert browser.js("[document.title, looking.rows()[0].slice(0, 6)]") == ["t", "r10497"] and not browser.complaints()


def test_a_click_on_a_heading_sorts_a_table_by_its_numbers(browser: Chromium, pages: dict[str, Path]) -> None:
    open_page(browser, pages["visitbench"])
    values = [float(text.split()[0]) for text in browser.js("looking.sorted(2)")]
    assert values == sorted(values, reverse=True) and len(set(values)) > 5
