"""critic adopt: models that others trained, in the layouts of their writers, become judges that score as they do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import assert_one_line_error, human_row, human_rows, read_jsonl, run, run_apart, write_jsonl
from msgspec.structs import replace
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from scipy.stats import spearmanr

from critic import jsonl
from critic.backends import Reply, Request, identity
from critic.backends.scripted import ScriptedBackend
from critic.judging.grader import spread_score
from critic.records import Judgment
from critic.stages.options import Endpoint

CLASSIFIER = {"architectures": ["XForSequenceClassification"]}
IDS = torch.tensor([[5, 9, 2, 7, 4]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that writes, with a tokenizer of words and a chat template."""
    folder = tmp_path_factory.mktemp("base") / "llama"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, **sizes)).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


def add_head(base: Path, labels: int) -> Any:
    options = {"num_labels": labels, "ignore_mismatched_sizes": True}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base, **options)
    model.score.weight.data = torch.randn_like(model.score.weight)
    return model


def save_adapter_that_writes(base: Path, folder: Path) -> Any:
    adapter = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(transformers.LlamaForCausalLM.from_pretrained(base), adapter)
    model.save_pretrained(str(folder))
    return model


def save_layout(layout: str, base: Path, folder: Path) -> Any:
    """Save a model with a scoring head as its trainer does, and return that model as it scores."""
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    if layout.startswith("llama-factory"):
        model = add_head(base, 1)
        if layout == "llama-factory adapter":
            model.model = save_adapter_that_writes(base, folder).merge_and_unload().model
        else:
            shutil.copytree(base, folder, dirs_exist_ok=True)
        head = {"v_head.summary.weight": model.score.weight.data, "v_head.summary.bias": torch.ones(1)}
        save_file(head, folder / "value_head.safetensors")
        return model
    if layout == "ms-swift adapter":
        adapter = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj"], init_lora_weights=False)
        model = get_peft_model(add_head(base, 1), adapter)
        model.save_pretrained(str(folder))
        (folder / "tokenizer_config.json").unlink()
        return model.merge_and_unload()
    model = add_head(base, 5 if layout == "five labels" else 1)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("layout", ["trl", "ms-swift adapter", "llama-factory", "llama-factory adapter", "five labels"])
def test_it_scores_as_it_did(layout: str, base: Path, tmp_path: Path) -> None:
    model, out = save_layout(layout, base, tmp_path / "theirs"), tmp_path / "judge"
    before = {file: file.read_bytes() for file in (tmp_path / "theirs").iterdir()}
    done = run("critic", "adopt", tmp_path / "theirs", out, code=0)
    found = "a classifier of 5 labels (Llama" if layout == "five labels" else "a reward model (Llama"
    assert found in done.stdout and f"judge saved in {out}" in done.stdout
    assert before == {file: file.read_bytes() for file in before}, "links must not be written through"
    facts = identity.read_notes(out)
    assert identity.is_classifier(facts) and facts["weights"].keys() == {"model.safetensors"}
    assert facts["recipe"]["forms"].keys() == (
        {"pointwise", "direct_turn", "direct_whole"}
        if layout == "five labels"
        else {"pairwise", "pairwise_turn", "pairwise_whole"}
    )
    adopted = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    with torch.no_grad():
        theirs, ours = model(IDS).logits[0], adopted(IDS).logits[0]
    if layout == "five labels":
        share = theirs.softmax(0)
        expected = float((share * torch.arange(1.5, 10, 2)).sum())
        assert float((ours.softmax(0) * torch.arange(1, 11)).sum()) == pytest.approx(expected, abs=1e-5)
    else:
        assert ours.tolist() == pytest.approx(theirs.tolist(), abs=1e-6)
        assert adopted.config.problem_type == "regression", "vLLM would give a probability"
    assert_one_line_error(run("critic", "adopt", tmp_path / "theirs", out), "exists already")


class Scores(ScriptedBackend):
    """Gives the length of the answer, less 30, as an adopted reward model's score."""

    def __init__(self, folder: Path) -> None:
        super().__init__(self.score)
        self.asked: list[Request] = []
        about = identity.describe(identity.read_notes(folder))
        self.served = replace(self.served, name=folder.name, is_classifier=True, about=about)

    def score(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply(text="", classes=[len(request.messages[-1]["content"]) - 30.0])


def judge(monkeypatch: pytest.MonkeyPatch, folder: Path | None, *words: object, code: int | None = 0) -> list[Scores]:
    """Run a command whose judges are `Scores`, of the folder that it names itself if that is None."""
    opened = list[Scores]()

    def open_scores(self: Endpoint, option: str, judges: Any) -> list[Scores]:
        opened.extend(Scores(folder or Path(name)) for name in judges or [""])
        return opened

    monkeypatch.setattr(Endpoint, "open", open_scores)
    run("critic", *words, code=code)
    return opened


def test_a_reward_model_learns_peoples_scale(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer answers are better, of every language, without references; people rate the better ones higher."""
    save_layout("trl", base, tmp_path / "theirs")
    rows, fresh = (
        write_jsonl(
            tmp_path / f"{start}.jsonl",
            [
                human_row(
                    number,
                    response="x" * (number % 60 + 1),
                    human_score=1 + (number * 7 % 60) // 7 if number % 5 == 0 else 1 + (number % 60) // 7,
                    group=f"g{number}",
                    history=[{"user": "before", "assistant": "> ok"}],
                )
                for number in range(start, start + 120)
            ],
        )
        for start in (0, 1000)
    )
    out = tmp_path / "judge"
    (asked,) = judge(monkeypatch, None, "adopt", tmp_path / "theirs", out, "--calibrate", rows)
    (request, *_), facts = asked.asked, identity.read_notes(out)
    assert [message["role"] for message in request.messages] == ["user", "assistant"] * 2
    assert request.messages[1]["content"] == "> ok" and set(request.messages[3]["content"]) == {"x"}
    assert facts["adopted"]["ordinal"][0] > 0 and len(facts["adopted"]["calibrated_on"]) == 120

    judge(monkeypatch, out, "judge", fresh, "--out", tmp_path / "judged.jsonl")
    lines = read_jsonl(tmp_path / "judged.jsonl")
    people, scores = [line["sample"]["human"]["score"] for line in lines], [line["score"] for line in lines]
    assert spearmanr(people, scores)[0] > 0.8 and sum(abs(a - b) for a, b in zip(people, scores, strict=True)) / 120 < 1
    assert all(abs(sum(line["verdict"]["distribution"]) - 1) < 1e-4 for line in lines)
    raised = [spread_score(score, facts["adopted"]["ordinal"]) for score in range(-30, 30)]
    means = [sum(rating * share for rating, share in enumerate(shares, 1)) for shares in raised]
    assert means == sorted(means)

    # It compares as before, and nobody certifies it on what its map was fitted on.
    judge(monkeypatch, out, "judge", rows, "--out", tmp_path / "seen.jsonl")
    audit = ("critic", "audit", "--out", tmp_path / "audit", "--human")
    assert_one_line_error(
        run(*audit, rows, "--judge", f"j={tmp_path / 'seen.jsonl'}"), "its map was fitted on 120 of the 120 answers"
    )
    run(*audit, fresh, "--judge", f"j={tmp_path / 'judged.jsonl'}", code=0)
    shards = [tmp_path / f"shard{number}.jsonl" for number in (1, 2)]
    for number, shard in enumerate(shards, 1):
        judge(monkeypatch, out, "judge", rows, "--out", shard, "--shard", f"{number}/2")
    run("critic", "merge", *shards, "--out", tmp_path / "merged.jsonl", code=0)
    judge(monkeypatch, out, "judge", rows, "--judge", "a", "--judge", "b", "--out", tmp_path / "panel.jsonl")
    for whole in ("merged.jsonl", "panel.jsonl"):
        done = run(*audit, rows, "--judge", f"j={tmp_path / whole}")
        assert_one_line_error(done, "its map was fitted on 120 of the 120 answers")
    pairs = [human_row(0, response="short", other="a longer one", preference="B", human_score=None)]
    (asked,) = judge(
        monkeypatch,
        out,
        "judge",
        write_jsonl(tmp_path / "p.jsonl", pairs),
        "--prompt",
        "pairwise",
        "--out",
        tmp_path / "p",
    )
    assert read_jsonl(tmp_path / "p")[0]["verdict"]["value"] == "B"
    assert [message["role"] for request in asked.asked for message in request.messages] == ["user", "assistant"] * 2
    against = [{**row, "human_score": 11 - row["human_score"]} for row in read_jsonl(rows)]
    words = ("--calibrate", write_jsonl(tmp_path / "against.jsonl", against))
    judge(monkeypatch, None, "adopt", tmp_path / "theirs", tmp_path / "worse", *words, code=2)
    assert not [*tmp_path.glob("worse*")], "a higher score is no better answer: nothing half-made"
    other = identity.own_name(str(out), {**facts, "adopted": {**facts["adopted"], "ordinal": [1.0, *[0.0] * 10]}})
    assert other != identity.own_name(str(out), facts), "another map is another judge"


@pytest.mark.slow
def test_vllm_scores_as_transformers(tiny_judge: Path, tmp_path: Path) -> None:
    """A whole road with vLLM: adopted, calibrated on people who agree with it, asked in this process."""
    model, out = save_layout("trl", tiny_judge, tmp_path / "theirs").float(), tmp_path / "judge"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    rows, scores = [human_row(number, response="so " * number + "it is") for number in range(12)], dict[str, float]()
    for row in rows:
        chat = [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["response"]}]
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        with torch.no_grad():
            logits = model(tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]).logits
        scores[row["id"]] = float(logits)
    for rank, row in enumerate(sorted(rows, key=lambda row: scores[row["id"]])):
        row["human_score"] = 1 + rank * 9 // 11
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    run_apart("critic", "adopt", tmp_path / "theirs", out, "--calibrate", file, code=0)
    run_apart("critic", "judge", file, "--judge", out, "--out", tmp_path / "judged.jsonl", code=0)
    judged = [line for _, line in jsonl.read(tmp_path / "judged.jsonl", Judgment)]
    assert {line.id: float(line.reply) for line in judged} == pytest.approx(scores, abs=1e-4)
    assert spearmanr([line.score for line in judged], [scores[line.id] for line in judged])[0] > 0.99


def test_a_judge_that_writes_is_asked_in_its_own_words(base: Path, tmp_path: Path, monkeypatch: Any) -> None:
    pack = tmp_path / "theirs_pack"
    pack.mkdir()
    words = {"system": "Be fair.", "template": "Q {{ question }} A {{ response }}", "verdict": r"RESULT\\] ([1-5])"}
    (pack / "scale_5.toml").write_text("".join(f'{key} = "{text}"\n' for key, text in words.items()))
    done = run("critic", "adopt", base, tmp_path / "judge", "--prompt-pack", pack, code=0)
    assert "found: a judge that writes" in done.stdout and "asked in: scale_5\n" in done.stdout
    assert (tmp_path / "judge/model.safetensors").is_symlink()
    save_adapter_that_writes(base, tmp_path / "theirs")
    before = (base / "generation_config.json").stat().st_mtime_ns
    run("critic", "adopt", tmp_path / "theirs", tmp_path / "merged", "--prompt-pack", pack, code=0)
    assert (base / "generation_config.json").stat().st_mtime_ns == before, "links must not be written through"
    about = identity.describe(identity.read_notes(tmp_path / "judge"))
    replies = iter(["Rating: 2 of 5 at first. [RESULT] 3, no: [RESULT] 4", "I give it a 4."])

    def write(request: Request) -> Reply:
        assert request.messages[0] == {"role": "system", "content": "Be fair."} and request.schema is None
        return Reply(text=next(replies))

    def open_writer(self: Endpoint, option: str, judges: Any) -> list[ScriptedBackend]:
        backend = ScriptedBackend(write)
        backend.served = replace(backend.served, about=about)
        return [backend]

    monkeypatch.setattr(Endpoint, "open", open_writer)
    rows = human_rows(tmp_path, 2)
    run("critic", "judge", rows, "--prompt", "scale_5", "--concurrency", 1, "--out", tmp_path / "j", "--max-failed", 1)
    first, second = read_jsonl(tmp_path / "j")
    assert (first["verdict"]["rating"], first["verdict"]["scale"]) == (7.75, [1, 5]), "4 of 1..5"
    assert second["verdict"]["failure"] == "no_verdict", "a number elsewhere is no verdict"


@pytest.mark.parametrize(
    ("file", "content", "words", "message"),
    [
        ("config.json", None, [], "no model folder"),
        (
            "config.json",
            {"architectures": ["X"], "auto_map": {"AutoModel": "x.X"}},
            [],
            "needs code of its own (AutoModel)",
        ),
        ("config.json", {**CLASSIFIER, "id2label": {str(n): "" for n in range(12)}}, [], "12 labels"),
        ("config.json", {**CLASSIFIER, "problem_type": "regression"}, [], "a reward model of 2 scores"),
        ("value_head.safetensors", torch.ones(2, 16), [], "a reward model of 2 scores"),
        ("config.json", "torn", [], "config.json: not JSON"),
        ("tokenizer_config.json", None, [], "no tokenizer; copy"),
        ("tokenizer_config.json", {"x": 1}, [], "no chat template; copy"),
        (
            "adapter_config.json",
            {"base_model_name_or_path": "me/away"},
            [],
            "an adapter over me/away; name its folder: --base",
        ),
        ("value_head.bin", {}, [], "a pickle, which is not read"),
        (None, None, [], "a judge that writes (LlamaForCausalLM), which has its own words: add --prompt-pack"),
        (None, None, ["--prompt-pack", "away"], "away: no folder with .toml files"),
        (None, None, ["--prompt-pack", "away", "--calibrate", "ROWS"], "no answer has people's score"),
        ("config.json", CLASSIFIER, ["--calibrate", "RATED"], "has a scale of its own"),
        ("config.json", CLASSIFIER, ["--prompt-pack", "away"], "leave out --prompt-pack"),
        ("config.json", {"architectures": ["X"], "model_type": "none", "id2label": {"0": ""}}, [], "--prompt-pack"),
    ],
)
def test_what_cannot_be_adopted_is_one_line(
    file: str | None, content: Any, words: list[str], message: str, base: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(base, folder)
    if file is not None:
        (folder / file).unlink(missing_ok=True)
        if isinstance(content, torch.Tensor):
            save_file({"v_head.summary.weight": content}, folder / file)
        elif content is not None:
            (folder / file).write_text("{" if content == "torn" else json.dumps(content))
    plain = human_row(0)
    del plain["human_score"]
    rows = {"ROWS": write_jsonl(tmp_path / "plain.jsonl", [plain]), "RATED": human_rows(tmp_path, 2)}
    done = run("critic", "adopt", folder, tmp_path / "judge", *(rows.get(word, word) for word in words))
    assert_one_line_error(done, message)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith("judge")], "nothing half-made"
