"""A judge that sees: a prompt in two wordings, images in their place, named failures where one is not to be had."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Servers, assert_golden, completion, example_in, human_row, run, sample, write_jsonl
from judging.test_prompt import material
from judgments import Recorder, ResponseJudge
from PIL import Image as Pillow

from critic import jsonl
from critic.backends import Reply, Request, count_images, embed_images, list_image_names, parts_of
from critic.backends.identity import hash_processor, own_name, sees_images
from critic.backends.scripted import IMAGE_TOKENS, ScriptedBackend
from critic.images import Images, image_part
from critic.judging.forms import BY_NAME, form_of, inquiry
from critic.judging.prompt import LANGUAGES, load, prompt_hash, render, truncate_to_fit
from critic.records import HumanScore, Judgment, Language, PromptInputs, Question, Response, Turn

VERDICT = '{"Rating":7,"Reason":"seen"}'


def response(lang: Language = "en", **changes: Any) -> Response:
    question = {
        "id": "q", "group": "g", "lang": lang, "task": "Counting", "prompt": "And now?", "reference": "Five.",
        "images": ["a.png", "b.png"], "caption": "five cats", "checklist": ["Is it five?"],
        "criteria": {"true": "Is it?"},
    }  # fmt: skip
    return Response(id="r", question=Question(**{**question, **changes}), text="Five \0000\0 cats.")


def seen(name: str, shown: Response, **kept: int) -> list[Any]:
    request = inquiry(name, shown.question.lang, material(name, shown), sees=True)
    message = render(request.prompt, request.material, kept)[-1]
    return [part["text"] if part["type"] == "text" else (part["image"],) for part in parts_of(message)]


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", BY_NAME)
def test_every_form_shows_its_images_before_the_text_of_their_turn(name: str, lang: Language) -> None:
    shown = response(lang)
    parts = seen(name, shown)
    assert [part for part in parts if isinstance(part, tuple)] == [("a.png",), ("b.png",)]
    front, first, second, behind = parts
    heading = front.rstrip("\n").rpartition("\n")[2]
    assert (first, second) == (("a.png",), ("b.png",)) and heading.startswith("# ") and behind.startswith("> ")
    # The rules come before any image, so that they are a prefix that all questions share.
    assert '"> "' in front or "“> ”" in front
    text = "".join(part for part in parts if isinstance(part, str))
    assert "cannot see" not in text and "看不到" not in text and "\0" not in text
    assert "five cats" not in text, "a description stands for the picture"
    blind = inquiry(name, lang, material(name, shown))
    (message,) = render(blind.prompt, blind.material)
    assert isinstance(message["content"], str) and blind.prompt == load(blind.prompt.name, lang)


def test_a_prompt_is_one_and_its_two_wordings_have_hashes_of_their_own() -> None:
    both = {prompt_hash(name, sees) for name in ("pointwise", "quality", "answer") for sees in (False, True)}
    assert len(both) == 6
    said = [load("pointwise", "en", sees).template.splitlines() for sees in (False, True)]
    changed = [line for line in said[1] if line not in said[0]]
    assert len(changed) == 3 and changed[0].startswith("- Look at the picture")
    # Without an image nothing is said of one that is there.
    assert not inquiry("pointwise", "en", material("pointwise", response(images=[])), sees=True).prompt.sees


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", ["pointwise", "pointwise_short", "direct_turn", "quality", "answer"])
def test_golden_words_of_a_judge_that_sees(name: str, lang: Language) -> None:
    """To accept a changed wording: raise the prompt's version, delete the file, run the test twice."""
    history = [Turn("How many cats?", "Four.")] if lang == "en" else []
    reference = None if name == "pointwise" else "Five."
    parts = seen(name, response(lang, history=history, reference=reference))
    text = "".join(part if isinstance(part, str) else f"[image {part[0]}]" for part in parts)
    assert_golden(f"seeing_{name}_{lang}", text)


def test_images_of_earlier_turns_stand_with_the_first_and_stay_when_it_is_left_out() -> None:
    shown = response(history=[Turn("How many cats?", "Four."), Turn("Sure?", "Yes.")])
    front, _, _, behind = seen("pointwise", shown)
    assert front.endswith("# Earlier conversation\n") and behind.startswith("> User: How many cats?")
    front, _, _, behind = seen("pointwise", shown, history=1)
    assert front.endswith("# Question\n") and "Sure?" in front and behind.startswith("> And now?")


def test_fitting_counts_image_tokens_and_shortens_text_alone() -> None:
    request = inquiry("pointwise", "en", of_length(4000), sees=True)
    backend = ScriptedBackend(lambda _: Reply(text=""))

    def count(messages: Any) -> int:
        shown = {name: [image_part(f"data:{name}")] for name in list_image_names(messages)}
        return backend.count_tokens([embed_images(message, shown) for message in messages])

    whole = count(render(request.prompt, request.material))
    limit = whole - 1000
    fitted = truncate_to_fit(request.prompt, request.material, limit, count)
    assert fitted is not None and list_image_names(fitted.messages) == ["a.png", "b.png"]
    assert limit - IMAGE_TOKENS < count(fitted.messages) <= limit and sum(fitted.shortened.values()) >= 1000
    blind = inquiry("pointwise", "en", of_length(4000))
    roomy = truncate_to_fit(blind.prompt, blind.material, limit, count)
    assert roomy is not None and sum(roomy.shortened.values()) < sum(fitted.shortened.values()) - IMAGE_TOKENS
    # No image is ever cut away for room.
    assert truncate_to_fit(request.prompt, request.material, 2 * IMAGE_TOKENS + 100, count) is None


def of_length(characters: int) -> PromptInputs:
    return form_of("pointwise").material(response(reference="r" * characters))


def test_an_example_to_learn_from_is_what_the_judge_is_asked() -> None:
    shown = response()
    scored = Response(id="r", question=shown.question, text=shown.text, human=HumanScore(score=7.0))
    taught = example_in("pointwise", scored, sees=True)
    blind = example_in("pointwise", scored)
    assert not hasattr(taught, "failure") and taught.images == ["a.png", "b.png"] == list_image_names(taught.messages)  # type: ignore[union-attr]
    assert taught.messages == render(load("pointwise", "en", True), form_of("pointwise").material(shown))  # type: ignore[union-attr]
    assert blind.images == []  # type: ignore[union-attr]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, colour in (("a.png", "red"), ("b.png", "blue")):
        Pillow.new("RGB", (40, 30), colour).save(tmp_path / name)
    (tmp_path / "torn.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    (tmp_path.parent / "outside.png").write_bytes((tmp_path / "a.png").read_bytes())
    return tmp_path


def judged(root: Path, shown: Response, form: str = "pointwise", **how: Any) -> tuple[Judgment, list[Request]]:
    verdict, other = ('{"Verdict":"A"}', shown) if form == "pairwise" else (VERDICT, None)
    backend = Recorder(lambda request: Reply(text=verdict, prompt_tokens=10))
    judge = ResponseJudge(backend, "judge", form, "argmax", 64, images=Images(root, **how))
    return asyncio.run(judge.judge(shown, other)), backend.requests


@pytest.mark.parametrize("form", ["pointwise", "pairwise", "commit_first"])
def test_how_many_images_reached_the_judge_is_in_its_judgment(root: Path, form: str) -> None:
    judgment, requests = judged(root, response(), form)
    assert judgment.images == 2 and all(count_images(request.messages) == 2 for request in requests)
    assert all(call.images == 2 for call in judgment.calls) and judgment.setup.decoding.images == "show"
    urls = [part["image_url"]["url"] for part in parts_of(requests[0].messages[-1]) if part["type"] == "image_url"]
    assert urls == [Images(root).load(name).uri for name in ("a.png", "b.png")]
    text_only, requests = judged(root, response(images=[]), form)
    assert text_only.images == 0 and count_images(requests[0].messages) == 0 and text_only.score is not None


@pytest.mark.parametrize(
    ("name", "how", "failure"),
    [
        ("gone.png", {}, "image_missing"),
        ("torn.png", {}, "image_unreadable"),
        ("../outside.png", {}, "image_outside_root"),
        ("https://example.org/a.png", {}, "image_outside_root"),
        ("a.png", {"max_bytes": 20}, "image_too_large"),
    ],
)
def test_an_image_that_is_not_to_be_had_is_named(root: Path, name: str, how: dict[str, Any], failure: str) -> None:
    judgment, requests = judged(root, response(images=["b.png", name] if not how else [name]), **how)
    assert (judgment.verdict.failure, judgment.score, judgment.images) == (failure, None, 0)
    assert not requests, "it is not judged blind in silence" and judgment.detail is not None
    assert name in str(judgment.detail)


def rows(folder: Path) -> Path:
    row = human_row(1, id="1", reference=None, image=None, images=["a.png"], flags=["no_reference"])
    return write_jsonl(folder / "rows.jsonl", [row, {**row, "id": "2", "reference": "Five.", "flags": []}])


def test_show_and_blind_on_the_command_line(root: Path) -> None:
    script = write_jsonl(root / "judge.jsonl", [{"text": VERDICT}])

    def judge(*words: str, out: Path | None = None) -> tuple[list[Judgment], Any]:
        out = out or root / f"{'-'.join(words) or 'plain'}.jsonl"
        done = run("critic", "judge", rows(root), "--judge", script, "--score", "argmax", "--out", out, *words)
        return ([line for _, line in jsonl.read(out, Judgment)] if out.exists() else []), done

    plain, done = judge()
    assert [judgment.images for judgment in plain] == [0] and "--images show" in done.stderr
    assert "left out 1 rows: no reference answer" in done.stderr
    shown, done = judge("--images", "show", "--max-image-pixels", "300")
    assert [judgment.images for judgment in shown] == [1, 1] and done.returncode == 0
    assert shown[0].prompt_hash == prompt_hash("pointwise", True) != plain[0].prompt_hash
    file = root / "--images-show---max-image-pixels-300.jsonl"
    facts = jsonl.facts(file)
    assert facts["images"]["data_root"] == "." and facts["setup"]["decoding"]["images"] == "show"
    assert facts["images"]["max_pixels"] == facts["setup"]["decoding"]["max_image_pixels"] == 300
    blind, done = judge("--images", "blind")
    assert [judgment.images for judgment in blind] == [0, 0] and not done.stderr.count("left out")
    _, again = judge("--images", "blind", out=file)
    assert again.returncode == 2 and "choose another --out" in again.stderr


def test_what_makes_images_ready_is_in_names_and_sidecars(tmp_path: Path, root: Path, scripted: Servers) -> None:
    folder = tmp_path / "judge"
    folder.mkdir()
    facts = {"weights": {"model.safetensors": "1"}}

    def named(*options: str, **pixels: int) -> tuple[str, str | None]:
        (folder / "config.json").write_text(json.dumps({"vision_config": {}}), "utf-8")
        (folder / "preprocessor_config.json").write_text(json.dumps(pixels), "utf-8")
        return own_name(str(folder), facts, options), hash_processor(str(folder), options)

    ways = [
        named(max_pixels=100),
        named(max_pixels=200),
        named("--mm-processor-kwargs", '{"max_pixels": 50}', max_pixels=100),
        named('--mm-processor-kwargs={"max_pixels": 60}', max_pixels=100),
        named("--mm_processor_kwargs", '{"tiles": 4}', max_pixels=100),
        named("--mm-processor-kwargs.max_pixels", "70", max_pixels=100),
    ]
    assert len({name for name, _ in ways}) == len({processor for _, processor in ways}) == len(ways)
    assert named("--max-model-len", "4096", max_pixels=100) == ways[0]
    (folder / "config.json").write_text("{}", "utf-8")
    assert own_name(str(folder), facts) == own_name(str(folder), facts, ["--mm-processor-kwargs", "{}"]), "a text judge"
    server = scripted(lambda _: completion(VERDICT))
    server.told = {"processor": "p" * 64}
    words = ["--base-url", server.url, "--score", "argmax", "--images", "show"]
    run("critic", "judge", rows(root), *words, "--out", root / "out.jsonl", code=0)
    assert jsonl.facts(root / "out.jsonl")["processors"] == {"tiny": "p" * 64}


@pytest.mark.parametrize(
    ("config", "processor", "sees"),
    [
        ({"vision_config": {}}, None, True),
        ({"img_processor": {"name": "clip_vision_model"}, "embd_layer": {"embedding_cls": "image"}}, None, True),
        ({"visual": {"image_size": 448}}, None, True),
        ({"mm_vision_tower": "clip"}, None, True),
        ({"model_type": "molmo"}, {"image_processor_type": "MolmoImageProcessor"}, True),
        ({"model_type": "llama"}, None, False),
        ({"model_type": "audio"}, {"feature_extractor_type": "WhisperFeatureExtractor"}, False),
    ],
)
def test_a_model_that_sees_is_known_by_its_folder(
    tmp_path: Path, config: dict[str, object], processor: dict[str, object] | None, sees: bool
) -> None:
    assert sees_images(str(tmp_path)) is None
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    if processor is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor), "utf-8")
    assert sees_images(str(tmp_path)) is sees


@pytest.mark.parametrize("benchmark", ["convbench", "multiverse", "visitbench", "alignmmbench"])
def test_conversations_are_judged_with_all_their_images(benchmark: str, tmp_path: Path) -> None:
    """Every protocol of every benchmark: a turn with the images of all turns up to it, a whole with all of them."""
    script = write_jsonl(tmp_path / "said.jsonl", [{"text": VERDICT}])
    replies, out = tmp_path / "replies.jsonl", tmp_path / "judged.jsonl"
    run("critic", "infer", sample(benchmark), "--benchmark", benchmark, "--out", replies, "--model", script, code=0)
    # The replies tell where the images lay that their model was shown.
    words = ["--judge", script, "--out", out, "--max-failed", "1", "--images", "show"]
    run("critic", "judge", replies, *words, code=0)
    lines = [line for _, line in jsonl.read(out, Judgment)]
    protocols = {line.protocol for line in lines}
    assert {"convbench": "direct", "multiverse": "checklist", "visitbench": "pairwise"}.get(benchmark, "pointwise") in (
        protocols
    )
    most = 0
    for line in lines:
        turns = line.conversation.turns[: line.turn]
        there = len(dict.fromkeys(name for turn in turns for name in turn.images))
        assert line.calls and all(call.images == there for call in line.calls), line.verdict
        assert line.setup.decoding.images == "show"
        most = max(most, there)
    assert most >= (2 if benchmark == "visitbench" else 1)


def test_where_images_lie_is_kept_without_this_machine_s_paths(tmp_path: Path, scripted: Servers) -> None:
    study = tmp_path / "study"
    (study / "pictures").mkdir(parents=True)
    Pillow.new("RGB", (8, 8)).save(study / "pictures/a.png")
    rows = write_jsonl(study / "rows.jsonl", [human_row(1, image="a.png"), human_row(2, image="gone.png")])
    out, words = study / "runs/out.jsonl", ["--images", "show", "--data-root", study / "pictures"]
    server = scripted(lambda body: completion(VERDICT))
    done = run("critic", "judge", rows, "--out", out, "--judge", server.url, "--score", "argmax", *words)
    assert done.returncode == 3 and "image_missing" in out.read_text("utf-8"), done.stderr
    facts = jsonl.facts(out)
    assert facts["images"]["data_root"] == "../pictures" and facts["responses"]["file"] == "../rows.jsonl"
    assert run("critic", "audit", out, "--out", study / "audit").returncode == 3
    for path in (*(study / "runs").iterdir(), *(study / "audit").iterdir()):
        assert str(tmp_path) not in path.read_text("utf-8"), path
    part, whole = study / "runs/part.jsonl", study / "whole.jsonl"
    run("critic", "judge", rows, "--out", part, "--judge", server.url, "--score", "argmax", "--shard", "1/1", *words)
    assert run("critic", "merge", part, "--out", whole).returncode == 3
    assert jsonl.facts(whole)["images"]["data_root"] == "pictures", "seen from its own folder"


def test_images_are_found_where_they_were_shown_also_in_a_study_that_moved(tmp_path: Path, scripted: Servers) -> None:
    study, file = tmp_path / "study", "data/samples/convbench/ConvBench.csv"
    shutil.copytree(ROOT / "data/samples/convbench", study / "pictures")
    words = ["--benchmark", "convbench", "--limit", "1", "--data-root", study / "pictures"]
    server = scripted(lambda body: completion(VERDICT))
    run("critic", "infer", ROOT / file, "--out", study / "runs/a.jsonl", "--base-url", server.url, *words, code=0)
    study.rename(tmp_path / "moved")
    replies, how = tmp_path / "moved/runs/a.jsonl", ["--protocol", "direct", "--images", "show", "--judge", server.url]
    run("critic", "judge", replies, "--benchmark", "convbench", "--out", tmp_path / "judged.jsonl", *how, code=0)
