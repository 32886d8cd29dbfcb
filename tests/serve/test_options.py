"""No spelling of an option of vLLM goes round what the server guards: vLLM's own parser is the oracle."""

import importlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT

from critic.errors import UsageError

sys.path.insert(0, str(ROOT / "serve"))
options: ModuleType = importlib.import_module("options")

OURS = ["--model", "m", "--host", "127.0.0.1", "--port", "8000", "--served-model-name", "m"]


@pytest.fixture(scope="module")
def parser() -> Any:
    pytest.importorskip("vllm", reason="needs a serve extra")
    return options.vllm_parser()


def names(parser: Any) -> dict[str, list[str]]:
    """The guarded settings of the parser and what they are called on the command line."""
    found = {action.dest: action.option_strings for action in parser._actions if action.dest in options.GUARDED}
    assert found.keys() == options.GUARDED.keys(), "vLLM has another name for one"
    assert {"host", "port", "uds", "root_path", "api_key", "enable_log_requests", "enable_log_outputs"} <= found.keys()
    return found


def spellings(name: str) -> Iterator[list[str]]:
    for end in range(3, len(name) + 1):
        for short in {name[:end], name[:end].replace("-", "_").replace("__", "--", 1)}:
            yield from ([short], [short, "7"], [f"{short}=7"], [short, "7", "--"], ["--max-num-seqs", "8", short, "7"])


def moved(parser: Any, extra: list[str]) -> list[str]:
    """The guarded settings that vLLM would start with other than ours."""
    try:
        found = vars(parser.parse_args([*OURS, *extra, *options.LAYER]))
    except SystemExit:
        return []
    wanted = vars(parser.parse_args([*OURS, *options.LAYER]))
    return [name for name in (*options.GUARDED, "middleware") if found[name] != wanted[name]]


def test_no_spelling_moves_the_server_its_key_or_the_log(parser: Any) -> None:
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


class Plain:
    """A parser that takes `--name=value`, the value in JSON, and knows our own default."""

    def parse_args(self, words: list[str]) -> Namespace:
        found: dict[str, Any] = dict.fromkeys((*options.GUARDED, *options.CERTIFIED, "enable_auto_tool_choice"))
        found |= {"middleware": options.LAYER[1:], "override_generation_config": {"temperature": 0.0}}
        said = (word.removeprefix("--").partition("=") for word in words if "=" in word)
        return Namespace(**found | {name: json.loads(value) for name, _, value in said})


def test_each_setting_that_makes_another_judge_is_known_to_vllm(parser: Any) -> None:
    assert {*options.CERTIFIED} <= {action.dest for action in parser._actions}


@pytest.mark.parametrize("name", options.CERTIFIED)
def test_a_certificate_holds_for_no_other_judge(name: str) -> None:
    extra = [f'--{name}={{"temperature": 0, "other": true}}']
    assert options.check(Plain(), OURS, extra).greedy
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} makes another judge"):
        options.check(Plain(), OURS, extra, certified=True)
    options.check(Plain(), OURS, ["--max_num_seqs=8"], certified=True)


def test_what_the_layer_has_to_know_is_told() -> None:
    assert options.check(Plain(), OURS, []) == (False, True) == options.check_apart(OURS, [])
    assert options.check(Plain(), OURS, ["--enable_auto_tool_choice=true"]) == (True, True)
    for given in ('{"temperature": 0.7}', '{"top_p": 0.5}', "null"):
        assert options.check(Plain(), OURS, [f"--override_generation_config={given}"]) == (False, False)


def test_a_parser_that_lost_the_layer_is_not_trusted() -> None:
    class Parser:
        def parse_args(self, words: list[str]) -> Namespace:
            lost = [] if "--odd" in words else options.LAYER[1:]
            found = dict.fromkeys((*options.GUARDED, "override_generation_config"))
            return Namespace(**found, middleware=lost, enable_auto_tool_choice=False)

    options.check(Parser(), OURS, ["--even"])
    with pytest.raises(UsageError, match="layer"):
        options.check(Parser(), OURS, ["--odd"])
