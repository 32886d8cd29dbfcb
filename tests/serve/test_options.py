"""No spelling of an option of vLLM goes round what the server guards: vLLM's own parser is the oracle."""

import json
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import options

from critic.backends import vllm
from critic.backends.identity import OTHERS, hash_processor, own_name, read_notes
from critic.errors import UsageError

FACTS = {"weights": {"model.safetensors": "1"}}
OURS = ["--model", "m", "--host", "127.0.0.1", "--port", "8000", "--served-model-name", "m"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"recipe": null}', '{"recipe": {"forms": {}}}'])
def test_notes_of_a_training_that_are_none_are_one_line(tmp_path: Path, text: str) -> None:
    for name in ("config.json", "tokenizer_config.json", "critic.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=r"critic\.json: "):
        read_notes(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A judge of text, from outside."""
    judge = tmp_path / "judge"
    judge.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (judge / name).write_text("{}")
    return judge


@pytest.fixture(scope="module")
def parser() -> Any:
    pytest.importorskip("vllm", reason="needs a serve extra")
    return options.build_parser()


def names(parser: Any) -> dict[str, list[str]]:
    """The guarded settings of the parser and what they are called on the command line."""
    flags = {action.dest: action.option_strings for action in parser._actions if action.dest in options.GUARDED}
    assert flags.keys() == options.GUARDED.keys(), "vLLM has another name for one"
    assert {"host", "port", "uds", "root_path", "api_key"} <= flags.keys()
    return flags


def spellings(name: str) -> Iterator[list[str]]:
    for end in range(3, len(name) + 1):
        for short in {name[:end], name[:end].replace("-", "_").replace("__", "--", 1)}:
            yield from ([short], [short, "7"], [f"{short}=7"], [short, "7", "--"], ["--max-num-seqs", "8", short, "7"])


def moved(parser: Any, extra: list[str]) -> list[str]:
    """The guarded settings that vLLM would start with other than ours."""
    try:
        settings = vars(parser.parse_args([*OURS, *extra, *options.LAYER]))
    except SystemExit:
        return []
    wanted = vars(parser.parse_args([*OURS, *options.LAYER]))
    return [name for name in (*options.GUARDED, "middleware") if settings[name] != wanted[name]]


def test_no_spelling_moves_the_server_or_its_key(parser: Any) -> None:
    seen: dict[str, int] = {}
    for setting, strings in names(parser).items():
        for name in strings:
            for extra in spellings(name):
                for changed in moved(parser, extra):
                    seen[changed] = seen.get(changed, 0) + 1
                    with pytest.raises(UsageError):
                        options.check(parser, OURS, extra)
        assert not strings or seen.get(setting, 0) >= 2, f"{setting} was never moved: the test shows nothing"


def test_a_file_of_options_is_read_as_vllm_reads_it(parser: Any, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("max-num-seqs: 8\n")
    options.check(parser, OURS, ["--config", str(file)])
    file.write_text("max-num-seqs: 8\nuds: /tmp/x\n")
    with pytest.raises(UsageError, match="--uds"):
        options.check(parser, OURS, ["--config", str(file)])


def test_other_options_pass_and_the_layer_stays_outermost(parser: Any) -> None:
    options.check(parser, OURS, [])
    options.check(parser, OURS, ["--tensor-parallel-size", "2", "--middleware", "their.Own", "-O0"])
    for extra in (["--"], ["--nope"], ["--tensor-parallel-size", "two"], ["--help"], ["--config", "none.yaml"]):
        with pytest.raises(UsageError, match="behind the --"):
            options.check(parser, OURS, extra)


def test_an_adapter_of_another_base_or_name_is_refused(parser: Any, tmp_path: Path) -> None:
    extra, commit = ["--enable-lora", "--lora-modules", f"judge={tmp_path}"], "a" * 40
    (tmp_path / "adapter_config.json").write_text(json.dumps({"revision": None}))
    options.check(parser, OURS, extra, ["gpt-4"])
    with pytest.raises(UsageError, match=f"judge would be two judges: this one .* and {tmp_path}"):
        options.check(parser, OURS, extra, ["gpt-4", "judge"])
    (tmp_path / "adapter_config.json").write_text(json.dumps({"revision": commit}))
    options.check(parser, OURS, [*extra, "--revision", commit])
    for said in ([], ["--revision", "main"]):
        with pytest.raises(UsageError, match=f"another revision of its base; add --revision {commit}"):
            options.check(parser, OURS, [*extra, *said])


def test_a_key_that_a_harness_does_not_take_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    options.list_aliases([], ["lmms-eval", "vlmevalkit"], "secret")
    assert re.fullmatch("vlmevalkit: .* only if the key begins with sk-\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "extra", [["--data-parallel-size", "4"], ["-dp=4"], ["--data_parallel_size=1"], ["--api-server-count=4"]]
)
def test_engines_and_processes_are_counted_before_the_dashes(parser: Any, extra: list[str]) -> None:
    ours = [*OURS, "--data-parallel-size", "2"]
    settings = parser.parse_args([*ours, *options.LAYER])
    assert (settings.data_parallel_size, settings.api_server_count) == (2, None), "None: as many as engines"
    with pytest.raises(UsageError, match="--gpus N"):
        options.check(parser, ours, extra)


def test_an_engine_in_here_is_alone_and_compiles_for_long_runs_on_gpus(
    parser: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.llm_engine import LLMEngine

    started: list[Any] = []

    def start(*words: Any) -> None:
        started.append(words)
        raise ZeroDivisionError

    monkeypatch.setattr(vllm, "find_build", lambda: "vllm")
    monkeypatch.setattr(LLMEngine, "from_engine_args", start)
    for rows, extra, eager in ((10, [], True), (5000, [], False), (10, ["--no-enforce-eager"], False)):
        backend = vllm.VllmBackend(folder, extra)
        backend.rows = rows
        with pytest.raises(ZeroDivisionError):
            backend._start()
        assert (started[-1][0].enforce_eager, started[-1][1].name) == (eager, "LLM_CLASS")
    for spelt in (["-dp", "8"], ["--data_parallel_size=8"]):
        with pytest.raises(UsageError, match="--gpus N"):
            vllm.VllmBackend(folder, spelt)


class Plain:
    """A parser that takes `--name=value`, the value in JSON, and knows our own default."""

    def parse_args(self, words: list[str]) -> Namespace:
        settings: dict[str, Any] = dict.fromkeys((*options.GUARDED, *OTHERS))
        settings |= {"middleware": options.LAYER[1:], "override_generation_config": {"temperature": 0.0}}
        said = (word.removeprefix("--").partition("=") for word in words if "=" in word)
        return Namespace(**settings | {name: json.loads(value) for name, _, value in said})


def test_each_setting_that_makes_another_judge_is_known_to_vllm(parser: Any) -> None:
    assert {*OTHERS} <= {action.dest for action in parser._actions}


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_that_makes_another_judge_is_in_its_name(name: str, folder: Path) -> None:
    def named(*extra: str) -> str:
        return own_name(str(folder), FACTS, extra, options.check(Plain(), OURS, [*extra]))

    plain = named()
    cold, other = (f'--{name}={{"temperature": 0, "other": {value}}}' for value in (1, 2))
    assert len({plain, named(cold), named(other)}) == 3
    assert plain == named("--max_num_seqs=8") == own_name(str(folder), FACTS)
    assert named(cold) == named(cold, "--gpu_memory_utilization=0.5")


def test_a_file_that_makes_another_judge_is_known_by_what_is_in_it(folder: Path, tmp_path: Path) -> None:
    def named(file: Path, text: str) -> str:
        file.write_text(text)
        extra = [f"--chat_template={json.dumps(str(file))}"]
        return own_name(str(folder), FACTS, extra, options.check(Plain(), OURS, extra))

    ways = [named(tmp_path / "a.jinja", "x"), named(tmp_path / "a.jinja", "y"), named(tmp_path / "b.jinja", "x")]
    assert ways[0] == ways[2] != ways[1]


def test_a_judge_of_text_whose_template_or_tokenizer_was_changed_has_another_name(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    trained = {**FACTS, "processor": hash_processor(str(folder))}
    plain = own_name(str(folder), trained)
    assert plain == own_name(str(folder), FACTS), "judges of before keep their names"
    (folder / "chat_template.jinja").write_text("{{ messages[0] }}")
    changed = own_name(str(folder), trained)
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    assert len({plain, changed, own_name(str(folder), trained)}) == 3


def test_a_parser_that_lost_the_layer_is_not_trusted() -> None:
    options.check(Plain(), OURS, ["--even=1"])
    with pytest.raises(UsageError, match="layer"):
        options.check(Plain(), OURS, ["--middleware=[]"])
