"""critic pack: a prompt pack from the texts in a benchmark's own modules, which are read, never run.

critic pack clone --mapping mapping.toml                 # writes the mapping's beginning, to be filled in
critic pack clone --mapping mapping.toml --out my-pack   # then the pack, for critic judge --prompt-pack
"""

import ast
import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# or 'a text in single quotes', as it stands.
# Optional: system = "CONSTANT" for a system message; before = ["CONSTANT", …] for messages between it and the prompt,
# of user and assistant in turn (a preamble, examples; "CONSTANT in OTHER" where it stands in the other's only
# placeholder); turn = 2 where the prompt is that of one turn alone;
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


def constants(*paths: Path) -> dict[str, str]:
    """The texts in Python modules, or in those of a folder, by name, read without running them: NAME, CLASS.NAME,
    FUNCTION.NAME, NAME[0], NAME.KEY, FUNCTION.content of a chat message, FUNCTION.return; NAME#1, NAME#2 … where there
    are several, and MODULE:NAME where another module has the name already.

    What a text is put together from by f-string, .format or + is a placeholder {code}. Raises UsageError for a file
    that is no Python, and where there are none.
    """
    found: dict[str, str] = {}
    for path in modules(paths):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: cannot be read as Python: {error}") from None
        texts: dict[str, list[str]] = {}
        for name, text in _assigned(tree.body, ""):
            texts.setdefault(name, []).append(text)
        here = {name: some[-1] for name, some in texts.items()}  # as the module would leave it
        for name, some in texts.items():
            here |= {f"{name}#{number}": text for number, text in enumerate(some, 1) if some[1:]}
        found |= {f"{path.stem}:{name}" if name in found else name: text for name, text in here.items()}
    if not found:
        raise UsageError(f"{', '.join(map(str, paths))}: no string constants")
    return found


def modules(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and the modules in folders."""
    return [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]


def _assigned(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _assigned(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield from _strings(prefix + target.id, node.value)
            yield from _contents(node.value, prefix)
        elif isinstance(node, ast.Expr | ast.Return) and node.value is not None:
            if isinstance(node, ast.Return) and (text := _text(node.value)) is not None:
                yield f"{prefix}return", text
            yield from _contents(node.value, prefix)
        else:  # if, for, with, try and the like
            for inner in ("body", "orelse", "handlers", "finalbody"):
                yield from _assigned(getattr(node, inner, []), prefix)


def _contents(node: ast.expr, prefix: str) -> Iterator[tuple[str, str]]:
    """The texts of chat messages, {"role": …, "content": text}."""
    for one in ast.walk(node):
        if isinstance(one, ast.Dict):
            keyed = {key.value: value for key, value in zip(one.keys, one.values, strict=True)
                     if isinstance(key, ast.Constant)}  # fmt: skip
            if "role" in keyed and (text := _text(keyed.get("content"))) is not None:
                yield f"{prefix}content", text


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


def _text(node: ast.expr | None) -> str | None:
    """What an expression says that begins or ends in a string, None for any other."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum(left, right)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format"), args=args, keywords=named
        ):
            return _formatted(text, args, {one.arg: one.value for one in named})
    return None


def _sum(*sides: ast.expr) -> str | None:
    said = [_text(side) for side in sides]
    if not any(text is not None for text in said):
        return None
    return "".join(f"{{{ast.unparse(side)}}}" if text is None else text for side, text in zip(sides, said, strict=True))


def _formatted(text: str, args: Sequence[ast.expr], named: Mapping[str | None, ast.expr]) -> str | None:
    """What str.format makes of a text, with placeholders for its arguments; None for fields that are not plain."""
    made, given = "", iter(args)
    try:
        for plain, name, _, _ in string.Formatter().parse(text):
            made += plain
            if name is not None:
                value = args[int(name)] if name.isdigit() else named[name] if name else next(given)
                made += f"{{{ast.unparse(value)}}}"
    except (ValueError, LookupError, StopIteration):
        return None
    return made


def beginning(found: Mapping[str, str], module: str) -> str:
    """A mapping file for these constants, to be filled in."""
    shown = {"kinds": ", ".join(KINDS), "raw": ", ".join(RAW), "by_turn": ", ".join(RAW_BY_TURN)}
    lines = [_HEAD.format(module=module, **shown)]
    for name, text in found.items():
        if f"{name}#1" in found:
            continue
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
            value = placeholders[place]
            made += value.strip("'") if value.startswith("'") else f"{{{{ {value} }}}}"
    return made


def _checked(place: str, mapped: Mapped, found: Mapping[str, str]) -> None:
    """Raises UsageError for a mapping that does not fit the module or our prompts."""
    if mapped.kind not in KINDS:
        raise UsageError(f"{place}: kind {mapped.kind!r}; choose {', '.join(KINDS)}")
    if len(mapped.before) % 2 or (mapped.turn and mapped.backed):
        raise UsageError(f"{place}: before names a user's and an assistant's message in turn; turn or backed, not both")
    named = (part for one in mapped.before for part in one.split(" in "))
    for name in filter(None, (mapped.constant, mapped.system, *named)):
        if name not in found:
            raise UsageError(f"{place}: no string constant {name!r} in the module; there is {', '.join(found)}")
    known = re.compile(rf"raw\.(?:{'|'.join(RAW)})|raw\.(?:{'|'.join(RAW_BY_TURN)})\[\d\]|'[^'{{}}]*'")
    for name, value in mapped.placeholders.items():
        if not name or name not in found[mapped.constant] + found.get(mapped.system, ""):
            raise UsageError(f"{place}: placeholder {name!r} is not in the constant")
        if not known.fullmatch(value):
            raise UsageError(f"{place}: placeholder {name!r} is {value!r}; expected raw. and one of {', '.join(RAW)}")


def _message(place: str, name: str, found: Mapping[str, str]) -> str:
    """A message before a prompt: a constant, or one in the only placeholder of another."""
    text, _, around = name.partition(" in ")
    if not around:
        return found[text]
    parts = _PLACEHOLDER.split(found[around])
    if len(parts) != 2:
        raise UsageError(f"{place}: {around} has {len(parts) - 1} placeholders; expected one, for {text}")
    return found[text].join(parts)


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
        said = [_message(place, name, found) for name in one.before]
        before = [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)]
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
    module: Annotated[
        list[Path],
        typer.Argument(help="The benchmark's own modules (.py), or a folder such as its clone; read, never run."),
    ],
    mapping: Annotated[
        Path, typer.Option(help="Which constant becomes which prompt; begun for you where it is not there.")
    ],
    out: Annotated[Path | None, typer.Option(help="The folder of the pack.")] = None,
) -> int:
    """A prompt pack from the texts in a benchmark's own modules, for critic judge --prompt-pack."""
    found = constants(*module)
    if not mapping.is_file():
        jsonl.write_text(mapping, beginning(found, ", ".join(one.name for one in module)))
        print(f"{mapping}: {len(found)} constants; fill it in, then run this again with --out FOLDER")
        return 0
    if out is None:
        raise UsageError(f"{mapping} is there; give --out FOLDER for the pack")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"--out {out}: {'not empty' if out.is_dir() else 'is a file; expected a folder'}")
    made = files(mapping, found)
    source = "".join(f"# From {one.name}, sha256 {jsonl.sha256(one)}, by critic pack.\n" for one in modules(module))
    out.mkdir(parents=True, exist_ok=True)
    for path, content in made.items():
        jsonl.write_text(out / path, source + _written(content))
    pack = open_pack(out)
    print(f"{pack}: {', '.join(made)}")
    if missing := lacks(pack):
        print(f"it lacks {', '.join(missing)}: judging asks by ours")
    return 0
