"""critic annotate: rows -> people's labels, on a page of this process, planned and kept in one SQLite file.

critic annotate rows.jsonl --db labels.sqlite --scheme pointwise --raters 3 --overlap 0.2
critic annotate --db labels.sqlite --export labels.jsonl
"""

import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from critic import jsonl
from critic.errors import UsageError, quoted
from critic.human_scored import OwnColumns
from critic.images import Images
from critic.stages.options import Mapped, OwnLanguage, OwnScale
from eval_agreement.annotate.export import export
from eval_agreement.annotate.formats import FORMATS, send, take
from eval_agreement.annotate.plan import plan
from eval_agreement.annotate.schemes import SCHEMES, LabelItem
from eval_agreement.annotate.store import Store

_ROWS = (
    "Rows to label: id, question, response (JSONL, CSV, XLSX); of direct and pairwise_conversation the replies that "
    "critic infer wrote; of review a benchmark's file."
)
_EXPORT = "Write the labels: .jsonl for training and audit, .csv a line a label; with --to a folder."
_NAME = re.compile(r"[\w.-]{1,40}")
_LOCAL = ("127.0.0.1", "localhost", "::1")


def main(
    rows: Annotated[Path | None, typer.Argument(help=_ROWS)] = None,
    db: Annotated[Path, typer.Option(help="Where plan and labels are kept. The same command goes on.")] = Path(
        "labels.sqlite"
    ),
    scheme: Annotated[
        str | None, typer.Option(help=f"What is asked: {', '.join(SCHEMES)}.", show_default="pointwise")
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Replies of another model, for pairwise_conversation.")] = None,
    benchmark: Annotated[str | None, typer.Option(metavar="NAME", help="Whose file it is, for review.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where images are.", show_default="that of the rows")] = None,
    raters: Annotated[int | None, typer.Option(min=1, max=1000, help="How many label.", show_default="1")] = None,
    invite: Annotated[list[str] | None, typer.Option(help="A rater, who gets an unguessable link. Repeatable.")] = None,
    mapped: Mapped = None,
    scale: OwnScale = None,
    lang: OwnLanguage = None,
    overlap: Annotated[float, typer.Option(min=0, max=1, help="Share of the items that every rater labels.")] = 0.0,
    repeat: Annotated[float, typer.Option(min=0, max=0.5, help="Share of a rater's items that comes twice.")] = 0.0,
    checks: Annotated[Path | None, typer.Option(help="Rows with `known`: hidden items with a known answer.")] = None,
    host: Annotated[str, typer.Option(help="Where to listen; from outside raters must be invited.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8765,
    export_to: Annotated[Path | None, typer.Option("--export", help=_EXPORT)] = None,
    to: Annotated[str | None, typer.Option(help=f"Write items for another program: {', '.join(FORMATS)}.")] = None,
    imported: Annotated[list[Path] | None, typer.Option("--import", help="Labels from what --to wrote.")] = None,
) -> int:
    """People's labels of answers, blind and planned in advance: a page for each rater, or sheets.

    \b
    critic annotate rows.jsonl --db labels.sqlite --raters 3 --overlap 0.2 --repeat 0.05
    critic annotate --db labels.sqlite --export labels.jsonl
    critic annotate --db labels.sqlite --to xlsx --export sheets
    """
    if to is not None and (to not in FORMATS or export_to is None):
        raise UsageError(f"--to {to}: expected one of {', '.join(FORMATS)}, and a folder to write with --export")
    store = Store.find(db)
    if rows is not None:
        names = _names(raters, invite or [])
        root = (data_root or rows.parent).resolve()
        wanted = {"scheme": scheme or "pointwise", "raters": names, "overlap": overlap, "repeat": repeat}
        wanted |= {"invited": bool(invite), "data_root": str(root), "benchmark": benchmark}
        wanted["columns"] = msgspec.json.encode(OwnColumns.parse(mapped, scale, lang)).decode()
        _check_invited(host, bool(invite))
        store = _planned(db, store, wanted, {"rows": rows, "against": against, "checks": checks})
    elif scheme or raters or invite or against or benchmark or checks or mapped or scale or lang:
        options = "--scheme, --raters, --invite, --against, --benchmark, --checks, --map, --scale, --lang"
        raise UsageError(f"{options}: are said once, together with the rows")
    if store is None:
        raise UsageError(f"--db {db}: no such database; give the rows to make it")
    facts = store.facts()
    _check_invited(host, facts["invited"])
    images = Images(Path(facts["data_root"])) if facts["images"] else None
    for path in imported or []:
        print(take(store, path))
    if export_to is not None:
        print(send(store, to, export_to, images) if to else f"{export_to}: {export(store, export_to)} lines")
    elif not imported:
        _serve(store, images, host, port)
    return 0


def _check_invited(host: str, invited: bool) -> None:
    if host not in _LOCAL and not invited:
        raise UsageError("--host can be reached from outside: invite raters by name (--invite), or keep to 127.0.0.1")


def _names(raters: int | None, invited: Sequence[str]) -> list[str]:
    if invited and raters:
        raise UsageError("give either --raters or --invite")
    if len(set(invited)) < len(invited) or not all(_NAME.fullmatch(name) for name in invited):
        raise UsageError("--invite: a rater's name is up to 40 letters, digits, dots and hyphens, and each is another")
    return list(invited) or [f"rater-{number}" for number in range(1, (raters or 1) + 1)]


def _planned(db: Path, store: Store | None, options: Mapping[str, Any], files: Mapping[str, Path | None]) -> Store:
    """The database with its plan, made now, or as it is if nothing is asked otherwise. Raises UsageError."""
    for path in filter(None, files.values()):
        if not path.is_file():
            raise UsageError(f"{path}: no such file")
    wanted = {**options, **{name: path and jsonl.sha256(path) for name, path in files.items()}}
    if store is None:
        return _create(db, wanted, files)
    known = store.facts()
    for name, value in wanted.items():
        if known.get(name) != value:
            raise UsageError(f"--db {db}: planned with other {name}, {quoted(known.get(name))}; choose another --db")
    return store


def _create(db: Path, wanted: Mapping[str, Any], files: Mapping[str, Path | None]) -> Store:
    from eval_agreement.annotate.reading import answers_of, items_of  # noqa: PLC0415 - keeps --help fast

    scheme, checks = wanted["scheme"], files["checks"]
    own = msgspec.json.decode(wanted["columns"], type=OwnColumns | None)
    ordinary = items_of(scheme, Path(files["rows"] or ""), files["against"], own, wanted["benchmark"])
    hidden = items_of(scheme, checks, own=own) if checks else []
    answers = answers_of(scheme, hidden)
    ids = [item.id for item in ordinary]
    if twice := answers.keys() & set(ids):
        raise UsageError(f"--checks {checks}: {quoted(min(twice))} is among the rows as well; give both a column id")
    items = [*ordinary, *hidden]
    _check_images(items, Path(wanted["data_root"]))
    tokens = {name: secrets.token_urlsafe(16) if wanted["invited"] else name for name in wanted["raters"]}
    facts = {**wanted, "images": any(item.images for item in items), "owner": secrets.token_urlsafe(16)}
    tasks = plan(ids, list(answers), wanted["raters"], wanted["overlap"], wanted["repeat"])
    db.parent.mkdir(parents=True, exist_ok=True)
    store = Store(db)
    store.create(facts, tokens, items, answers, tasks)
    print(f"{db}: {len(items)} items by the scheme {scheme} for {', '.join(tokens)}", file=sys.stderr)
    return store


def _check_images(items: Sequence[LabelItem], root: Path) -> None:
    """Raises UsageError for an image that is not there, rather than hours later before a rater."""
    for item in items:
        for name in item.images:
            path = root / name
            if not name.startswith("data:") and not (path.is_file() and path.resolve().is_relative_to(root)):
                raise UsageError(
                    f"{item.id}: no image {quoted(name)} under {root} (--data-root FOLDER says where they are)"
                )


def _serve(store: Store, images: Images | None, host: str, port: int) -> None:
    """Serve until Ctrl-C. Raises UsageError where the port is taken or the server is not installed."""
    try:
        import uvicorn  # noqa: PLC0415 - not part of a plain installation

        from eval_agreement.annotate.server import Annotation  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"the page needs: pip install 'critic[annotate]' ({error})") from None
    key, shown = store.facts()["owner"], f"[{host}]" if ":" in host else host
    app = Annotation(store, images).app(["127.0.0.1", "localhost", shown] if host in _LOCAL else ["*"])
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    for token, name in store.raters().items():
        print(f"{name}: http://{shown}:{port}/?rater={token}")
    print(f"owner: http://{shown}:{port}/owner?key={key}", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listening])
