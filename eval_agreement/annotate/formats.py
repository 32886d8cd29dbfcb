"""Write items for raters elsewhere and read their labels back, and export labels for training and the audit.

Items can be labelled in Label Studio, in Potato, and in sheets without a program. Files do not reveal models, as the
page does not: items are numbered, names of models and paths are left out, and sides are exchanged by a hash (of rater
and item in a rater's own sheet, else of the item). `--to xlsx` is the shuffled sheet of AlignMMBench A.6.2. Labels are
exported as human-scored rows, and as tables of preferences and verdicts.
"""

import codecs
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pandas as pd
from msgspec.structs import replace

from critic import jsonl, tables
from critic.building.bench import correct
from critic.errors import UsageError, located, notify, quoted, refusing
from critic.human_scored import settle_answers
from critic.images import Images
from critic.page.blocks import Section
from critic.page.page import as_text, render
from critic.stages.totals import listed
from eval_agreement.annotate.plan import draw, is_swapped
from eval_agreement.annotate.schemes import OVERALL, SCHEMES, Ask, LabelItem, Scheme, load_pictures, read_choices
from eval_agreement.annotate.store import RaterTask, RaterVerdict, Store
from eval_agreement.metrics import mean_estimate
from eval_agreement.page.words import estimates, percent
from eval_agreement.sentences import say, texts_of

FORMATS = ("label-studio", "potato", "csv", "xlsx")

_SHEETS = (".csv", ".tsv", ".xlsx")
"""Suffixes of tables that may contain labels to import."""

_TASK, _RUBRIC, _REASON, _SKIPPED, _BROKEN = "task", "what counts", "reason", "skip, because", "broken"


def send(store: Store, form: str, folder: Path, images: Images | None) -> str:
    """Write the items into a folder for labelling elsewhere, and return a line that describes the files.

    `form`: one of FORMATS.
    Raises UsageError if a picture cannot be read, if a text is too long for a cell of an .xlsx file, or if `form` is a
    program and the scheme has questions of its own.
    """
    facts = store.facts()
    scheme = SCHEMES[facts["scheme"]]
    if form in ("csv", "xlsx"):
        paths = {rater: folder / (re.sub(r"[^\w.-]", "_", rater) + f".{form}") for rater in store.counts()}
        for rater, path in paths.items():
            _write_sheet(store.tasks(rater), scheme, path, images)
        return f"{folder}: {', '.join(path.name for path in paths.values())}; --import them when they are filled in"
    # The forms of programs have choices only, no written answers.
    if scheme.asks:
        raise UsageError(f"--to {form}: {facts['scheme']} is answered on the page, or in sheets: csv, xlsx")
    items = store.items()
    tasks = {}
    # Raters share a file, so all of them see the items in one order.
    for number in sorted(items, key=lambda number: draw("order", "", items[number].id)):
        tasks[str(number)] = _build_cells(items[number], number, folder, form, images)
    columns = list(dict.fromkeys(chain.from_iterable(tasks.values())))
    about = {"columns": columns, "choices": scheme.choices, "asks": max(len(item.asks) for item in items.values())}
    about["target"] = next(name for name in columns if name.startswith(("answer", "question")))
    if form == "label-studio":
        config, template = "config.xml", "label_studio.xml.jinja"
        # A task that lacks a column has an empty one: Label Studio wants all of them.
        empty = dict.fromkeys(columns, "")
        jsonl.write_json(folder / "tasks.json", [{"data": {"item": key, **empty, **tasks[key]}} for key in tasks])
    else:
        config, template = "config.yaml", "potato.yaml.jinja"
        text = "page/potato.html.jinja"
        texts = {key: render("eval_agreement.annotate", text, {"cells": cells}) for key, cells in tasks.items()}
        jsonl.write(folder / "items.jsonl", ({"id": key, "text": texts[key]} for key in texts))
    jsonl.write_text(folder / config, render("eval_agreement.annotate", f"page/{template}", about))
    return f"{folder}: {len(items)} items for {form}"


def _build_cells(item: LabelItem, number: int, folder: Path, form: str, images: Images | None) -> dict[str, str]:
    """Return the columns of an item for another program: its images, texts and questions.

    Label Studio embeds images as data: URIs. For Potato they are written into `folder`.
    """
    # Potato takes no pictures inside its items.
    if form == "potato":
        pictures = [name.replace("images/", "/media/") for name in _write_pictures(folder, number, item, images)]
    else:
        pictures = [picture.uri for picture in load_pictures(item, images)]
    cells = {f"image_{position}": address for position, address in enumerate(pictures, 1)}
    for column, text in _list_texts(_build_task(item, number)).items():
        cells[column.replace(" ", "_")] = text
    return cells | {f"ask_{position}": ask.text or ask.key for position, ask in enumerate(item.asks, 1)}


def _list_texts(opened: RaterTask) -> dict[str, str]:
    """Return the texts that a rater sees of an item, by column (`question`, `answer A`, `answer 2 B`).

    Earlier turns are one text, in the column `history`.
    """
    columns: dict[str, list[str]] = defaultdict(list)
    for part in opened.parts:
        if part.kind in ("user", "assistant"):
            columns["history"].append(f"{part.kind}: {part.text}")
        else:
            # The column `task` is the number of a sheet's line.
            kind = "skill" if part.kind == _TASK else part.kind
            columns[" ".join(filter(None, (kind, str(part.turn or ""), part.side)))].append(part.text)
    return {column: "\n".join(lines) for column, lines in columns.items()}


def _write_pictures(folder: Path, number: int, item: LabelItem, images: Images | None) -> list[str]:
    """Write an item's pictures into `folder`, and return their paths relative to it.

    The files are named by `number`, so that they do not reveal the model.
    """
    names = []
    for position, picture in enumerate(load_pictures(item, images), 1):
        names.append(f"images/{number}-{position}.{picture.kind.partition('/')[2]}")
        jsonl.write_bytes(folder / names[-1], picture.data)
    return names


def _write_sheet(tasks: Sequence[RaterTask], scheme: Scheme, path: Path, images: Images | None) -> None:
    """Write a rater's tasks to a sheet in their order, with the rubric and an empty cell per question.

    The line below the headings lists the choices of each question.
    """
    all_choices: dict[str, str] = {}
    rows = [all_choices]
    for opened in tasks:
        row = {_TASK: str(opened.task)}
        if names := _write_pictures(path.parent, opened.task, opened.item, images):
            row["images"] = " ".join(names)
        row |= _list_texts(opened)
        if rubric := scheme.rubric(opened.item.lang, opened.item.task):
            row[_RUBRIC] = "\n".join(map(": ".join, rubric))
        for ask in opened.item.asks:
            column = _name_column(ask)
            row[column], all_choices[column] = "", "" if ask.longest else " / ".join(scheme.choices)
        rows.append(row)
    # Columns stand in the order of the tasks, so that texts come before the questions about them.
    empty = dict.fromkeys([*chain.from_iterable(rows[1:]), _REASON, _SKIPPED, _BROKEN], "")
    full = [empty | row for row in rows]
    if path.suffix == ".csv":
        tables.write_csv(path, full)
    else:
        _write_workbook(path, full)


def _write_workbook(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows of the same columns as a workbook with wrapped text, and with wide columns for long texts.

    Raises UsageError if a text is too long for a cell.
    """
    import openpyxl  # noqa: PLC0415 - only such sheets need it

    book = openpyxl.Workbook()
    sheet = book.active
    for row in ({column: column for column in rows[0]}, *rows):
        encoded = {column: tables.encode_xstring(_make_plain(text)) for column, text in row.items()}
        # A cut text would have people label another answer than the judge sees.
        if cut := [column for column, cell in encoded.items() if tables.is_cut(cell)]:
            facts = {"column": cut[0], "task": row[_TASK], "length": len(row[cut[0]])}
            raise UsageError(say("long_text", path=path, **facts, limit=tables.CELL_LIMIT))
        sheet.append(list(encoded.values()))
    # The last line is a task: its texts tell how wide a column should be.
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


def _make_plain(value: str) -> str:
    """Remove the characters that XML 1.0 forbids, and escape a text that a spreadsheet would run as a formula."""
    return str(tables.escape_formula(_NOT_IN_XML.sub("", value)))


def _name_column(ask: Ask) -> str:
    """Return the heading of a question's column in a sheet."""
    return _normalise_heading(f"{ask.key}: {ask.text}" if ask.text else ask.key)


def _normalise_heading(text: str) -> str:
    """Normalise a heading, because programs change line breaks and drop spaces at its ends."""
    return _make_plain(" ".join(text.split()))


_is_choice = re.compile(r"choice_\d+").fullmatch
"""Match choice_N, the name of a form's control that answers question N, from 1."""


def take(store: Store, path: Path) -> str:
    """Import labels from a file or folder into the store, and return a line with the counts of new and existing labels.

    A task that already has a label keeps it.
    Raises UsageError if there is no label, or for an unknown item or choice. Nothing is stored in that case.
    """
    scheme, items, labels = SCHEMES[store.facts()["scheme"]], store.items(), list[RaterTask]()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        for location, row in _read_rows(file):
            labels += _read_label(store, scheme, items, location, row)
    if not labels:
        programs = "Label Studio (JSON, JSON-MIN, CSV or TSV), Potato's user_state.json"
        raise UsageError(f"--import {path}: no label; expected an export of {programs}, or sheets of --to")
    new = differ = 0
    # Every file is read by now, so that a mistake in the last one leaves the store as it was.
    for given in labels:
        # Earlier files may have labelled it.
        opened = store.opened(given.task) if given.task else store.find_task(given.rater, given.number, given.swapped)
        if not opened.label:
            store.label(opened.rater, opened.task, 0, given.verdict)
            new += 1
        else:
            differ += opened.verdict.choices != given.verdict.choices
    return say("imported", path=path, new=new, earlier=len(labels) - new, differ=differ)


def _read_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a file that may hold labels, each with its location; nothing for any other file.

    A row is a line of a sheet, or an annotation of another program: the columns of its item and the rater's answers
    (`choice_1`, `choice_2` …) side by side, as in Label Studio's CSV and JSON-MIN exports.

    Raises UsageError for JSON of any other form.
    """
    if path.suffix in _SHEETS:
        yield from tables.rows(path, _SHEETS)
    if path.suffix != ".json" or path.name == "tasks.json":
        return
    with located(f"{path}: not JSON", OSError, msgspec.DecodeError, RecursionError):
        document = msgspec.json.decode(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    rows = list[Mapping[str, Any]]()
    with refusing(path, "not as Label Studio or Potato write it; export as JSON from Label Studio"):
        if isinstance(document, dict) and "instance_id_to_label_to_value" in document:
            rows += _flatten_potato(document)
        elif isinstance(document, list):
            for task in document:
                # JSON-MIN has no `data`: its columns stand in the task itself.
                rows += _flatten_label_studio(task) if "data" in task else [task]
        # An answer without an item is refused, and not left out.
        answered = [{**row, "item": row["item"]} for row in rows if _SKIPPED in row or any(map(_is_choice, row))]
    yield from ((str(path), row) for row in answered)


def _flatten_potato(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row (see `_read_rows`) per labelled item of one user's `user_state.json`, already decoded."""
    for item, labels in state["instance_id_to_label_to_value"].items():
        row = {"item": item, "annotator": state["user_id"]}
        for label, value in labels:
            # A radio button is named after its choice, everything else says in its value what the rater answered.
            button = _is_choice(label["schema"]) and label["name"] != "selection"
            row[label["schema"]] = label["name"] if button else value
        yield row


def _flatten_label_studio(task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row (see `_read_rows`) per annotation of one task in Label Studio's JSON export."""
    for annotation in task["annotations"]:
        # An export names the user by number, or in full.
        user = annotation.get("completed_by")
        rater = (user.get("email") or user["id"]) if isinstance(user, dict) else user
        row = {**task["data"], "annotator": rater, "lead_time": annotation.get("lead_time")}
        if annotation.get("was_cancelled"):
            row[_SKIPPED] = "skipped in Label Studio"
        for result in annotation["result"]:
            texts = result["value"].get("choices", result["value"].get("text", ""))
            row[result["from_name"]] = texts if isinstance(texts, str) else " ".join(texts)
        yield row


def _read_label(
    store: Store, scheme: Scheme, items: Mapping[int, LabelItem], location: str, row: Mapping[str, Any]
) -> Iterator[RaterTask]:
    """Yield the label in a row as the rater's task with its verdict; nothing if the row is not filled in.

    A sheet's row names its task. A row of another program names an item and a rater; the task yielded has the number 0,
    because the store may not have this task yet.

    `items`: all items of the store by number.
    Raises UsageError for an unknown task, item or choice, a question without an answer, or if a text in the row differs
    from the item's, because the label then belongs to another plan.
    """
    cells = {_normalise_heading(column): (tables.cell_text(cell) or "").strip() for column, cell in row.items()}
    kind = "item" if "item" in cells else _TASK
    key, chosen = cells.get(kind, ""), any(text and _is_choice(name) for name, text in cells.items())
    # The line of choices has no task, people leave lines empty, and a program may export items of others unlabelled.
    if not (key if kind == _TASK else chosen or _SKIPPED in cells):
        return
    location = f"{location}: {kind} {quoted(key)}"
    try:
        number = int(key)
        opened = _build_task(items[number], number, cells.get("annotator")) if kind == "item" else store.opened(number)
    except (KeyError, ValueError, OverflowError):
        raise UsageError(f"{location} is not among those of {store.path}") from None
    replies = {}
    for position, ask in enumerate(opened.item.asks, 1):
        replies[ask.key] = cells.get(f"choice_{position}" if kind == "item" else _name_column(ask), "")
    # People write "no" under "broken" of an item that is not.
    marks = (cells.get(_SKIPPED, ""), cells.get(_BROKEN, ""))
    skipped, broken = ("" if text.lower() in tables.NO else text for text in marks)
    if not (skipped or broken or any(replies.values())):
        return
    _check_texts(location, opened, cells)
    with located(location, ValueError):
        choices = {} if skipped or broken else read_choices(opened.item, scheme, replies, opened.swapped)
    seconds = tables.parse_optional_number(location, "lead_time", row.get("lead_time")) or None
    about: dict[str, Any] = {"reason": cells.get(_REASON, ""), "skipped": skipped, "broken": bool(broken)}
    yield opened._replace(verdict=RaterVerdict(choices=choices, seconds=seconds, **about))


def _check_texts(location: str, opened: RaterTask, cells: Mapping[str, str]) -> None:
    """Raise UsageError if a text in the row `cells` is not the item's. Columns that are missing there are not compared.

    Only the first 500 letters and digits of a text count, without case: programs change white space, punctuation, dates
    and long cells. Texts without letters are not compared, since they may be reformatted numbers.
    """
    for column, text in _list_texts(opened).items():
        there = cells.get(column, cells.get(column.replace(" ", "_"), text))
        here, returned = (re.sub(r"\W+", "", each)[:500].lower() for each in (text, there))
        if re.search(r"[^\W\d]", text) and here != returned:
            raise UsageError(f"{location}: another {column} than here: labels of other items; export these anew")


def _build_task(item: LabelItem, number: int, rater: str | None = None) -> RaterTask:
    """Build the task of an item that is labelled in another program, where all raters see the same side first."""
    rater = rater or "label-studio"
    return RaterTask(0, rater, number, item, role="item", swapped=is_swapped("", item.id))


_EXPORTED: list[str] = texts_of("annotate/page/schemes.toml")["exported"]
"""Columns that an exported table has beside the label."""


def export(store: Store, path: Path) -> int:
    """Write the labels to `path`, and return the number of lines.

    A .csv file holds every label. A .jsonl file holds rows for training and the audit, without repeats, checks, and
    items that a rater skipped or reported as broken.
    Raises UsageError for another suffix, or if nothing is labelled.
    """
    if path.suffix == ".csv":
        return tables.write_csv(path, list(map(_build_label_line, store.labels())))
    if path.suffix != ".jsonl":
        raise UsageError(f"--export {path}: expected .jsonl, or .csv for a line a label")
    labels: dict[int, list[RaterTask]] = defaultdict(list)
    for label in store.labels():
        if label.role == "item" and label.verdict.choices and not label.verdict.broken:
            labels[label.number].append(label)
    if not labels:
        raise UsageError(f"{store.path}: nothing is labelled yet")
    facts, edits = store.facts(), store.edits()
    scheme = SCHEMES[facts["scheme"]]
    writers = {"columns": _list_collected, "benchmark": _list_reviewed}
    list_rows = writers.get(scheme.source, _list_audit_rows if scheme.column else _list_source_rows)
    lines: list[dict[str, Any]] = []
    for number, item_labels in sorted(labels.items()):
        # Rows leave with the raters' corrections: people labelled the corrected texts.
        item = _apply_edits(item_labels[0].item, edits.get(number, []), facts.get("benchmark"))
        lines += list_rows(scheme, [label._replace(item=item) for label in item_labels])
    if scheme.source == "judgments":
        _print_preferred(lines)
    if scheme.source == "benchmark":
        for line in store.query("unreviewed"):
            notify(f"left out: {line['id']!r} ({line['why']})")
    return jsonl.write(path, lines)


def _apply_edits(item: LabelItem, edits: Sequence[dict[str, Any]], benchmark: str | None) -> LabelItem:
    """Return the item with the raters' corrections applied to its source row.

    `edits`: the corrections as `Store.edits` returns them; they become the row's column `edits`. `benchmark`: name of
    the benchmark that the row belongs to, or None.
    """
    row = item.row | ({"edits": edits} if edits else {})
    for name in {edit["field"] for edit in edits}:
        kind, _, turn = name.partition(" ")
        correct(benchmark, row, kind, int(turn or 0), item.texts()[name])
    return replace(item, row=row)


def _build_label_line(label: RaterTask) -> dict[str, Any]:
    """Build a line of the .csv from one label, with its rater, its time, and the side that was shown first."""
    verdict = label.verdict
    about = {"rater": label.rater, "role": label.role, "first": "b" if label.swapped else "a", "at": label.at}
    rest = {name: getattr(verdict, name) for name in ("seconds", "reason", "skipped", "broken")}
    return {"id": label.item.id, "group": label.item.group, **about, **verdict.choices, **rest}


def _list_source_rows(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield the item's source row with people's scores added; nothing if it has a checklist that no rater answered.

    `labels`: all labels of one item.
    """
    item = labels[0].item
    choices = {ask.key: [label.verdict.choices[ask.key] for label in labels] for ask in item.asks}
    added = (_score_ratings if scheme.rated else _score_checks)(scheme, choices, labels)
    if not added["annotators"]:
        return
    default = {"task": "", "reference": None, "system": None, "lang": item.lang, "group": item.group}
    # Earlier scores of the row are on another scale than the new ones.
    old = {key: value for key, value in item.row.items() if key not in ("score_1_10", "criteria_scores")}
    reason = next((label.verdict.reason for label in labels if label.verdict.reason), None)
    yield {**default, **old, **added, "reason": reason}


def _list_collected(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield one row per label, with one column per question. A question that was not asked has the answer "no"."""
    for label in labels:
        unasked = {ask.key: "no" for ask in label.item.asks if ask.after}
        # Several labels of an item are several rows, and ids are unique.
        key = f"{label.item.id}/{label.rater}" if labels[1:] else label.item.id
        yield {**label.item.row, "id": key, **unasked, **label.verdict.choices, "rater": label.rater}


def _list_reviewed(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield the corrected row of a benchmark conversation, unless half of its raters or more reject it."""
    verdicts = {label.rater: label.verdict.choices[OVERALL] for label in labels}
    if settle_answers(verdicts.values(), "yes", "no"):
        yield {**labels[0].item.row, "reviews": verdicts}
    else:
        notify(f"left out: {labels[0].item.id!r} ({listed(Counter(verdicts.values()))})")


def _print_preferred(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print how often the first of two ways to judge was found more logical, with a 95 % interval over questions."""
    shares = {}
    for (way, other), own in pd.DataFrame(lines).groupby(["system_a", "system_b"], sort=False):
        chosen = (own["preference"] == "a").to_numpy()
        shares[f"{way} rather than {other}"] = mean_estimate(chosen, own["group"].to_list(), share=True, null=0.5)
    table = estimates("Found more logical", shares, percent)
    print(as_text([Section(heading="Judgments (ConvBench I.2)", tables=[table])]))


def _score_ratings(scheme: Scheme, choices: Mapping[str, Sequence[str]], labels: Sequence[RaterTask]) -> dict[str, Any]:
    """Return the score fields of a row: mean overall rating, each criterion's mean, and each rater's overall rating.

    `choices`: the raters' ratings by question key.
    """
    scores = {label.rater: float(label.verdict.choices[OVERALL]) for label in labels}
    means = {key.partition("=")[2]: fmean(map(float, ratings)) for key, ratings in choices.items() if key != OVERALL}
    score = {"human_score": fmean(scores.values()), "scale_min": 1, "scale_max": len(scheme.choices)}
    return score | ({"criteria_scores": means} if means else {}) | {"annotators": scores}


def _score_checks(scheme: Scheme, choices: Mapping[str, Sequence[str]], labels: Sequence[RaterTask]) -> dict[str, Any]:
    """Return the score fields of a row with a checklist: human score (0..1), majority answers, votes, raters' scores.

    The human score is the share of yes among the checklist items with a majority. If every item is tied, it is the mean
    of the raters' scores, which are each rater's share of yes. It is None if nobody answered.
    """
    scores = {}
    for label in labels:
        count = Counter(label.verdict.choices.values())
        if answered := count["yes"] + count["no"]:
            scores[label.rater] = count["yes"] / answered
    right = [settle_answers(replies, "yes", "no") for replies in choices.values()]
    decided = [holds for holds in right if holds is not None]
    # If raters are divided on every item, the mean of their own scores stands in.
    score = fmean(decided or scores.values()) if scores else None
    votes = [[replies.count("yes"), replies.count("no")] for replies in choices.values()]
    checked = {"checklist_answers": right, "checklist_votes": votes}
    return {"human_score": score, "scale_min": 0, "scale_max": 1, **checked, "annotators": scores}


def _list_audit_rows(scheme: Scheme, labels: Sequence[RaterTask]) -> Iterator[dict[str, Any]]:
    """Yield one row per label and question for the audit. `labels`: all labels of one item.

    The id of a row about a turn is built from the conversation's id and the turn.
    """
    item = labels[0].item
    row = {"lang": item.lang, **item.row}
    about = {key: row[key] for key in _EXPORTED if row.get(key) is not None}
    conversation, _, rest = item.id.rpartition("/whole")
    for label in labels:
        for key, value in label.verdict.choices.items():
            where = {"id": item.id, "turn": "1"}
            # Of a conversation each turn is a row of the audit.
            if key != OVERALL:
                where = {"id": f"{conversation}/{key}{rest}", "turn": key}
            more = {"both_bad": True} if value == "both bad" else {}
            facts = {"rater": label.rater, "group": item.group, **about, **more}
            yield {**where, str(scheme.column): _encode_choice(scheme, value), **facts}


def _encode_choice(scheme: Scheme, choice: str) -> str | float:
    """Encode a choice for the audit: "a", "b" or "tie" for two sides, a number for a rating, else the choice itself."""
    if scheme.two:
        return {"A": "a", "B": "b"}.get(choice, "tie")
    return float(choice) if scheme.rated else choice
