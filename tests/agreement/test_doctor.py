"""critic doctor: a file, a folder or a server in ten lines, with the next command; nothing raises."""

import json
from pathlib import Path

from conftest import ROOT, Servers, certify, completion, run

from critic.backends.identity import own_name, read_notes

NOTES = {"recipe": {"max_source_tokens": 9, "max_target_tokens": 9, "forms": {"pointwise@en": 1.0}}, "tie_band": 0.5}
FILES = {
    "mine.csv": "question,answer,rater1,rater2,gpt4\n1?,a,1,2,1\n2?,a,5,2,4\n",
    "answers.csv": "question,answer,reference\na?,b,c\n",
    "torn.json": "[{",
    "photo.bin": "\0",
    "judge/config.json": '{"model_type": "llama"}',
    "judge/tokenizer_config.json": "{}",
    "judge/critic.json": json.dumps(NOTES),
    "torn/critic.json": "{",
    ".deepeval/.latest_test_run.json": (ROOT / "tests/agreement/shapes/deepeval.json").read_text("utf-8"),
    "tables/a.csv": "ask,winner\n1?,model_a\n",
}
SAID = f"""mine.csv: scores|people: rater2 on 1..5|: 0 rows, 0 with|left out 2: no reference|next: critic audit mine.csv
answers.csv: scores|no critic audit: no column holds people's|: 1 rows, 0 with|next: critic judge answers.csv
torn.json: scores|no critic audit: not .json: JSONDecodeError|written again|2
photo.bin: nothing that critic reads|next: critic doctor FILE|2
mine.cvs: no such file or folder; did you mean mine.csv?|next: critic doctor FILE|2
judge: a judge|gives one score of each|forms: pointwise|missing: a certificate|next: critic serve judge
torn: a judge|no model: torn is no model folder: config.json and|2
.deepeval: results of deepeval|as judge: Correctness [GEval] on 0..1|next: critic audit people.csv .deepeval
tables: a folder of tables|required field `id`; name the file's own columns (ask, winner), as in --map COLUMN=question|2
{ROOT}/tests/records/judgments.jsonl: judgments|next: critic audit
{ROOT}/tests/records/model_turns.jsonl: replies of|next: critic judge
{ROOT}/data/samples/multiverse/conversations.jsonl: questions of|next: critic run multiverse
http://127.0.0.1:9/v1: a server|no server: no OpenAI-compatible server|next: critic serve FOLDER|2"""


def test_doctor_says_what_it_is_what_it_lacks_and_the_next_command(tmp_path: Path, scripted: Servers) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    server = scripted(lambda body: completion("so")).url
    for case in [*SAID.splitlines(), f"{server}: a server|images: unknown|--judge {server} --out"]:
        start, *parts = case.split("|")
        refused = parts[-1] == "2"
        done = run("critic", "doctor", start.partition(": ")[0], cwd=tmp_path)
        assert done.stdout.startswith(start) and not done.stderr and done.returncode == 2 * refused, done
        assert all(part in done.stdout for part in ["\n  next: ", *parts][: len(parts) + 1 - refused]), done.stdout
        assert len(done.stdout.splitlines()) <= 10
    # Its certificate may stand beside a judge; that of another judge is none of its own.
    judge = tmp_path / "judge"
    certify(tmp_path / "other.json", "other@1")
    assert "missing: a certificate" in run("critic", "doctor", "judge", cwd=tmp_path).stdout
    certify(tmp_path / "own.json", own_name(str(judge), read_notes(judge)))
    assert "certificate: judge, prompt pointwise@" in run("critic", "doctor", "judge", cwd=tmp_path).stdout
