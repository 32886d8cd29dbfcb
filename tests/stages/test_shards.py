"""Parts of a run on many machines, and the whole that they make."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Done, assert_one_line_error, human_row, run, write_jsonl

from critic import jsonl
from critic.records import Judgment
from critic.stages.run import Shard

CONVERSATIONS = ROOT / "data/samples/convbench/ConvBench.csv"


def rows(path: Path, count: int = 60) -> Path:
    """Three answers to each question, which is a group."""
    same = {"reference": "One apple.", "image": None}
    answers = [
        human_row(n, group=f"g{n // 3}", question=f"What is {n // 3}?", id=f"r{n}", response=f"{n} apples", **same)
        for n in range(count)
    ]
    return write_jsonl(path / "rows.jsonl", answers)


def replies(path: Path, *ratings: int) -> Path:
    texts = [{"text": f'{{"Rating": {rating}, "Reason": "fine"}}'} for rating in ratings]
    return write_jsonl(path / f"judge{ratings[0]}.jsonl", texts)


def judge(path: Path, out: str, *words: object, code: int | None = None) -> Done:
    data, scripted = path / "rows.jsonl", path / "judge3.jsonl"
    data = data if data.is_file() else rows(path)
    scripted = scripted if scripted.is_file() else replies(path, 3, 5, 7, 8)
    more = () if "--judge" in words else ("--judge", scripted)
    return run("critic", "judge", data, "--out", path / out, "--score", "argmax", *more, *words, code=code)


def parts(path: Path, count: int, *words: object) -> list[Path]:
    files = []
    for number in range(1, count + 1):
        judge(path, f"part.{number}.jsonl", "--shard", f"{number}/{count}", *words, code=0)
        files.append(path / f"part.{number}.jsonl")
    return files


def merge(files: list[Path], *words: object, code: int | None = None) -> Done:
    return run("critic", "merge", *files, "--out", files[0].parent / "whole.jsonl", *words, code=code)


def lines(path: Path) -> list[bytes]:
    return sorted(path.read_bytes().splitlines())


@pytest.mark.parametrize("form", ["pointwise", "pairwise"])
def test_the_merged_file_has_the_lines_of_an_unsharded_run(tmp_path: Path, form: str) -> None:
    if form == "pairwise":
        texts = [{"text": f'{{"Verdict": "{verdict}", "Reason": "so"}}'} for verdict in "AB"]
        write_jsonl(tmp_path / "judge3.jsonl", texts)
    files = parts(tmp_path, 4, "--prompt", form)
    assert judge(tmp_path, "alone.jsonl", "--prompt", form).returncode == 0
    merge(files[::-1], code=0)
    assert lines(tmp_path / "whole.jsonl") == lines(tmp_path / "alone.jsonl")
    whole, alone = jsonl.facts(tmp_path / "whole.jsonl"), jsonl.facts(tmp_path / "alone.jsonl")
    for name in ("rows", "failed", "tokens", "judge", "prompt", "setup", "responses", "shortened_prompts"):
        assert whole[name] == alone[name], name
    assert whole["shards"] == 4 and "shard" not in whole
    groups = [{json.loads(line)["sample"]["conversation"]["group"] for line in lines(file)} for file in files]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 20


def test_rows_without_a_group_are_compared_where_they_ask_the_same(tmp_path: Path) -> None:
    """A pair is in its first row's part, in which the other's may not be."""
    asks = ("id", "question", "reference", "response", "system")
    answers = [
        human_row(n, question=f"What is {n % 9}?", reference=f"{n % 9 // 8}", system=f"m{n // 9}") for n in range(18)
    ]
    plain = [{name: row[name] for name in asks} for row in answers]
    plain[8] |= {"reference": "another"}
    write_jsonl(tmp_path / "rows.jsonl", plain)
    write_jsonl(tmp_path / "judge3.jsonl", [{"text": '{"Verdict": "A", "Reason": "so"}'}])
    done = judge(tmp_path, "alone.jsonl", "--prompt", "pairwise", code=0)
    assert "left out 2 rows: no other answer to the same question" in done.stderr
    samples = [judgment.sample for _, judgment in jsonl.read(tmp_path / "alone.jsonl", Judgment)]
    assert sorted(sample.id for sample in samples) == [f"row-{n}" for n in range(8)]
    for sample in samples:
        assert sample.other and sample.other.system == "m1"
        assert sample.conversation.turns == sample.other.conversation.turns
    files = parts(tmp_path, 3, "--prompt", "pairwise")
    assert merge(files).returncode == 0 and lines(tmp_path / "whole.jsonl") == lines(tmp_path / "alone.jsonl")
    write_jsonl(tmp_path / "rows.jsonl", [{**row, "group": f"g{n}"} for n, row in enumerate(plain)])
    assert_one_line_error(judge(tmp_path, "no.jsonl", "--prompt", "pairwise"), "no usable row to judge")


def test_shards_of_rows_of_which_one_has_an_image_merge(tmp_path: Path) -> None:
    """A shard without an image is judged as the others are: by a judge that is shown what there is."""
    image = next((ROOT / "data/samples/alignmmbench/images").iterdir())
    (tmp_path / image.name).write_bytes(image.read_bytes())
    write_jsonl(tmp_path / "rows.jsonl", [human_row(n, image=None if n else image.name) for n in range(12)])
    files = parts(tmp_path, 3, "--images", "show")
    assert judge(tmp_path, "alone.jsonl", "--images", "show").returncode == 0
    merge(files, code=0)
    assert lines(tmp_path / "whole.jsonl") == lines(tmp_path / "alone.jsonl")
    assert sum(judgment.images for _, judgment in jsonl.read(tmp_path / "whole.jsonl", Judgment)) == 1


def test_shards_agree_in_rows_of_which_some_have_other_scores_now(tmp_path: Path) -> None:
    answers = [json.loads(line) for line in rows(tmp_path).read_text("utf-8").splitlines()]
    files = parts(tmp_path, 2)
    answers[0] |= {"human_score": 1}
    write_jsonl(tmp_path / "rows.jsonl", answers)
    here = Shard(1, 2).of(answers[0]["group"]).number
    assert judge(tmp_path, f"part.{here}.jsonl", "--shard", f"{here}/2").returncode == 0
    assert_one_line_error(merge(files), "made with responses")
    before = files[2 - here].read_bytes()
    parts(tmp_path, 2)
    assert merge(files).returncode == judge(tmp_path, "alone.jsonl").returncode == 0
    assert lines(tmp_path / "whole.jsonl") == lines(tmp_path / "alone.jsonl") and files[2 - here].read_bytes() == before
    other = next(f"h{n}" for n in range(9) if Shard(1, 2).of(f"h{n}").number != here)
    write_jsonl(tmp_path / "rows.jsonl", [answers[0] | {"group": other}, *answers[1:]])
    done = judge(tmp_path, f"part.{here}.jsonl", "--shard", f"{here}/2")
    assert_one_line_error(done, f"judges 'r0', which is not asked for now of shard {here}/2")


def test_what_does_not_fit_together_is_refused_by_name(tmp_path: Path) -> None:
    for words in ("0/4", "5/4", "3", "a/b", "1/0", "-1/4"):
        assert_one_line_error(judge(tmp_path, "o.jsonl", f"--shard={words}"), f"--shard {words}: expected K/N")
    files = parts(tmp_path, 4)
    assert_one_line_error(merge(files[:3]), "no file of shard 4/4")
    assert_one_line_error(merge([files[0], files[3]]), "no file of shard 2/4, 3/4")
    copied = tmp_path / "copy.jsonl"
    copied.write_bytes(files[0].read_bytes())
    jsonl.sidecar(copied).write_bytes(jsonl.sidecar(files[0]).read_bytes())
    assert_one_line_error(merge([*files, copied]), "shard 1/4 is there twice", "copy.jsonl")
    assert judge(tmp_path, "three.jsonl", "--shard", "2/3").returncode == 0
    assert_one_line_error(merge([files[0], tmp_path / "three.jsonl"]), "shard 2/3, but", "shard 1/4")
    assert judge(tmp_path, "alone.jsonl").returncode == 0
    assert_one_line_error(merge([tmp_path / "alone.jsonl"]), "made without --shard")
    jsonl.sidecar(files[3]).unlink()
    assert_one_line_error(merge(files), f"{files[3]}: not finished")
    assert not (tmp_path / "whole.jsonl").exists()


def test_mixtures_and_lines_that_were_moved_doubled_or_lost_are_refused_by_name(tmp_path: Path) -> None:
    files, other = parts(tmp_path, 2), tmp_path / "other.jsonl"
    first, second = (file.read_bytes().splitlines(keepends=True) for file in files)
    for damaged, named in (
        ([*second, second[0]], "is there twice"),
        ([*second, first[0]], "belongs to shard 1/2"),
        (second[1:], "its sidecar says"),
    ):
        files[1].write_bytes(b"".join(damaged))
        assert_one_line_error(merge(files), named)
    words: list[tuple[list[object], str]] = [
        (["--judge", replies(tmp_path, 4)], "judge 'judge4'"),
        (["--prompt", "pointwise_short"], "pointwise_short"),
        ([], "responses"),  # of other rows
        (["--score", "median"], "setup"),  # of probabilities
    ]
    tokens = [{"text": '{"Rating":', "alternatives": []}, {"text": "3", "alternatives": [["3", 0.0]]}]
    for options, named in words:
        rows(tmp_path, 60 if options else 63)
        if named == "setup":
            write_jsonl(tmp_path / "judge3.jsonl", [{"text": '{"Rating":3}', "tokens": tokens}])
        other.unlink(missing_ok=True)
        judge(tmp_path, other.name, "--shard", "2/2", "--max-failed", 1, *options, code=0)
        assert_one_line_error(merge([files[0], other]), "other.jsonl: made with", named)
    assert not (tmp_path / "whole.jsonl").exists()


def test_the_judgments_of_all_folds_are_one_sample(tmp_path: Path) -> None:
    """Each fold's rows were judged by a judge that learned from the others; whatever else was judged is refused."""
    run("data/human_scores.py", rows(tmp_path), "--out", tmp_path / "data", "--folds", 3, code=0)
    folds = [tmp_path / f"data/fold-{number}" for number in (1, 2, 3)]

    def judged(number: int, *taught: Path, rows_of: int | None = None) -> Path:
        out = tmp_path / f"fold-{number}.jsonl"
        source = folds[(rows_of or number) - 1] / "internal.jsonl"
        own = replies(tmp_path, number + 2, 5, 7, 8)
        run("critic", "judge", source, "--judge", own, "--score", "argmax", "--out", out, code=0)
        facts = jsonl.facts(out) | {"trained_on": [jsonl.sha256(file) for file in taught]}
        jsonl.sidecar(out).write_text(json.dumps(facts), "utf-8")
        return out

    def cross_fit(*files: Path) -> Done:
        return merge([*files], "--cross-fit", tmp_path / "data")

    one, two, three = (judged(number, folds[number - 1] / "train.jsonl") for number in (1, 2, 3))
    assert_one_line_error(cross_fit(one, three), "no file with the judgments of fold 2")
    for taught in ([], [folds[0] / "train.jsonl"], [folds[1] / name for name in ("train.jsonl", "internal.jsonl")]):
        two.unlink()
        assert_one_line_error(
            cross_fit(one, judged(2, *taught), three), "fold-2.jsonl: its judge was not trained on fold-2"
        )
    two.unlink()
    seen = run("critic", "audit", judged(2, folds[1] / "internal.jsonl"), "--out", tmp_path / "seen", code=0).stdout
    assert "judge4 was trained on these very rows" in seen
    two.unlink()
    assert_one_line_error(
        cross_fit(one, judged(2, rows_of=1), three), "fold-2.jsonl", "fold-1.jsonl does not hold already"
    )
    two.unlink()
    done = cross_fit(three, judged(2, folds[1] / "train.jsonl"), one)
    assert done.returncode == 0 and "3 folds: no row was judged by a judge that learned from" in done.stdout
    whole = [judgment for _, judgment in jsonl.read(tmp_path / "whole.jsonl", Judgment)]
    assert len({judgment.id for judgment in whole}) == len(whole) == 60
    assert len({judgment.setup.judge for judgment in whole}) == 1 and len({judgment.score for judgment in whole}) > 4
    audited = run("critic", "audit", tmp_path / "whole.jsonl", "--out", tmp_path / "audit", code=0).stdout
    assert "stands for the judges of all folds (judge3, judge4, judge5)" in audited
    assert_one_line_error(merge([one], "--cross-fit", tmp_path), "splits.json")


def test_more_shards_than_groups(tmp_path: Path) -> None:
    """One without groups leaves another's file as it is. What is no count in sidecars is not added up."""
    rows(tmp_path, 6)
    files, said = parts(tmp_path, 7), {"images": {"max_bytes": 7, "max_pixels": 5}, "data_root": "/images"}
    empty = next(number for number, file in enumerate(files, 1) if not file.stat().st_size)
    for file in files:
        jsonl.write_sidecar(file, jsonl.facts(file) | said)
    assert judge(tmp_path, "alone.jsonl").returncode == merge(files).returncode == 0
    assert lines(tmp_path / "whole.jsonl") == lines(tmp_path / "alone.jsonl")
    assert jsonl.facts(tmp_path / "whole.jsonl").items() >= said.items()
    held = next(file for file in files if file.stat().st_size)
    before = held.read_bytes()
    done = judge(tmp_path, held.name, "--shard", f"{empty}/7")
    assert_one_line_error(done, f"{held.name}:1: judges", "not asked for now")
    assert held.read_bytes() == before and jsonl.sidecar(held).is_file()


def test_a_panel_by_shards(tmp_path: Path) -> None:
    panel = ["--judge", replies(tmp_path, 4, 5), "--judge", replies(tmp_path, 9, 7)]
    files = parts(tmp_path, 2, *panel)
    assert judge(tmp_path, "alone.jsonl", *panel).returncode == 0
    assert "left out 4 files of a panel's members" in merge(sorted(tmp_path.glob("part.*.jsonl")), code=0).stderr
    assert lines(tmp_path / "whole.jsonl") == lines(tmp_path / "alone.jsonl")
    assert not merge([tmp_path / f"part.{number}.1.jsonl" for number in (1, 2)], code=0).stderr
    assert lines(tmp_path / "whole.jsonl") == lines(tmp_path / "alone.1.jsonl")
    assert_one_line_error(merge([files[0], tmp_path / "part.2.1.jsonl"]), "part.2.1.jsonl: made with")


def test_conversations_by_shards_from_infer_to_score(tmp_path: Path) -> None:
    said, graded = replies(tmp_path, 6, 7), replies(tmp_path, 3, 5, 8)

    def infer(out: Path, *words: object) -> Done:
        of = ["--benchmark", "convbench", "--condition", "own", "--condition", "no_history"]
        return run("critic", "infer", CONVERSATIONS, *of, "--model", said, "--out", out, *words, code=0)

    def judged(source: Path, out: Path, *words: object) -> Done:
        return run("critic", "judge", source, "--judge", graded, "--protocol", "direct", "--out", out, *words, code=0)

    def sharded(make: Any, name: str) -> list[Path]:
        files = [tmp_path / f"{name}.{number}.jsonl" for number in (1, 2, 3)]
        for number, file in enumerate(files, 1):
            make(file, "--shard", f"{number}/3")
        return files

    def without_seconds(path: Path) -> list[dict[str, Any]]:
        records = [{**json.loads(line), "seconds": 0} for line in lines(path)]
        return sorted(records, key=lambda record: json.dumps(record, sort_keys=True))

    infer(tmp_path / "replies.jsonl")
    run("critic", "merge", *sharded(infer, "replies"), "--out", tmp_path / "whole.jsonl", code=0)
    assert without_seconds(tmp_path / "whole.jsonl") == without_seconds(tmp_path / "replies.jsonl")
    counts = [jsonl.facts(tmp_path / name)["images"] for name in ("whole.jsonl", "replies.jsonl")]
    assert counts[0] == counts[1] > 3
    source = tmp_path / "whole.jsonl"
    judged(source, tmp_path / "alone.jsonl")
    files = sharded(lambda out, *words: judged(source, out, *words), "judged")
    run("critic", "merge", *files, "--out", tmp_path / "judged.jsonl", code=0)
    assert lines(tmp_path / "judged.jsonl") == lines(tmp_path / "alone.jsonl")
    whole, alone = jsonl.facts(tmp_path / "judged.jsonl"), jsonl.facts(tmp_path / "alone.jsonl")
    for name in ("verdicts", "asked", "failed", "setup", "tokens", "not_judged"):
        assert whole[name] == alone[name], name


def test_another_model_s_replies_may_be_elsewhere_on_another_machine(tmp_path: Path) -> None:
    said, graded = replies(tmp_path, 6, 7), write_jsonl(tmp_path / "ab.jsonl", [{"text": '{"Verdict": "A"}'}])
    for name in ("mine", "theirs"):
        of = ["--benchmark", "convbench", "--model", said, "--name", name, "--out", tmp_path / f"{name}.jsonl"]
        assert run("critic", "infer", CONVERSATIONS, *of).returncode == 0
    content = (tmp_path / "theirs.jsonl").read_text("utf-8")
    files = [tmp_path / f"judged.{number}.jsonl" for number in (1, 2, 3)]
    for number, (file, against) in enumerate(zip(files, ("theirs", "copied", "changed"), strict=True), 1):
        other = tmp_path / f"{against}.jsonl"
        other.write_text(content.replace("fine", "good") if against == "changed" else content, "utf-8")
        words = ["--judge", graded, "--protocol", "pairwise", "--against", other, "--max-failed", 1]
        run("critic", "judge", tmp_path / "mine.jsonl", *words, "--shard", f"{number}/3", "--out", file, code=0)
    assert_one_line_error(merge(files), "judged.3.jsonl: made with against")
    jsonl.write_sidecar(files[2], jsonl.facts(files[2]) | {"against": jsonl.facts(files[0])["against"]})
    assert merge(files).returncode == 0


JOBS = ROOT / "data/samples/jobs"


def scripts() -> dict[str, str]:
    """The shell that each example runs, with its array's size."""
    kubernetes = yaml.safe_load((JOBS / "kubernetes.yaml").read_text("utf-8"))
    skypilot = yaml.safe_load((JOBS / "skypilot.yaml").read_text("utf-8"))
    (container,) = kubernetes["spec"]["template"]["spec"]["containers"]
    slurm = (JOBS / "slurm.sh").read_text("utf-8")
    return {"slurm": slurm, "kubernetes": container["args"][0], "skypilot": skypilot["run"]}


@pytest.mark.parametrize(("name", "count"), [("slurm", 64), ("slurm", 8), ("kubernetes", 64), ("skypilot", 3)])
def test_the_jobs_scripts_ask_for_every_shard_once(tmp_path: Path, name: str, count: int) -> None:
    """In bash, with a critic and an srun that say what they were asked, into a folder that is not there yet; what
    critic ends with, the script ends with, and has kept what there is."""
    script = (
        scripts()[name]
        .replace("/data", str(tmp_path / "data"))
        .replace("~", str(tmp_path))
        .replace("sleep 60", "sleep 9")
    )
    assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
    (tmp_path / "data").mkdir()
    asks = 'echo "$@" >> "$SAID"; [ $CODE = 2 ] || install -D /dev/null "${@: -1}"; exit $CODE'
    for program, does in (("critic", asks), ("srun", '"$@"')):
        executable = tmp_path / "bin" / program
        executable.parent.mkdir(exist_ok=True)
        executable.write_text(f"#!/bin/bash\n{does}\n", "utf-8")
        executable.chmod(0o755)
    said = tmp_path / "said"
    for number, code in enumerate((0, 3, 2)):
        told = {
            "slurm": {"SLURM_ARRAY_TASK_ID": number + 1, "SLURM_ARRAY_TASK_MAX": number + 1},
            "kubernetes": {"JOB_COMPLETION_INDEX": number},
            "skypilot": {"SKYPILOT_NODE_RANK": number, "SKYPILOT_NUM_NODES": 3},
        }[name]
        env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "SAID": str(said), "CODE": str(code)}
        words = ["bash", "-c", script, "bash", "rows.jsonl", "judge", str(tmp_path / "data/judged")]
        words += [str(count)] if name == "slurm" and count != 64 else []
        env |= {variable: str(value) for variable, value in told.items()}
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        assert subprocess.run(words, env=env, check=False, timeout=30, **quiet).returncode == code
        assert (tmp_path / f"data/judged/part.{number + 1}.jsonl").is_file() == (code != 2)
    calls = said.read_text("utf-8").splitlines()
    assert [line.partition("--shard ")[2].split()[0] for line in calls] == [f"{n}/{count}" for n in (1, 2, 3)]
    assert [Path(line.split()[-1]).name for line in calls] == [f"part.{n}.jsonl" for n in (1, 2, 3)]
    options = {word for line in calls for word in line.split() if word.startswith("--")}
    assert options <= set(run("critic", "judge", "--help").stdout.split())
