"""Every page in a real browser, as wide as a desk's and as a phone's: nothing is cut, names stand on one line."""

import hashlib
import html
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, human_row, run, write_jsonl
from scoring import ASKED, judged

from critic.records import TurnVerdict
from eval_agreement.annotate.people import owner_page

SIZES = {"own": 1280, "phone": 390}

MODELS = [
    *("LLaVA-1.5-7B", "LLaVA-NeXT-7B", "LLaVA-OneVision-7B", "Qwen2-VL-7B", "Qwen2.5-VL-3B-Instruct"),
    *("Qwen2.5-VL-7B-Instruct", "Qwen2.5-VL-72B-Instruct", "InternVL2-8B", "InternVL2.5-1B", "InternVL2.5-2B"),
    *("InternVL2.5-4B", "InternVL2.5-8B", "LLaMA-3.2-11B-Vision-Instruct", "LLaMA-3.2-90B-Vision-Instruct"),
    *("GPT-4o-2024-11-20", "Claude-3.7-Sonnet-2025-02-19"),
]

MEASURE = """
addEventListener('load', () => {
  const found = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, root = page.documentElement, wrong = [];
    const all = (words, where = page) => [...where.querySelectorAll(words)], box = one => one.getBoundingClientRect();
    const say = (what, one) => wrong.push(what + ': ' + one.textContent.trim().slice(0, 60));
    all('details').forEach(one => one.open = true);
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
    for (const text of all('svg text')) {
      const svg = text.closest('svg'), here = box(text), there = box(svg), cuts = svg.classList.contains('wide');
      if (cuts && (here.left < there.left - 1 || here.right > there.right + 1)) say('beside the picture', text);
      if (cuts && (here.top < there.top - 1 || here.bottom > there.bottom + 1)) say('above the picture', text);
      if (here.height < 9) say('too small', text);
    }
    return {names: all('tbody th').length, tables: all('table').length, pictures: all('svg').length, wrong};
  });
  const told = document.createElement('pre');
  told.id = 'found';
  told.textContent = JSON.stringify(found);
  document.body.append(told);
});
"""


def score(verdict: TurnVerdict) -> float:
    """As good as the model's name says."""
    draw, skill = random.Random(repr(verdict)), int(hashlib.sha256(verdict.system.encode()).hexdigest()[:2], 16) / 255
    if verdict.protocol == "pairwise":
        return draw.choice([0.0, 0.5, 1.0, round(skill)])
    return (
        draw.choice([0.0, 0.5, 1.0])
        if verdict.protocol == "checklist"
        else float(draw.randint(1, 4 + round(6 * skill)))
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of each benchmark, of 16 models under two conditions, and that of an audit."""
    folder = tmp_path_factory.mktemp("pages")
    sizes = {name: found[0] for name in MODELS if (found := re.findall(r"\d+B", name))}
    facts = [f'["{name}"]\nfamily = "{name.partition("-")[0]}"\nsize = "{size}"\n' for name, size in sizes.items()]
    (folder / "models.toml").write_text("".join(facts))
    made = {}
    for benchmark, asked in ASKED.items():
        files = [judged(folder / benchmark / f"{name}.jsonl", benchmark, asked, score, name) for name in MODELS]
        if benchmark == "visitbench":
            fights = [(one, other) for place, one in enumerate(MODELS) for other in MODELS[place + 1 :]]
            files += [
                judged(folder / benchmark / f"{one} {other}.jsonl", benchmark, asked[:1], score, one, other)
                for one, other in fights
            ]
        words = ["--benchmark", benchmark, "--out", folder / benchmark, "--baseline", MODELS[-2]]
        done = run("critic", "score", *files, *words, "--models", folder / "models.toml")
        assert done.returncode == 0, done.stderr
        made[benchmark] = folder / benchmark / "report.html"
    rows = [human_row(number, gpt4_score_1_10=float((number * 7) % 10 + 1)) for number in range(120)]
    file = write_jsonl(folder / "rows.jsonl", rows)
    done = run("critic", "audit", "--human", file, "--judge", f"gpt4={file}:gpt4_score_1_10", "--out", folder / "audit")
    assert done.returncode == 0, done.stderr
    return made | {"audit": folder / "audit" / "report.html"} | of_people(folder)


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
        judged(folder / "judges" / f"{name}.jsonl", "convbench", ASKED["convbench"], score, MODELS[-1], judge=name)
        for name in ("people", "judge-one-of-6B", "another-judge-of-72B")
    ]
    done = run("critic", "score", *files, "--benchmark", "convbench", "--out", folder / "judges")
    assert done.returncode == 0, done.stderr
    return {"label": labels / "label.html", "owner": labels / "owner.html", "people": folder / "judges" / "report.html"}


@pytest.fixture(scope="module")
def measured(pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    """What the browser makes of each page, by page and width."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium here to look at the pages with")
    keys = [(name, width) for name in pages for width in SIZES.values()]
    frames = [
        f'<iframe width="{width}" height="900" srcdoc="{html.escape(pages[name].read_text("utf-8"))}"></iframe>'
        for name, width in keys
    ]
    wall = tmp_path_factory.mktemp("wall") / "wall.html"
    wall.write_text(f"<!doctype html><meta charset=utf-8><body>{''.join(frames)}<script>{MEASURE}</script>", "utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={wall.parent / 'profile'}", "--dump-dom"]
    done = subprocess.run([browser, *words, wall.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    told = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told, done.stderr[-2000:]
    return dict(zip(keys, json.loads(html.unescape(told[1])), strict=True))


@pytest.mark.parametrize("width", SIZES.values())
@pytest.mark.parametrize("name", [*ASKED, "audit", "people"])
def test_nothing_is_cut_and_names_stand_on_one_line(
    measured: dict[tuple[str, int], Any], name: str, width: int
) -> None:
    found = measured[name, width]
    assert found["wrong"] == []
    assert found["names"] >= 10 and found["tables"] >= 5 and found["pictures"] >= (1 if name == "audit" else 3)


@pytest.mark.parametrize("width", SIZES.values())
@pytest.mark.parametrize(("name", "names"), [("label", 0), ("owner", 3)])
def test_nor_on_the_pages_of_raters_and_of_their_owner(
    measured: dict[tuple[str, int], Any], name: str, names: int, width: int
) -> None:
    found = measured[name, width]
    assert found["wrong"] == [] and found["names"] >= names and found["tables"] >= 1
