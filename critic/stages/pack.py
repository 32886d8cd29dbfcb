"""critic pack: a prompt pack from the string constants of a benchmark's own prompt module, which is read, never run.

critic pack clone/prompts.py --mapping mapping.toml                 # writes the mapping's beginning, to be filled in
critic pack clone/prompts.py --mapping mapping.toml --out my-pack   # then the pack, for critic judge --prompt-pack
"""

import ast
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct, field

from critic import jsonl
from critic.asking.forms import FORMS
from critic.asking.packs import lacks, open_pack
from critic.asking.render import RAW, RAW_BY_TURN
from critic.errors import UsageError
from critic.records import Language

KINDS = tuple(FORMS)
"""The forms whose prompts a constant can become."""

_ALWAYS_JSON = tuple(
    name for name, form in FORMS.items() if name == "pointwise" or (form.extraction is None and form.scope != "verdict")
)
"""Prompts that ask for our JSON verdict, whatever the mapping says: no second question is asked of rows."""

_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_.\[\]]*\}")

_OPENS_TAG = re.compile(r"\{(?=[{%#]|\Z)")

_HEAD = """\
# Which constants of {module} become which prompts. Fill in `kind` ({kinds}),
# and for each placeholder what stands there; leave `kind` empty for constants that are no prompt.
# raw.NAME of {raw};
# raw.NAME[i] of {by_turn}, turns from 0
# Optional: system = "CONSTANT" for a system message; before = ["CONSTANT", …] for messages between it and the prompt,
# of user and assistant in turn (a preamble, examples); turn = 2 where the prompt is that of one turn alone;
# backed = true where it compares in sight of the reference, and another does without;
# constrained = true where it asks for our JSON verdict;
# format = true where the module fills the text in by str.format, so that {{{{ is a brace.
"""


class Mapped(Struct, kw_only=True, forbid_unknown_fields=True):
    """A constant and the prompt that it becomes; `placeholders` are texts in it, with the variables of ours that stand
    in their places. A prompt that is not `constrained` is answered in free text. `before` names the messages between
    system message and prompt, of user and assistant in turn; `turn` and `backed` as in asking.prompt.VARIANTS."""

    constant: str
    kind: str = ""
    language: Language = "en"
    system: str = ""
    constrained: bool = False
    format: bool = False
    before: list[str] = field(default_factory=list)
    turn: Annotated[int, msgspec.Meta(ge=1, le=4)] | None = None
    backed: bool = False
    placeholders: dict[str, str] = field(default_factory=dict)


class _MappingFile(Struct, kw_only=True, forbid_unknown_fields=True):
    prompt: list[Mapped]


def constants(path: Path) -> dict[str, str]:
    """The string constants of a Python module by name (NAME, CLASS.NAME, NAME[0], NAME.KEY), read without running it.

    Of an f-string each value is a placeholder {code}; sums of constants are whole. Raises UsageError for a file that is
    no Python or has none.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as Python: {error}") from None
    found = dict(_assigned(tree.body, ""))
    if not found:
        raise UsageError(f"{path}: no string constants")
    return found


def _assigned(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield from _strings(prefix + target.id, node.value)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _assigned(node.body, f"{prefix}{node.name}.")


def _strings(name: str, node: ast.expr) -> Iterator[tuple[str, str]]:
    if (text := _text(node)) is not None:
        yield name, text
    elif isinstance(node, ast.List | ast.Tuple):
        for number, one in enumerate(node.elts):
            yield from _strings(f"{name}[{number}]", one)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str | int):
                yield from _strings(f"{name}.{key.value}", value)


def _text(node: ast.expr) -> str | None:
    """What a string expression says, None where that is not known before it runs."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _text(left), _text(right)
            return None if first is None or second is None else first + second
    return None


def beginning(found: Mapping[str, str], module: str) -> str:
    """A mapping file for these constants, to be filled in."""
    shown = {"kinds": ", ".join(KINDS), "raw": ", ".join(RAW), "by_turn": ", ".join(RAW_BY_TURN)}
    lines = [_HEAD.format(module=module, **shown)]
    for name, text in found.items():
        places = dict.fromkeys(_PLACEHOLDER.findall(text))
        lines += ["[[prompt]]", f"constant = {_quoted(name)}", 'kind = ""', 'language = "en"', "[prompt.placeholders]"]
        lines += [*(f'{_quoted(place)} = ""' for place in places), ""]
    return "\n".join(lines)


def template(text: str, placeholders: Mapping[str, str], formatted: bool = False) -> str:
    """A Jinja template that says `text` word for word, with variables in the places of the placeholders; `formatted`:
    as str.format would read the text. Raises ValueError for a field that is no placeholder, or a brace alone."""
    if formatted:
        fields = string.Formatter().parse(text)
        pieces = [(plain, None if name is None else f"{{{name}}}") for plain, name, _, _ in fields]
    else:
        names = sorted(placeholders, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        pieces = list(zip(parts[::2], [*parts[1::2], None], strict=True))
    made = ""
    for plain, place in pieces:
        made += _OPENS_TAG.sub('{{ "{" }}', plain)
        if place is not None:
            if place not in placeholders:
                raise ValueError(f"{place} has nothing to stand in its place")
            made += f"{{{{ {placeholders[place]} }}}}"
    return made


def _checked(place: str, mapped: Mapped, found: Mapping[str, str]) -> None:
    """Raises UsageError for a mapping that does not fit the module or our prompts."""
    if mapped.kind not in KINDS:
        raise UsageError(f"{place}: kind {mapped.kind!r}; choose {', '.join(KINDS)}")
    if len(mapped.before) % 2 or (mapped.turn and mapped.backed):
        raise UsageError(f"{place}: before names a user's and an assistant's message in turn; turn or backed, not both")
    for name in filter(None, (mapped.constant, mapped.system, *mapped.before)):
        if name not in found:
            raise UsageError(f"{place}: no string constant {name!r} in the module; there is {', '.join(found)}")
    known = re.compile(rf"raw\.(?:{'|'.join(RAW)})|raw\.(?:{'|'.join(RAW_BY_TURN)})\[\d\]")
    for name, value in mapped.placeholders.items():
        if not name or name not in found[mapped.constant] + found.get(mapped.system, ""):
            raise UsageError(f"{place}: placeholder {name!r} is not in the constant")
        if not known.fullmatch(value):
            raise UsageError(f"{place}: placeholder {name!r} is {value!r}; expected raw. and one of {', '.join(RAW)}")


def files(mapping: Path, found: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The pack's files by path, as a mapping file says. Raises UsageError naming file and constant."""
    try:
        mapped = msgspec.toml.decode(mapping.read_bytes(), type=_MappingFile).prompt
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{mapping}: {error}") from None
    made: dict[str, dict[str, Any]] = {}
    for one in mapped:
        if not one.kind:
            continue
        place = f"{mapping}: {one.constant}"
        _checked(place, one, found)
        try:
            text, system = (
                template(found.get(name, ""), one.placeholders, one.format) for name in (one.constant, one.system)
            )
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from None
        variant = "_backed" if one.backed else f"_{one.turn}" if one.turn else ""
        path = f"{one.kind}{variant}_{one.language}.toml"
        if path in made:
            raise UsageError(f"{place}: a second {one.kind}{variant} in {one.language}")
        roles = ("user", "assistant")
        before = [{"role": roles[place % 2], "content": found[name]} for place, name in enumerate(one.before)]
        made[path] = {"template": text.replace("$", "$$"), "verbatim": True, "system": system}
        if before:
            made[path]["before"] = before
        if one.kind not in _ALWAYS_JSON:
            made[path]["constrained"] = one.constrained
    if not made:
        raise UsageError(f"{mapping}: no constant has a kind")
    return made


def _written(content: Mapping[str, Any]) -> str:
    tables = [
        f"[[{key}]]\n{_written(one)}" for key, value in content.items() if isinstance(value, list) for one in value
    ]
    plain = (f"{key} = {_quoted(value)}\n" for key, value in content.items() if not isinstance(value, list))
    return "".join([*plain, *tables])


def _quoted(value: str | bool) -> str:
    """A TOML value: its strings are JSON's but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def main(
    module: Annotated[Path, typer.Argument(help="The benchmark's own prompt module (.py); it is read, never run.")],
    mapping: Annotated[
        Path, typer.Option(help="Which constant becomes which prompt; begun for you where it is not there.")
    ],
    out: Annotated[Path | None, typer.Option(help="The folder of the pack.")] = None,
) -> int:
    """A prompt pack from the string constants of a benchmark's own prompt module, for critic judge --prompt-pack."""
    found = constants(module)
    if not mapping.is_file():
        mapping.write_text(beginning(found, module.name), "utf-8")
        print(f"{mapping}: {len(found)} constants; fill it in, then run this again with --out FOLDER")
        return 0
    if out is None:
        raise UsageError(f"{mapping} is there; give --out FOLDER for the pack")
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"--out {out}: not empty")
    made = files(mapping, found)
    source = f"# From {module.name}, sha256 {jsonl.sha256(module)}, by critic pack.\n"
    out.mkdir(parents=True, exist_ok=True)
    for path, content in made.items():
        (out / path).write_text(source + _written(content), "utf-8")
    pack = open_pack(out)
    print(f"{pack}: {', '.join(made)}")
    if missing := lacks(pack):
        print(f"it lacks {', '.join(missing)}: judging asks by ours")
    return 0
