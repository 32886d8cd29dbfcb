"""critic annotate: rows -> people's labels, planned in advance and kept in one SQLite file.

Raters label on a page that this process serves, or in sheets and programs of their own (`--to`, `--import`).

critic annotate rows.jsonl --db labels.sqlite --scheme pointwise --raters 3 --overlap 0.2
critic annotate --db labels.sqlite --export labels.jsonl
"""

import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from critic import jsonl
from critic.errors import UsageError, install_extra, located, notify, quoted
from critic.human_scored import OwnColumns
from critic.images import Images
from critic.stages.options import Mapped, OwnLanguage, OwnScale
from eval_agreement.annotate.formats import FORMATS, export, send, take
from eval_agreement.annotate.plan import plan
from eval_agreement.annotate.schemes import SCHEMES, LabelItem
from eval_agreement.annotate.store import Store

_NAME = re.compile(r"[\w.-]{1,40}")
_LOCAL = ("127.0.0.1", "localhost", "::1")


def main(
    rows: Annotated[Path | None, typer.Argument()] = None,
    db: Path = Path("labels.sqlite"),
    scheme: Annotated[
        str | None, typer.Option(help=f"Labelling scheme: {', '.join(SCHEMES)}.", show_default="pointwise")
    ] = None,
    against: Path | None = None,
    benchmark: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    data_root: Annotated[Path | None, typer.Option(show_default="that of the rows")] = None,
    raters: Annotated[int | None, typer.Option(min=1, max=1000, show_default="1")] = None,
    invite: list[str] | None = None,
    mapped: Mapped = None,
    scale: OwnScale = None,
    lang: OwnLanguage = None,
    overlap: Annotated[float, typer.Option(min=0, max=1)] = 0.0,
    repeat: Annotated[float, typer.Option(min=0, max=0.5)] = 0.0,
    checks: Path | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8765,
    export_to: Annotated[Path | None, typer.Option("--export")] = None,
    to: Annotated[str | None, typer.Option(help=f"Write items for another program: {', '.join(FORMATS)}.")] = None,
    imported: Annotated[list[Path] | None, typer.Option("--import")] = None,
) -> int:
    """Collect people's labels of answers on a page per rater or in sheets, without showing which model answered.

    \b
    critic annotate rows.jsonl --db labels.sqlite --raters 3 --overlap 0.2 --repeat 0.05
    critic annotate --db labels.sqlite --export labels.jsonl
    critic annotate --db labels.sqlite --to xlsx --export sheets
    \f
    - rows: Rows to label: id, question, response (JSONL, CSV, XLSX); for direct and pairwise_conversation the replies
      that critic infer wrote; for review a benchmark's file.
    - db: Database of labels; rerun to resume.
    - against: Another model's replies, or another judge's verdicts.
    - benchmark: Benchmark to correct, for review.
    - data_root: Folder of images.
    - raters: Number of raters.
    - invite: A rater, who gets an unguessable link; repeatable.
    - overlap: Share of the items that every rater labels.
    - repeat: Share of a rater's items that are shown twice.
    - checks: Rows with `known`: hidden checks of raters.
    - host: Address to listen on; an outside one needs --invite.
    - port: Port to listen on.
    - export_to: Write the labels: .jsonl for training and audit, .csv with a line per label; a folder with --to.
    - imported: Read labels given elsewhere (--to).
    """
    if to is not None and (to not in FORMATS or export_to is None):
        raise UsageError(f"--to {to}: expected one of {', '.join(FORMATS)}, and a folder to write with --export")
    store = Store.find(db)
    if rows is not None:
        names = _name_raters(raters, invite or [])
        root = (data_root or rows.parent).resolve()
        wanted = {"scheme": scheme or "pointwise", "raters": names, "overlap": overlap, "repeat": repeat}
        wanted |= {"invited": bool(invite), "data_root": str(root), "benchmark": benchmark}
        wanted["columns"] = msgspec.json.encode(OwnColumns.parse(mapped, scale, lang)).decode()
        # Before anything is made: a plan for raters without links could not be served.
        _check_invited(host, bool(invite))
        store = _open_planned(db, store, wanted, {"rows": rows, "against": against, "checks": checks})
    elif scheme or raters or invite or against or benchmark or checks or mapped or scale or lang:
        options = "--scheme, --raters, --invite, --against, --benchmark, --checks, --map, --scale, --lang"
        raise UsageError(f"{options}: give these once, together with the rows")
    if store is None:
        raise UsageError(f"--db {db}: no such database; give rows to create it")
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
    """Raise UsageError if `host` is reachable from other machines but raters have no unguessable links (`invited`)."""
    if host not in _LOCAL and not invited:
        raise UsageError("--host can be reached from outside: invite raters by name (--invite), or keep to 127.0.0.1")


def _name_raters(raters: int | None, invited: Sequence[str]) -> list[str]:
    """Return the names of the invited raters, or rater-1, rater-2, … for a number of `raters` (default: 1).

    Raises UsageError if both are given, or if an invited name is malformed or repeated.
    """
    if invited and raters:
        raise UsageError("give either --raters or --invite")
    if len(set(invited)) < len(invited) or not all(_NAME.fullmatch(name) for name in invited):
        raise UsageError("--invite: a name has up to 40 letters, digits, dots and hyphens, and no two raters share one")
    return list(invited) or [f"rater-{number}" for number in range(1, (raters or 1) + 1)]


def _open_planned(db: Path, store: Store | None, options: Mapping[str, Any], files: Mapping[str, Path | None]) -> Store:
    """Return the store of labels; if `store` is None, create it with its plan.

    `options`: settings of the plan by name. `files`: the input files by role, None if not given.
    Raises UsageError if a file is missing, or if the existing plan was made with other options or files.
    """
    for path in filter(None, files.values()):
        if not path.is_file():
            raise UsageError(f"{path}: no such file")
    wanted = {**options, **{name: path and jsonl.sha256(path) for name, path in files.items()}}
    if store is None:
        return _create(db, wanted, files)
    planned = store.facts()
    # Labels by two plans in one database could not be told apart.
    for name, value in wanted.items():
        if planned.get(name) != value:
            raise UsageError(f"--db {db}: planned with other {name}, {quoted(planned.get(name))}; choose another --db")
    return store


def _create(db: Path, wanted: Mapping[str, Any], files: Mapping[str, Path | None]) -> Store:
    """Read the items, plan the raters' tasks, and write both into a new database.

    `wanted`: settings of the plan and hashes of its files. `files`: paths of the rows, the other model's replies and
    the checks.
    Raises UsageError if the id of a check is also among the rows, or if an image is missing.
    """
    from eval_agreement.annotate.reading import read_items, read_known_answers  # noqa: PLC0415 - keeps --help fast

    scheme, checks = wanted["scheme"], files["checks"]
    own = msgspec.json.decode(wanted["columns"], type=OwnColumns | None)
    ordinary = read_items(scheme, Path(files["rows"] or ""), files["against"], own, wanted["benchmark"])
    hidden = read_items(scheme, checks, own=own) if checks else []
    answers = read_known_answers(scheme, hidden)
    ids = [item.id for item in ordinary]
    # One id is one item: its labels could not be told from those of the check.
    if twice := answers.keys() & set(ids):
        raise UsageError(f"--checks {checks}: {quoted(min(twice))} is also among the rows; give both a column id")
    items = [*ordinary, *hidden]
    _check_images(items, Path(wanted["data_root"]))
    tokens = {name: secrets.token_urlsafe(16) if wanted["invited"] else name for name in wanted["raters"]}
    facts = {**wanted, "images": any(item.images for item in items), "owner": secrets.token_urlsafe(16)}
    tasks = plan(ids, list(answers), wanted["raters"], wanted["overlap"], wanted["repeat"])
    db.parent.mkdir(parents=True, exist_ok=True)
    store = Store(db)
    store.create(facts, tokens, ((item, answers.get(item.id)) for item in items), tasks)
    notify(f"{db}: {len(items)} items by the scheme {scheme} for {', '.join(tokens)}")
    return store


def _check_images(items: Sequence[LabelItem], root: Path) -> None:
    """Raise UsageError if an image is missing or lies outside `root`, before a rater meets it."""
    for item in items:
        for name in item.images:
            path = root / name
            # A link out of the folder would show raters any file of this machine.
            if not name.startswith("data:") and not (path.is_file() and path.resolve().is_relative_to(root)):
                where = f"under {root} (--data-root FOLDER names another; raters see no videos)"
                raise UsageError(f"{item.id}: no image {quoted(name)} {where}")


def _serve(store: Store, images: Images | None, host: str, port: int) -> None:
    """Serve the pages until Ctrl-C. Raises UsageError if the port is taken or the server is not installed."""
    with located(f"the page needs: {install_extra('annotate')}", ImportError):
        import uvicorn  # noqa: PLC0415 - not part of a plain installation

        from eval_agreement.annotate.server import Annotation  # noqa: PLC0415
    shown = f"[{host}]" if ":" in host else host
    # Without a check of names another site could lead a rater's browser to this server (DNS rebinding).
    app = Annotation(store, images).app(["127.0.0.1", "localhost", shown] if host in _LOCAL else ["*"])
    with located(f"cannot listen on {host}:{port}; choose another --port", OSError):
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    for token, name in store.raters().items():
        print(f"{name}: http://{shown}:{port}/?rater={token}")
    print(f"owner: http://{shown}:{port}/owner?key={store.facts()['owner']}", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listening])
