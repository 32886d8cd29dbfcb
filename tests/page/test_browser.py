"""All four benchmarks with 16 models under two conditions, by the commands that a user types, and every page in a real
browser, as wide as a desk's and as a phone's: nothing is cut, names stand on one line.

Geometry is measured on whole pages by MEASURE, to which is added what a person sees wrong in a picture of one: a cut
column may be few pixels. All is set in one font, which comes with matplotlib and is a wide one: what fits in it fits in
those of readers.
"""

import csv
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from conftest import ROOT, human_row, run, write_jsonl
from scoring import CONV, grades, judged, sample

from critic import benchmarks, jsonl
from critic.judging import history
from critic.records import Judgment
from eval_agreement.annotate.people import owner_page

SIZES = {"own": 1280, "phone": 390}

MODELS = [
    *(
        "LLaVA-1.5-7B",
        "LLaVA-NeXT-7B",
        "LLaVA-OneVision-Qwen2-7B-ov-chat-2024-09-15-quantised-w4a16",
        "Qwen2-VL-7B",
        "Qwen2.5-VL-3B-Instruct",
    ),
    *("Qwen2.5-VL-7B-Instruct", "Qwen2.5-VL-72B-Instruct", "InternVL2-8B", "InternVL2.5-1B", "InternVL2.5-2B"),
    *("InternVL2.5-4B", "InternVL2.5-8B", "LLaMA-3.2-11B-Vision-Instruct", "LLaMA-3.2-90B-Vision-Instruct"),
    *("GPT-4o-2024-11-20", "Claude-3.7-Sonnet-2025-02-19"),
]

HEIGHT = 3008

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
    for (const text of all('svg text')) {
      const svg = text.closest('svg'), here = box(text), there = box(svg), cuts = svg.classList.contains('wide');
      if (cuts && (here.left < there.left - 1 || here.right > there.right + 1)) say('beside the picture', text);
      if (cuts && (here.top < there.top - 1 || here.bottom > there.bottom + 1)) say('above the picture', text);
      if (here.height < 9) say('too small', text);
    }
    closed.forEach(one => one.open = false);
    return {names: all('tbody th').length, tables: all('table').length, pictures: all('svg').length, wrong};
  });
  const told = document.createElement('pre');
  told.id = 'found';
  told.textContent = JSON.stringify(found);
  document.body.append(told);
});
"""


CONDITIONS = {
    "alignmmbench": ("own", "no_image"),
    "convbench": ("own", "perfect_perception"),
    "multiverse": ("own", "oracle"),
    "visitbench": ("own", "no_image"),
}

VERDICTS = [
    {"Rating": number % 10 + 1, "Verdict": "AB"[number % 2], "Reason": "so"}
    | {str(item): ("no", "yes")[(item + number) % 2] for item in range(1, 8)}
    for number in range(7)
]
"""What the judge answers, one of them by the prompt alone: each can be read as a grade, a choice and a checklist."""


def done(*words: object) -> str:
    ended = run("critic", *words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each benchmark: NAME.replies.jsonl and NAME.jsonl by model, what they score against each other in
    battles.jsonl, and the report of all."""
    folder = tmp_path_factory.mktemp("runs-whose-path-does-not-fit-into-a-line-of-a-phone")
    judge = write_jsonl(folder / "judge.jsonl", [{"text": json.dumps(verdict)} for verdict in VERDICTS])
    sizes = {name: found[0] for name in MODELS if (found := re.findall(r"\d+B", name))}
    facts = [f'["{name}"]\nfamily = "{name.partition("-")[0]}"\nsize = "{size}"\n' for name, size in sizes.items()]
    (folder / "models.toml").write_text("".join(facts))
    for benchmark, conditions in CONDITIONS.items():
        out = folder / benchmark
        out.mkdir()
        for name in MODELS:
            model = write_jsonl(folder / f"{name}.jsonl", [{"text": f"{name} says {number}."} for number in range(3)])
            asked = [word for condition in conditions for word in ("--condition", condition)]
            words = ["--benchmark", benchmark, "--out", out / f"{name}.replies.jsonl", "--name", name, *asked]
            done("infer", sample(benchmark), "--model", model, *words)
            done("judge", out / f"{name}.replies.jsonl", "--out", out / f"{name}.jsonl", "--judge", judge)
        files = [out / f"{name}.jsonl" for name in MODELS]
        if battles := {"visitbench": "all", "convbench": "random"}.get(benchmark):
            first, *others = (out / f"{name}.replies.jsonl" for name in MODELS)
            against = [word for other in others for word in ("--against", other)]
            words = ["--battles", battles, "--order", "random", "--out", out / "battles.jsonl"]
            done("judge", first, *against, *words, "--judge", judge)
            files.append(out / "battles.jsonl")
        words = ["--out", out, "--baseline", MODELS[-2], "--models", folder / "models.toml"]
        done("score", *files, "--benchmark", benchmark, *words)
    return folder


@pytest.fixture(scope="module")
def pages(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of each benchmark, and that of an audit."""
    folder = tmp_path_factory.mktemp("pages")
    made = {benchmark: runs / benchmark / "report.html" for benchmark in CONDITIONS}
    rows = [human_row(number, gpt4_score_1_10=float((number * 7) % 10 + 1)) for number in range(120)]
    file = write_jsonl(folder / "rows.jsonl", rows)
    done("audit", "--human", file, "--judge", f"gpt4={file}:gpt4_score_1_10", "--out", folder / "audit")
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
    return f'<iframe width="{width}" height="{HEIGHT}" srcdoc="{html.escape(page)}"></iframe>'


Looked = dict[tuple[str, int], Any]
"""What the browser makes of each page, by page and width."""


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
    words += ["--force-device-scale-factor=0.5", f"--window-size={len(pages) * sum(SIZES.values())},{HEIGHT}"]
    words += ["--virtual-time-budget=10000", f"--user-data-dir={wall.parent / 'profile'}", "--dump-dom"]
    shown = subprocess.run([browser, *words, wall.as_uri()], capture_output=True, text=True, timeout=300, check=False)
    told = re.search(r'<pre id="found">(.*?)</pre>', shown.stdout, re.DOTALL)
    assert told, shown.stderr[-2000:]
    return dict(zip(keys, json.loads(html.unescape(told[1])), strict=True))


@pytest.mark.parametrize("width", SIZES.values())
@pytest.mark.parametrize("name", [*CONDITIONS, "audit", "people"])
def test_nothing_is_cut_and_names_stand_on_one_line(looked: Looked, name: str, width: int) -> None:
    found = looked[name, width]
    assert found["wrong"] == []
    assert found["names"] >= 10 and found["tables"] >= 5 and found["pictures"] >= (1 if name == "audit" else 3)


@pytest.mark.parametrize("width", SIZES.values())
@pytest.mark.parametrize(("name", "names"), [("label", 0), ("owner", 3)])
def test_nor_on_the_pages_of_raters_and_of_their_owner(looked: Looked, name: str, names: int, width: int) -> None:
    found = looked[name, width]
    assert found["wrong"] == [] and found["names"] >= names


def lines_of(path: Path) -> list[Judgment]:
    return [line for _, line in jsonl.read(path, Judgment)]


@pytest.mark.parametrize("benchmark", CONDITIONS)
def test_nothing_of_a_run_is_lost(runs: Path, benchmark: str) -> None:
    """Of each model every turn that is asked has each verdict once, none failed; asking again adds nothing."""
    expected = {
        (one.id, condition, protocol, turn)
        for one in benchmarks.read(benchmark, sample(benchmark))
        for condition in CONDITIONS[benchmark]
        for protocol in benchmarks.load(benchmark).protocols
        for turn in [*history.CONDITIONS[condition].asked(len(one.turns)), *[None] * (benchmark == "convbench")]
        if turn is None or one.turns[turn - 1].reference is not None
    }
    for name in MODELS:
        verdicts = lines_of(runs / benchmark / f"{name}.jsonl")
        found = [(one.sample.id, one.condition, one.protocol, one.turn) for one in verdicts]
        assert len(found) == len({*found}) and {*found} == expected
        assert {one.system for one in verdicts} == {name} and not any(one.failure for one in verdicts)
        assert f"{name}, judged by judge: {len(expected)} verdicts" in (runs / benchmark / "report.html").read_text()
    before = (runs / benchmark / f"{MODELS[0]}.jsonl").read_bytes()
    replies = runs / benchmark / f"{MODELS[0]}.replies.jsonl"
    done("judge", replies, "--out", runs / benchmark / f"{MODELS[0]}.jsonl", "--judge", runs / "judge.jsonl")
    assert (runs / benchmark / f"{MODELS[0]}.jsonl").read_bytes() == before


def test_sixteen_models_meet_in_a_tournament(runs: Path) -> None:
    """Everybody meets everybody: Elo with intervals, wins over each other that add up, the same in files for papers;
    one's own replies before those without the image."""
    found = json.loads((runs / "visitbench" / "summary.json").read_text())
    asked = [one for one in benchmarks.read("visitbench", sample("visitbench")) if one.turns[0].reference]
    assert [name for name in found["systems"] if name.startswith("tournament")] == [
        "tournament",
        "tournament, no_image",
    ]
    lines = [line for line in lines_of(runs / "visitbench" / "battles.jsonl") if line.condition == "own"]
    assert len(lines) == len(asked) * 16 * 15 / 2
    ratings, wins = (found["leaderboards"][key] for key in ("tournament", "tournament-wins"))
    assert {*ratings} == {*MODELS} and list(wins) == list(ratings)
    elo = [row["Elo"]["value"] for row in ratings.values()]
    assert elo == sorted(elo, reverse=True) and sum(elo) == pytest.approx(16_000)
    for name, row in ratings.items():
        mine = [one.score for one in lines if one.system == name]
        mine += [1 - one.score for one in lines if one.opponent == name and one.score is not None]
        assert len(mine) == row["win rate, %"]["n"] == 15 * len(asked)
        assert row["win rate, %"]["value"] == pytest.approx(100 * sum(map(float, mine)) / len(mine))
        for low, high, value in ((*each["interval"], each["value"]) for each in row.values()):
            assert low <= value <= high
        assert len(wins[name]) == 15
        for other, each in wins[name].items():
            assert each["value"] + wins[other][name]["value"] == pytest.approx(100)
    with (runs / "visitbench" / "leaderboard-tournament.csv").open(encoding="utf-8") as file:
        assert [float(row["Elo"]) for row in csv.DictReader(file)] == elo
    assert "| Elo | Bradley–Terry |" in (runs / "visitbench" / "leaderboard.md").read_text("utf-8")
    page = (runs / "visitbench" / "report.html").read_text("utf-8")
    assert page.index("<h2>Tournament</h2>") < page.index("<h2>Tournament, no_image</h2>")
    talks = json.loads((runs / "convbench" / "summary.json").read_text())
    heads = [name.removeprefix("tournament, ") for name in talks["systems"] if name.startswith("tournament")]
    assert heads[:4] == ["turn 1", "turn 2", "turn 3", "whole conversation"] and talks["others"] == {}
    assert heads[4:] == [f"{turn}, perfect_perception" for turn in ("turn 2", "turn 3", "whole conversation")]
