"""critic annotate: rows -> people's labels, on a page of this process, planned and kept in one SQLite file.

critic annotate rows.jsonl --db labels.sqlite --scheme pointwise --raters 3 --overlap 0.2
critic annotate rows.jsonl --db labels.sqlite --doubtful judged.jsonl --draw 200
critic annotate --db labels.sqlite --export labels.jsonl
"""

import ipaddress
import re
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from critic import jsonl
from critic.errors import UsageError
from critic.images import Images
from eval_agreement.annotate.export import export
from eval_agreement.annotate.formats import FORMATS, send, take
from eval_agreement.annotate.plan import Task, plan
from eval_agreement.annotate.schemes import SCHEMES, LabelItem
from eval_agreement.annotate.store import Store

_ROWS = (
    "Rows to label: id, question, response (JSONL, CSV, XLSX); of direct and pairwise_conversation the replies that "
    "critic infer wrote, of rewrite the file of critic rewrite."
)
_EXPORT = "Write the labels: .jsonl for training and audit, .csv a line a label; with --to a folder."
_NAME = re.compile(r"[\w.-]{1,40}")


def main(
    rows: Annotated[Path | None, typer.Argument(help=_ROWS)] = None,
    db: Annotated[Path, typer.Option(help="Where plan and labels are kept. The same command goes on.")] = Path(
        "labels.sqlite"
    ),
    scheme: Annotated[
        str | None, typer.Option(help=f"What is asked: {', '.join(SCHEMES)}.", show_default="pointwise")
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Replies of another model, for pairwise_conversation.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where images are.", show_default="that of the rows")] = None,
    no_images: Annotated[bool, typer.Option("--no-images", help="Show no images although rows name some.")] = False,
    raters: Annotated[int | None, typer.Option(min=1, max=1000, help="How many label.", show_default="1")] = None,
    invite: Annotated[list[str] | None, typer.Option(help="A rater, who gets an unguessable link. Repeatable.")] = None,
    overlap: Annotated[float, typer.Option(min=0, max=1, help="Share of the items that every rater labels.")] = 0.0,
    repeat: Annotated[float, typer.Option(min=0, max=0.5, help="Share of a rater's items that comes twice.")] = 0.0,
    checks: Annotated[Path | None, typer.Option(help="Rows with `known`: hidden items with a known answer.")] = None,
    doubtful: Annotated[Path | None, typer.Option(help="Judgments: draw rows more often where unsure.")] = None,
    draw: Annotated[int | None, typer.Option(min=1, help="With --doubtful: how many rows, on average.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of who labels what, of orders and of sides.")] = 0,
    host: Annotated[str, typer.Option(help="Where to listen; from outside raters must be invited.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8765,
    export_to: Annotated[Path | None, typer.Option("--export", help=_EXPORT)] = None,
    to: Annotated[str | None, typer.Option(help=f"Write items for another program: {', '.join(FORMATS)}.")] = None,
    imported: Annotated[list[Path] | None, typer.Option("--import", help="Labels from what --to wrote.")] = None,
) -> int:
    """People's labels of answers, blind and planned in advance: a page for each rater, or sheets.

    \b
    critic annotate rows.jsonl --db labels.sqlite --raters 3 --overlap 0.2 --repeat 0.05
    critic annotate rows.jsonl --db labels.sqlite --doubtful judged.jsonl --draw 200
    critic annotate --db labels.sqlite --export labels.jsonl
    critic annotate --db labels.sqlite --to xlsx --export sheets
    """
    if to is not None and (to not in FORMATS or export_to is None):
        raise UsageError(f"--to {to}: expected one of {', '.join(FORMATS)}, and a folder to write with --export")
    if (draw is None) != (doubtful is None):
        raise UsageError("--doubtful FILE and --draw NUMBER go together")
    files: dict[str, Path | None] = {"against": against, "checks": checks, "doubtful": doubtful}
    if rows is not None:
        names, root = _names(raters, invite or []), None if no_images else (data_root or rows.parent).resolve()
        wanted = {"scheme": scheme or "pointwise", "raters": names, "overlap": overlap, "repeat": repeat, "seed": seed}
        wanted |= {"invited": bool(invite), "data_root": root and str(root)}
        _check_invited(host, bool(invite))
        store = _planned(db, wanted, {"rows": rows, **files}, draw)
    else:
        given = {"scheme": scheme, "raters": raters, "invite": invite, **files}
        if unused := next((name for name, value in given.items() if value), None):
            raise UsageError(f"--{unused}: is said once, together with the rows")
        store = _found(db)
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


def _found(db: Path) -> Store:
    store = Store.find(db)
    if store is None:
        raise UsageError(f"--db {db}: no such database; give the rows to make it")
    return store


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0]).is_loopback
    except (socket.gaierror, ValueError):
        raise UsageError(f"--host {host!r} is no address of this machine") from None


def _check_invited(host: str, invited: bool) -> None:
    if not _is_local(host) and not invited:
        raise UsageError("--host can be reached from outside: invite raters by name (--invite), or keep to 127.0.0.1")


def _names(raters: int | None, invited: Sequence[str]) -> list[str]:
    if invited and raters:
        raise UsageError("give either --raters or --invite")
    if len(set(invited)) < len(invited) or not all(_NAME.fullmatch(name) for name in invited):
        raise UsageError("--invite: a rater's name is up to 40 letters, digits, dots and hyphens, and each is another")
    return list(invited) or [f"rater-{number}" for number in range(1, (raters or 1) + 1)]


def _planned(db: Path, options: Mapping[str, Any], files: Mapping[str, Path | None], draw: int | None) -> Store:
    """The database with its plan, made now or gone on with. A larger --draw adds rows to it; else rows and options are
    what they were. Raises UsageError where they are not, and for what cannot be shown."""
    if lost := next((path for path in files.values() if path and not path.is_file()), None):
        raise UsageError(f"{lost}: no such file")
    wanted = {**options, **{name: path and jsonl.sha256(path) for name, path in files.items()}}
    store = Store.find(db)
    if store and _goes_on(store, wanted, draw):
        return store
    root, names = wanted["data_root"], wanted["raters"]
    items, hidden, right, chance = _items(wanted["scheme"], files, draw)
    if draw:
        _check_drawn(store, chance, right)
    every = [item if root else replace(item, images=[]) for item in [*items, *hidden]]
    _check_images(every, Path(root or ""))
    tokens = {name: secrets.token_urlsafe(16) if wanted["invited"] else name for name in names}
    facts: dict[str, Any] = {"draw": draw, "images": any(item.images for item in every)}
    if store is None:
        store, facts = Store(db), {**wanted, **facts, "owner": secrets.token_urlsafe(16)}

    def tasks(new: Sequence[tuple[int, str]]) -> Iterator[Task]:
        checks = [item for item in new if item[1] in right]
        ordinary = [item for item in new if item[1] not in right]
        return plan(ordinary, checks, names, wanted["overlap"], wanted["repeat"], wanted["seed"])

    db.parent.mkdir(parents=True, exist_ok=True)
    count = store.add(facts, tokens, every, tasks, right, chance)
    print(f"{db}: {count} items by the scheme {wanted['scheme']} for {', '.join(tokens)}", file=sys.stderr)
    return store


def _items(
    scheme: str, files: Mapping[str, Path | None], draw: int | None
) -> tuple[list[LabelItem], list[LabelItem], dict[str, dict[str, str]], dict[str, float]]:
    """The items to label, those with a known answer, these answers, and the chances of items that were drawn."""
    from eval_agreement.annotate.active_sampling import draw_from  # noqa: PLC0415 - keeps --help fast
    from eval_agreement.annotate.reading import answers_of, items_of  # noqa: PLC0415

    items = items_of(scheme, Path(files["rows"] or ""), files["against"])
    hidden = items_of(scheme, files["checks"]) if files["checks"] else []
    right = answers_of(scheme, hidden)
    chance: dict[str, float] = {}
    if files["doubtful"] and draw:
        chance = draw_from(files["doubtful"], [item.id for item in items], draw)
        items = [item for item in items if item.id in chance]
    if twice := {item.id for item in items} & right.keys():
        raise UsageError(f"--checks {files['checks']}: {min(twice)!r} is among the rows as well")
    return items, hidden, right, chance


def _goes_on(store: Store, wanted: Mapping[str, Any], draw: int | None) -> bool:
    """Whether nothing is to be added to what is planned. Raises UsageError where something else is wanted."""
    known = store.facts()
    for name, value in wanted.items():
        if known[name] != value:
            raise UsageError(f"--db {store.path}: planned with other {name}, {known[name]!r}; choose another --db")
    if draw and draw < (known["draw"] or 0):
        raise UsageError(f"--draw {draw}: {known['draw']} rows were drawn before, and labels stay")
    return bool(known["draw"] == draw)


def _check_drawn(store: Store | None, chance: Mapping[str, float], right: Mapping[str, Any]) -> None:
    """Raises UsageError where rows that were drawn before are not among those drawn now: no chances would hold."""
    there = {item.id for item in store.items().values()} - right.keys() if store else set()
    if lost := there - chance.keys():
        raise UsageError(
            f"--draw: {len(lost)} rows that were drawn before, such as {min(lost)!r}, are not among these; choose "
            "another --db"
        )


def _check_images(items: Sequence[LabelItem], root: Path) -> None:
    """Raises UsageError for a picture that is not there, rather than hours later before a rater."""
    for item in items:
        for name in item.images:
            path = root / name.replace("\0", "\ufffd")  # which no path can hold, and no file is named
            if not name.startswith("data:") and not (path.resolve().is_relative_to(root) and path.is_file()):
                raise UsageError(f"{item.id}: no image {name!r} under {root} (--data-root, or --no-images)")


def _serve(store: Store, images: Images | None, host: str, port: int) -> None:
    """Serve until Ctrl-C. Raises UsageError where the port is taken or the server is not installed."""
    try:
        import uvicorn  # noqa: PLC0415 - not part of a plain installation

        from eval_agreement.annotate.people import owner_page  # noqa: PLC0415 - keeps --help fast
        from eval_agreement.annotate.server import Annotation  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"the page needs: pip install 'critic[annotate]' ({error})") from None
    key, shown = store.facts()["owner"], f"[{host}]" if ":" in host else host
    app = Annotation(store, images, lambda: owner_page(store), key).app(
        ["127.0.0.1", "localhost", shown] if _is_local(host) else ["*"]
    )
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    for token, name in store.raters().items():
        print(f"{name}: http://{shown}:{port}/?rater={token}")
    print(f"owner: http://{shown}:{port}/owner?key={key}", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listening])
