"""The same items for raters elsewhere, and their labels back: Label Studio, Potato, and sheets for no program at all.

Whatever leaves is as blind as the page: items go by numbers, models and paths stay here, sides are exchanged by a hash
(of rater and item in a rater's own sheet, else of the item). AlignMMBench A.6.2's shuffled sheet is `--to xlsx`.
"""

import base64
import codecs
import html
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from critic import jsonl, tables
from critic.building.review import NO
from critic.errors import UsageError, one_line, quoted
from critic.images import ImageError, Images
from critic.page.page import render
from critic.tables import escape_formula, write_csv
from eval_agreement.annotate.plan import draw, is_swapped
from eval_agreement.annotate.schemes import SCHEMES, Ask, LabelItem, Scheme, exchanged, read_choices
from eval_agreement.annotate.store import RaterTask, RaterVerdict, Store

FORMATS = ("label-studio", "potato", "csv", "xlsx")

_SHEETS = (".csv", ".tsv", ".xlsx")
"""Tables that labels come back in."""

_TASK, _RUBRIC, _REASON, _SKIPPED, _BROKEN = "task", "what counts", "reason", "skip, because", "broken"


def picture(images: Images, name: str) -> tuple[str, bytes]:
    """The media type and the bytes of an item's picture. Raises ImageError."""
    head, _, content = images.load(name, name if name.startswith("data:") else None).uri.partition(",")
    return head[5:].partition(";")[0], base64.b64decode(content)


def send(store: Store, form: str, folder: Path, images: Images | None) -> str:
    """Write the items into a folder, and return what to say of it. Raises UsageError for a picture that cannot be read,
    and for a text that no cell of an .xlsx holds."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = store.facts()
    scheme = SCHEMES[facts["scheme"]]
    if form in ("csv", "xlsx"):
        paths = {rater: folder / (re.sub(r"[^\w.-]", "_", rater) + f".{form}") for rater in store.counts()}
        for rater, path in paths.items():
            _sheet(store.tasks(rater), scheme, path, images)
        return f"{folder}: {', '.join(path.name for path in paths.values())}; --import them when they are filled in"
    if scheme.asks:
        raise UsageError(f"--to {form}: what {facts['scheme']} asks is answered on the page, or in sheets: csv, xlsx")
    items = store.items()
    order = sorted(items, key=lambda number: draw("order", "", items[number].id))
    tasks = {str(number): _task(items[number], number, folder, form, images) for number in order}
    columns = list(dict.fromkeys(chain.from_iterable(tasks.values())))
    about: dict[str, Any] = {"columns": columns, "choices": scheme.choices}
    about["asks"] = max(len(item.asks) for item in items.values())
    about["target"] = next(name for name in columns if name.startswith(("answer", "question")))
    config, template = ("config.yaml", "potato.yaml.jinja")
    if form == "label-studio":
        config, template = ("config.xml", "label_studio.xml.jinja")
        # A task that lacks a column has an empty one: Label Studio wants all of them.
        empty = dict.fromkeys(columns, "")
        data = [{"data": {"item": key, **empty, **task}} for key, task in tasks.items()]
        jsonl.write_json(folder / "tasks.json", data)
    else:
        jsonl.write(folder / "items.jsonl", ({"id": key, "text": _as_html(task)} for key, task in tasks.items()))
    jsonl.write_text(folder / config, render("eval_agreement.annotate", f"page/{template}", about))
    return f"{folder}: {len(items)} items for {form}"


def _task(item: LabelItem, number: int, folder: Path, form: str, images: Images | None) -> dict[str, str]:
    """An item's texts by column, with its pictures and questions."""
    if form == "potato":  # it takes no pictures inside its items
        pictures = [name.replace("images/", "/media/") for name in _write_pictures(folder, number, item, images)]
    else:
        seen = _seen(item, images)
        pictures = [f"data:{media};base64,{base64.b64encode(content).decode()}" for media, content in seen]
    cells = {f"image_{position}": address for position, address in enumerate(pictures, 1)}
    for column, text in texts(item, is_swapped("", item.id)).items():
        cells[column.replace(" ", "_")] = text
    return cells | {f"ask_{position}": ask.text or ask.key for position, ask in enumerate(item.asks, 1)}


def texts(item: LabelItem, swapped: bool) -> dict[str, str]:
    """Return an item's shown texts by column (`question`, `answer A`, `answer 2 B`), with the history as one text."""
    columns: dict[str, list[str]] = defaultdict(list)
    sides = [(part, exchanged(part.side, swapped)) for part in item.parts]
    for part, side in sorted(sides, key=lambda pair: (pair[0].turn, pair[1])):
        if part.kind in ("user", "assistant"):
            columns["history"].append(f"{part.kind}: {part.text}")
        else:
            columns[" ".join(filter(None, (part.kind, str(part.turn or ""), side)))].append(part.text)
    return {column: "\n".join(lines) for column, lines in columns.items()}


def _seen(item: LabelItem, images: Images | None) -> list[tuple[str, bytes]]:
    try:
        return [] if images is None else [picture(images, name) for name in item.images]
    except ImageError as error:
        raise UsageError(f"{item.id}: {error}") from None


def _write_pictures(folder: Path, number: int, item: LabelItem, images: Images | None) -> list[str]:
    """The paths of an item's pictures, which say nothing of whose they are."""
    names = []
    for position, (media, content) in enumerate(_seen(item, images), 1):
        names.append(f"images/{number}-{position}.{media.partition('/')[2]}")
        jsonl.write_bytes(folder / names[-1], content)
    return names


def _as_html(cells: Mapping[str, str]) -> str:
    """Potato shows an item's text as HTML: what models wrote is escaped."""
    shown = {column.replace("_", " "): html.escape(text).replace("\n", "<br>") for column, text in cells.items()}
    return "".join(
        f'<p><img src="{text}" alt=""></p>' if column.startswith("image") else f"<h4>{column}</h4><p>{text}</p>"
        for column, text in shown.items()
    )


def _sheet(tasks: Sequence[RaterTask], scheme: Scheme, path: Path, images: Images | None) -> None:
    """A rater's tasks in their order, with the rubric, and an empty cell a question (choices in the first line)."""
    rows, all_choices = [], dict[str, str]()
    for opened in tasks:
        choices = {_column(ask): "" if ask.longest else " / ".join(scheme.choices) for ask in opened.item.asks}
        all_choices, asks = all_choices | choices, dict.fromkeys(choices, "")
        rubric = [": ".join(rule) for rule in scheme.rubric(opened.item.lang, opened.item.task)]
        names = _write_pictures(path.parent, opened.task, opened.item, images)
        shown = {_TASK: str(opened.task), **({"images": " ".join(names)} if names else {})}
        counts = {_RUBRIC: "\n".join(rubric)} if rubric else {}
        rows.append(shown | texts(opened.item, opened.swapped) | counts | asks)
    empty = dict.fromkeys([*(column for row in rows for column in row), _REASON, _SKIPPED, _BROKEN], "")
    full = [empty | all_choices, *(empty | row for row in rows)]
    if path.suffix == ".csv":
        write_csv(path, full)
    else:
        _check_lengths(path, full)
        _workbook(path, [list(empty), *(list(row.values()) for row in full)])


def _check_lengths(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Raise UsageError for a text that would be cut: people would label another answer than the judge judges."""
    for row in rows:
        if wide := next((column for column, text in row.items() if tables.is_cut(_cell(text))), None):
            raise UsageError(
                f"{path}: {wide} of {_TASK} {row[_TASK]} has {len(row[wide])} characters, and a cell of a workbook "
                f"holds fewer than {tables.CELL_LIMIT}; --to csv, or the page, shows all of it"
            )


def _workbook(path: Path, rows: Sequence[Sequence[str]]) -> None:
    import openpyxl  # noqa: PLC0415 - only such sheets need it

    book = openpyxl.Workbook()
    sheet = book.active
    for row in rows:
        sheet.append(list(map(_cell, row)))
    for cells in sheet.columns:
        sheet.column_dimensions[cells[0].column_letter].width = 12 if len(str(cells[-1].value or "")) < 12 else 60
        for cell in cells:
            cell.alignment = openpyxl.styles.Alignment(wrap_text=True, vertical="top")
    sheet.freeze_panes = "B2"
    content = io.BytesIO()
    book.save(content)
    jsonl.write_bytes(path, content.getvalue())


_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 (2.2) does not allow."""


def _cell(value: str) -> str:
    """Return a cell that Excel takes: no formula, only characters of XML 1.0, escapes where it would read one."""
    return tables.encode_xstring(_plain(value))


def _plain(value: str) -> str:
    return str(escape_formula(_NOT_IN_XML.sub("", value)))


def _column(ask: Ask) -> str:
    return _heading(f"{ask.key}: {ask.text}" if ask.text else ask.key)


def _heading(text: str) -> str:
    """Return a heading as it comes back: programs take line breaks and spaces at its ends for others, or for none."""
    return _plain(" ".join(text.split()))


_Outside = tuple[RaterVerdict, Callable[[], RaterTask]]
"""What was said elsewhere, and the task that it is a label for, which is made where there is none."""


def take(store: Store, path: Path) -> str:
    """Keep the labels in a file or folder; return how many were new, and how many differ from what the rater said
    before. What is there already stays. Raises UsageError, before anything is kept, for an unknown item or choice.
    """
    scheme, labels = SCHEMES[store.facts()["scheme"]], list[_Outside]()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.suffix == ".json" and file.name != "tasks.json":
            labels += _of_program(store, scheme, file)
        elif file.suffix in _SHEETS:
            labels += _of_table(store, scheme, file)
    if not labels:
        programs = "Label Studio (JSON, JSON-MIN, CSV or TSV), Potato's user_state.json"
        raise UsageError(f"--import {path}: no label; expected an export of {programs}, or sheets of --to")
    new = differ = 0
    for verdict, task in labels:
        opened = task()
        if not opened.label:
            store.label(opened.rater, opened.task, 0, verdict)
            new += 1
        else:
            differ += opened.verdict.choices != verdict.choices
    kept = f"{path}: {new} labels, {len(labels) - new} more were there already"
    return f"{kept}; {differ} of these say another thing: what was there stays" if differ else kept


def _whole(
    scheme: Scheme,
    location: str,
    item: LabelItem,
    swapped: bool,
    choices: Mapping[int, str | None],
    verdict: RaterVerdict,
) -> RaterVerdict:
    """What was said with its choices, in the item's order; none if skipped or broken. Raises UsageError."""
    if verdict.skipped or verdict.broken:
        return verdict
    replies = {ask.key: choices.get(number) or "" for number, ask in enumerate(item.asks, 1)}
    try:
        return replace(verdict, choices=read_choices(item, scheme, replies, swapped))
    except ValueError as error:
        raise UsageError(f"{location}: {error}") from None


def _check_shown(location: str, item: LabelItem, swapped: bool, cells: Mapping[str, Any]) -> None:
    """Raises UsageError where a text that stands beside a label is not the item's: the label is of another plan's. What
    programs make of white space, signs, capitals, numbers, dates and long cells is no other text."""
    for column, text in texts(item, swapped).items():
        there = cells.get(column, cells.get(column.replace(" ", "_"), text))
        plain = {re.sub(r"\W+", "", str(each or ""))[:500].lower() for each in (text, there)}
        if re.search(r"[^\W\d]", text) and len(plain) > 1:
            raise UsageError(f"{location}: another {column} than here: labels of other items; export these anew")


def _of_table(store: Store, scheme: Scheme, path: Path) -> Iterator[_Outside]:
    """Yield the labels in a table: a sheet of --to that was filled in, or Label Studio's CSV."""
    rows = list(tables.rows(path, _SHEETS))
    if any("item" in row and any(map(_number, row)) for _, row in rows):
        yield from _of_items(store, scheme, path, _of_flat([row for _, row in rows]))
    else:
        yield from _of_sheet(store, scheme, rows)


def _of_sheet(store: Store, scheme: Scheme, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[_Outside]:
    """Yield the labels in the lines of a sheet in which something was filled in."""
    for location, row in rows:
        cells = {_heading(column): cell for column, cell in row.items()}
        number = tables.optional_text(cells, _TASK)
        if number is None:
            continue
        try:
            opened = store.opened(int(number))
        except (KeyError, ValueError, OverflowError):
            raise UsageError(f"{location}: {_TASK} {quoted(number)} is not among those of {store.path}") from None
        choices = {count: tables.optional_text(cells, _column(ask)) for count, ask in enumerate(opened.item.asks, 1)}
        reason, skipped, broken = (tables.optional_text(cells, name) or "" for name in (_REASON, _SKIPPED, _BROKEN))
        skipped, broken = ("" if text.lower() in NO else text for text in (skipped, broken))
        if skipped or broken or any(choices.values()):
            _check_shown(location, opened.item, opened.swapped, cells)
            verdict = RaterVerdict(reason=reason, skipped=skipped, broken=bool(broken))
            whole = _whole(scheme, location, opened.item, opened.swapped, choices, verdict)
            yield whole, partial(store.opened, opened.task)


def _of_program(store: Store, scheme: Scheme, path: Path) -> Iterator[_Outside]:
    """Yield the labels in Label Studio's export (JSON, JSON-MIN), or in a user's state as Potato keeps it."""
    try:
        document = msgspec.json.decode(path.read_bytes().removeprefix(codecs.BOM_UTF8))
        if isinstance(document, dict) and "instance_id_to_label_to_value" in document:
            labels = list(_of_potato(document))
        else:
            tasks = document if isinstance(document, list) else []
            labels = [label for task in tasks for label in (_of_label_studio if "data" in task else _of_flat)([task])]
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        problem = f"not as Label Studio or Potato write it ({one_line(error)})"
        raise UsageError(f"{path}: {problem}; export as JSON from Label Studio") from None
    yield from _of_items(store, scheme, path, labels)


def _of_items(store: Store, scheme: Scheme, path: Path, labels: Iterable["_Label"]) -> Iterator[_Outside]:
    """Yield the labels with their tasks. Raises UsageError for an unknown item, other texts and unknown choices."""
    items = store.items()
    for rater, key, shown, choices, verdict in labels:
        number = int(key) if key.isascii() and key.isdigit() else 0
        if number not in items:
            raise UsageError(f"{path}: item {quoted(key)} is not among those of {store.path}")
        swapped = is_swapped("", items[number].id)
        _check_shown(f"{path}: item {key}", items[number], swapped, shown)
        whole = _whole(scheme, f"{path}: item {key}", items[number], swapped, choices, verdict)
        yield whole, partial(store.task_of, rater, number, swapped)


_Label = tuple[str, str, dict[str, Any], dict[int, str], RaterVerdict]
"""Rater, item, its texts where they stand there too, the choice for each question by its number from 1, the rest."""


def _of_potato(state: Mapping[str, Any]) -> Iterator[_Label]:
    for item, labels in state["instance_id_to_label_to_value"].items():
        choices, reason = {}, ""
        for label, value in labels:
            if number := _number(label["schema"]):
                choices[number] = str(value if label["name"] == "selection" else label["name"])
            elif label["schema"] == "reason":
                reason = str(value)
        if choices:
            yield str(state["user_id"]), item, {}, choices, RaterVerdict(reason=reason)


def _of_label_studio(tasks: Sequence[Any]) -> Iterator[_Label]:
    for task in tasks:
        for annotation in task["annotations"]:
            user = annotation.get("completed_by", "label-studio")
            rater = str(user.get("email") or user["id"]) if isinstance(user, dict) else str(user)
            values = {result["from_name"]: result["value"] for result in annotation["result"]}
            choices = {_number(name): str(value["choices"][0]) for name, value in values.items() if _number(name)}
            skipped = "skipped in Label Studio" if annotation.get("was_cancelled") else ""
            if choices or skipped:
                text = values.get("reason", {"text": []})["text"]
                reason = text if isinstance(text, str) else " ".join(text)
                seconds = float(annotation.get("lead_time") or 0) or None
                verdict = RaterVerdict(reason=reason, skipped=skipped, seconds=seconds)
                yield rater, str(task["data"]["item"]), task["data"], choices, verdict


def _of_flat(rows: Sequence[Mapping[str, Any]]) -> Iterator[_Label]:
    """Yield the labels of Label Studio's CSV and JSON-MIN: a row an annotation, with a task's data and the values of
    the controls side by side."""
    for row in rows:
        cells = {name: tables.cell_text(cell) or "" for name, cell in row.items()}
        choices = {_number(name): text for name, text in cells.items() if _number(name) and text}
        if choices:
            seconds = tables.parse_optional_number("lead_time", "lead_time", row.get("lead_time"))
            verdict = RaterVerdict(reason=cells.get("reason", ""), seconds=seconds or None)
            yield cells.get("annotator") or "label-studio", cells["item"], dict(row), choices, verdict


def _number(name: str) -> int:
    """Return which question a control named choice_N is for; 0 for any other name."""
    head, _, number = name.rpartition("_")
    return int(number) if head == "choice" and number.isdigit() else 0
