"""The reports of all four benchmarks with 16 models under two conditions, and every other page, in a real browser, as
wide as a desk's and as a phone's: nothing is cut, names stand on one line.

Geometry is measured on whole pages by MEASURE, to which is added what a person sees wrong in a picture of one: a cut
column may be few pixels. All is set in one font, which comes with matplotlib and is a wide one: what fits in it fits in
those of readers.
"""

import html
import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from conftest import ROOT, human_row, run, write_jsonl
from PIL import Image
from scoring import ASKED, CONV, grades, judged, score_of_sample, write_judged

from eval_agreement.annotate.people import owner_page

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

HEIGHT, WALL = 3008, 3520
"""Pixels of a page that is short enough, and of what the browser sees of each."""

MEASURE = """
addEventListener('load', async () => {
  const frames = [...document.querySelectorAll('iframe')];
  await Promise.all(frames.map(frame => frame.contentDocument.fonts.ready));
  const found = frames.map(frame => {
    const page = frame.contentDocument, root = page.documentElement, wrong = [];
    const all = (words, where = page) => [...where.querySelectorAll(words)], box = one => one.getBoundingClientRect();
    const say = (what, one) => wrong.push(what + ': ' + one.textContent.trim().slice(0, 60));
    const closed = all('details').filter(one => !one.open);
    closed.forEach(one => one.open = true);
    if (root.scrollWidth > root.clientWidth) wrong.push('the page is wider than the window');
    for (const name of all('tbody th')) {
      const words = page.createRange();
      words.selectNodeContents(name.firstChild);
      if (new Set([...words.getClientRects()].map(one => Math.round(one.top))).size > 1) say('over two lines', name);
    }
    for (const table of all('table')) {
      const around = table.closest('.scroll');
      if (!around || getComputedStyle(around).overflowX !== 'auto' || box(around).right > root.clientWidth + 1) {
        say('cannot be scrolled', table);
        continue;
      }
      for (const cell of all('thead th, tbody td', table))
        if (box(cell).right - box(around).left > around.scrollWidth + 1) say('cut', cell);
      for (const name of all('tbody th', table))
        if (getComputedStyle(name).position === 'sticky' && box(around).width - box(name).width < 80)
          say('hides the numbers', name);
    }
    closed.forEach(one => one.open = false);
    return {names: all('tbody th').length, tables: all('table').length, height: root.scrollHeight, wrong,
            drawn: all('.forest, .picture circle').length};
  });
  const told = document.createElement('pre');
  told.id = 'found';
  told.textContent = JSON.stringify(found);
  document.body.append(told);
});
"""


def done(*words: object) -> str:
    ended = run("critic", *words, code=0)
    return ended.stdout


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
        done("score", *files, "--benchmark", benchmark, "--out", out, "--baseline", MODELS[-2])
        reports[benchmark] = out / "report.html"
    rows = [human_row(number, gpt4_score_1_10=float((number * 7) % 10 + 1)) for number in range(120)]
    file = write_jsonl(folder / "rows.jsonl", rows)
    done("audit", "--human", file, "--judge", f"gpt4={file}:gpt4_score_1_10", "--out", folder / "audit")
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
    done("score", *files, "--benchmark", "convbench", "--out", folder / "judges")
    return {"label": labels / "label.html", "owner": labels / "owner.html", "people": folder / "judges" / "report.html"}


def framed(page: str, width: int) -> str:
    """A page, in the one font, in its place of the wall that the browser sees."""
    font = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    style = (
        f"<style>@font-face {{ font-family: one; src: url('{font.as_uri()}'); }} * {{ font-family: one !important; }}"
    )
    page = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace(
        "<title>", f"{style}</style><title>"
    )
    return f'<iframe width="{width}" height="{WALL}" srcdoc="{html.escape(page)}"></iframe>'


Looked = dict[tuple[str, int], Any]
"""The browser's measurements of each page, by page and width."""


@pytest.fixture(scope="module")
def looked(pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Looked:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium here to look at the pages with")
    keys = [(name, width) for name in pages for width in SIZES.values()]
    frames = "".join(framed(pages[name].read_text("utf-8"), width) for name, width in keys)
    wall = tmp_path_factory.mktemp("wall") / "wall.html"
    style = "body { margin: 0; display: flex; } iframe { border: 0; flex: none; }"
    head = f"<!doctype html><meta charset=utf-8><style>{style}</style>"
    wall.write_text(f"{head}<body>{frames}<script>{MEASURE}</script>", "utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    words += ["--force-device-scale-factor=0.5", f"--window-size={len(pages) * sum(SIZES.values())},{WALL}"]
    words += ["--virtual-time-budget=10000", f"--user-data-dir={wall.parent / 'profile'}", "--dump-dom"]
    words += [f"--screenshot={wall.with_suffix('.png')}"]
    shown = subprocess.run([browser, *words, wall.as_uri()], capture_output=True, text=True, timeout=300, check=False)
    printed = re.search(r'<pre id="found">(.*?)</pre>', shown.stdout, re.DOTALL)
    assert printed, shown.stderr[-2000:]
    sizes, left = json.loads(html.unescape(printed[1])), 0
    with Image.open(wall.with_suffix(".png")) as picture:
        for (_, width), page in zip(keys, sizes, strict=True):
            page["picture"] = np.asarray(picture.crop((left // 2, 0, (left + width) // 2, WALL // 2)).convert("RGB"))
            left += width
    return dict(zip(keys, sizes, strict=True))


@pytest.mark.parametrize("width", SIZES.values())
@pytest.mark.parametrize("name", [*ASKED, "audit", "people", *LEAST])
def test_nothing_is_cut_and_names_stand_on_one_line(looked: Looked, name: str, width: int) -> None:
    measured = looked[name, width]
    names, tables, drawn = LEAST.get(name, (10, 4, 3))
    assert measured["wrong"] == []
    assert measured["names"] >= names and measured["tables"] >= tables and measured["drawn"] >= drawn
    assert measured["height"] <= 1.2 * HEIGHT or name in ("audit", *LEAST) or width == SIZES["phone"], (
        "scores fit in three screens"
    )


def _shown(picture: Any, colour: str) -> Any:
    """Return the places with exactly this colour (#rrggbb), without blended ones."""
    return (picture == [int(colour[place : place + 2], 16) for place in (1, 3, 5)]).all(axis=2)


@pytest.mark.parametrize("width", SIZES.values())
@pytest.mark.parametrize(
    ("name", "colours"), [*((name, 8) for name in ASKED), ("audit", 2), ("people", 1), ("owner", 0)]
)
def test_a_page_begins_with_its_headline_and_models_have_colours(
    looked: Looked, name: str, colours: int, width: int
) -> None:
    """In its picture: the bar beside the headline, so many colours, and nothing in the margin to the right."""
    picture = looked[name, width]["picture"]
    palette = re.findall(r"\"?(#\w{6}) ", (ROOT / "critic/page/macros.html.jinja").read_text("utf-8"))[:8]
    assert (picture[:, -6:] == 255).all()
    assert (_shown(picture[:400], palette[0]).sum(axis=0).max() >= 20) == (name != "owner")
    assert sum(bool(_shown(picture[200:], each).any()) for each in palette) >= colours
