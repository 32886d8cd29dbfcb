"""Human-scored rows: the file format that judges are trained and audited on (`Row`; see critic/README.md).

    {"id": "7", "task": "Counting", "lang": "en", "question": "How many?", "reference": "3.", "response": "Two.",
     "system": "m", "human_score": 2, "scale_min": 1, "scale_max": 5, "group": "image 7"}

In other kinds of tables lists are JSON, and parquet may embed images. Columns that end in `_score_1_10` are other
judges' scores of the same answer. Pairs, one line for each rater, and judgments with people's labels are rows as well.
"""

import hashlib
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from statistics import fmean, multimode
from typing import Annotated, Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from critic import jsonl, records, tables
from critic.errors import UsageError, loads, located, notify, quoted, shorten_line
from critic.judging.thoughts import say_thoughts, split_thoughts, without_thoughts_in
from critic.records import TEN, HumanScore, Judgment, Language, ModelTurn, PromptInputs, Question, Response, Turn

UNUSABLE_FLAGS = tables.load_columns().flags
"""Flags that exclude a row from training and testing -> the reason to print."""

BLIND = "blind"
"""Flag of a row whose images no judge is shown, even if it accepts images."""

EDITED, SWAPPED = "edited", "swapped"
"""Flags of rows that `critic attack --images` changed: a fact was edited, or the image was swapped. The human score
belongs to the original row."""


class Row(Struct, kw_only=True):
    """One row of a human-scored file; critic/README.md describes the fields.

    `annotators` maps raters to their scores, on the scale `scale_min`..`scale_max`. `criteria_scores` are on that scale
    too, unless `criteria_scales` has the criterion's lowest and highest score.
    """

    id: str
    task: str
    lang: Language
    question: str
    reference: str | None
    response: str
    system: str | None
    human_score: float
    scale_min: float
    scale_max: float
    group: str
    history: list[Turn] = field(default_factory=list)
    references: list[str] | None = None
    image: str | None = None
    images: list[str] | None = None
    video: str | None = None
    category: str | None = None
    annotators: dict[str, float] | None = None
    reason: str | None = None
    score_1_10: float | None = None
    flags: list[str] = field(default_factory=list)
    scope: records.Scope = "turn"
    caption: str | None = None
    focus: str | None = None
    checklist: list[str] = field(default_factory=list)
    checklist_answers: list[bool | None] = field(default_factory=list)
    criteria: dict[str, str] = field(default_factory=dict)
    criteria_scores: dict[str, float] = field(default_factory=dict)
    criteria_scales: dict[str, tuple[float, float]] = field(default_factory=dict)
    criteria_weights: dict[str, Annotated[float, msgspec.Meta(gt=0)]] = field(default_factory=dict)
    label_probability: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    other: str | None = None
    other_system: str | None = None
    shown: PromptInputs | None = None
    form: str = ""

    @property
    def is_pair(self) -> bool:
        """True if people compared two answers. A `human_score` of `scale_max` then means that the first is better."""
        return self.other is not None or (self.shown is not None and len(self.shown.sides) > 1)

    def scale_of(self, criterion: str) -> tuple[float, float]:
        """Return the lowest and the highest score by a criterion."""
        return self.criteria_scales.get(criterion, (self.scale_min, self.scale_max))

    @property
    def pictures(self) -> list[str]:
        """The names of the row's images, and of its video."""
        video = [f"{records.VIDEO}{self.video}"] if self.video else []
        return [*(self.images or filter(None, [self.image])), *video]


_OF_PAIRS = ("response_a", "response_b", "system_a", "system_b", "preference")
FIELDS = (*(field.name for field in msgspec.structs.fields(Row)), *_OF_PAIRS, "rater")


class OwnColumns(Struct, frozen=True):
    """How to read rows whose columns have the user's own names.

    `columns`: field of Row -> column. `raters`: the score columns, if each rater has one.
    `scale`: lowest and highest score; None to use the scale in each row, or 1..10 if a row has none.
    `lang`: language of all rows; None to use the `lang` of each row.

    With any of these options set, or found (`find_columns`), a row needs only a question, a response and (if people
    scored it) a score. Missing fields get defaults: the id is the row number, or for a line of one rater a hash of what
    the line shows; the group is a hash of the image or question; the language is detected from the question.
    """

    columns: dict[str, str] = field(default_factory=dict)
    raters: list[str] = field(default_factory=list)
    scale: tuple[float, float] | None = None
    lang: Language | None = None

    @classmethod
    def parse(cls, mapped: Sequence[str] | None, scale: str | None, lang: Language | None) -> "OwnColumns | None":
        """Parse the values of --map (COLUMN=FIELD), --scale (LOW:HIGH) and --lang; return None if none of them is
        given.

        Raises UsageError for a malformed value or an unknown field.
        """
        columns = tables.parse_mapping(mapped or [], FIELDS, several=("human_score",), suffixes=(tables.SCORE_SUFFIX,))
        # Several columns of scores are several raters'.
        raters = columns.pop("human_score") if len(columns.get("human_score", [])) > 1 else []
        unique = {name: named[0] for name, named in columns.items()}
        ends = None if scale is None else parse_scale(scale)
        return cls(unique, raters, ends, lang) if unique or raters or scale or lang else None

    def rename(self, location: str, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Return the mapped cells by field name, with the raters' scores as `annotators`.

        Raises UsageError, beginning with `location`, if a mapped column is missing.
        """
        if missing := next((name for name in (*self.columns.values(), *self.raters) if name not in cells), None):
            raise UsageError(
                f"{location}: --map: there is no column {quoted(missing)} among {shorten_line(', '.join(cells))}"
            )
        scores = {name: cells[name] for name in self.raters if not tables.is_empty(cells[name])}
        by_rater = {"annotators": scores, "human_score": None} if self.raters else {}
        return {name: cells[column] for name, column in self.columns.items()} | by_rater

    def fill(self, location: str, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row with defaults for missing fields; `number` is its position in the file, from 1.

        Raises UsageError, beginning with `location`, if the row states another scale than --scale.
        """
        question = str(row.get("question"))
        shared = str(row.get("image") or row.get("images") or row.get("video") or question)
        low, high = self.scale or TEN
        scale = {"scale_min": low, "scale_max": high}
        default = _default_cells(question) | scale | {"id": str(number), "group": _hash_text(shared)}
        # Names say what the criteria are, if nothing else does.
        default["criteria"] = {name: name for name in row.get("criteria_scores") or ()}
        # Lines of several raters belong together if they show the same, in either order of the two sides.
        if row.get("rater") is not None:
            sides = sorted(f"{row.get(f'system{side}')}|{row.get(f'response{side}')}" for side in ("", "_a", "_b"))
            default["id"] = _hash_text("|".join([shared, question, str(row.get("history")), *sides]))
        chosen: dict[str, Any] = {"lang": self.lang} if self.lang else {}
        stated = tuple(row[name] for name in scale if row.get(name) is not None)
        if self.scale and stated not in ((), self.scale):
            raise UsageError(f"{location}: --scale {low:g}:{high:g}, but its scale_min, scale_max are {stated}")
        return {**default, **row, **chosen, **(scale if self.scale else {})}


def _default_cells(text: str) -> dict[str, Any]:
    """Return default cells for a row: empty task, 1..10 scale, and "zh" if `text` contains a Chinese character, else
    "en"."""
    lang = "zh" if tables.CHINESE.search(text) else "en"
    scale = {"scale_min": TEN[0], "scale_max": TEN[1]}
    return {"task": "", "lang": lang, "reference": None, "system": None, **scale}


def _hash_text(text: str) -> str:
    """Return the first 12 hexadecimal digits of a text's SHA-1."""
    return hashlib.sha1(text.encode(errors="surrogatepass")).hexdigest()[:12]


def parse_scale(text: str) -> tuple[float, float]:
    """Parse the value LOW:HIGH of --scale. Raises UsageError unless both are finite numbers and LOW < HIGH.

    >>> parse_scale("1:5")
    (1.0, 5.0)
    """
    with suppress(ValueError):
        low, high = map(float, text.split(":"))
        if -math.inf < low < high < math.inf:
            return low, high
    raise UsageError(f"--scale {quoted(text)}: expected LOW:HIGH, as in 1:5, two finite numbers with LOW below HIGH")


def find_columns(path: Path, own: OwnColumns | None) -> OwnColumns | None:
    """Return how to read the table at `path`: `own`, extended by what the names and values of its columns tell.

    `own` (the user's options, or None) is returned unchanged for rows with all required fields, for judgments and for
    replies of `critic infer`. Prints a line for each column that was found. Raises UsageError as `tables.detect_scale`
    does.
    """
    first, given = tables.read_first_row(path) or {}, own or OwnColumns()
    known = {*first, *given.columns}
    if records.is_judgment(first) or known >= _REPLY or known >= _REQUIRED:
        return own
    rows = [*tables.rows(path)]
    named = {*FIELDS, *given.columns.values(), *given.raters}
    free = {name: [row.get(name) for _, row in rows] for name in first if name not in named}
    columns = _find_fields(free, known)
    labels, scale = given.raters or [given.columns.get("human_score", "human_score")], given.scale
    if known.isdisjoint(_LABELS) and not given.raters:
        wanted = "preference" if {"response_a", "response_b"} <= {*known, *columns} else "human_score"
        labels = _find_labels(free, columns.values(), wanted)
        columns |= dict.fromkeys([wanted], labels[0]) if len(labels) == 1 else {}
    if "scale_min" not in known and scale is None:
        cells = [(place, row.get(name)) for place, row in rows for name in labels]
        scale = tables.detect_scale(cells, " and ".join(labels), path)
    raters = labels if labels[1:] else []
    found = {column: name for name, column in columns.items()}
    # Scores that were named by the user are said if their scale was found.
    found |= dict.fromkeys(labels, "human_score") if (raters, scale) != (given.raters, given.scale) else {}
    for column, name in found.items():
        notify(f"{path}: {tables.say_taken(name, column, scale if name == 'human_score' else None)}")
    return replace(given, columns=given.columns | columns, raters=raters, scale=scale) if found else own


def _find_labels(free: Mapping[str, Sequence[Any]], taken: Collection[str], wanted: str) -> list[str]:
    """Return the columns that hold people's labels; several if each rater has one.

    `free`: cells by column. `taken`: the columns that already belong to a field. `wanted`: the kind of label,
    "preference" or "human_score".
    """
    read = partial(tables.find_label, "preference") if wanted == "preference" else tables.read_number
    named = [name for name in free if name not in taken and tables.load_columns().is_verdict(name)]
    return tables.find_people([name for name in named if tables.can_read(read, free[name])])


_REPLY = {"conversation", "sampling"}
"""Columns of replies of `critic infer`."""

_LABELS = {"human_score", "preference", "annotators"}
"""Columns that hold people's labels."""

_REQUIRED = {field.name for field in msgspec.structs.fields(Row) if field.required}
"""Fields that every row must have; a file that has all of them needs no mapping of columns."""


def _find_fields(free: Mapping[str, Sequence[Any]], known: Set[str]) -> dict[str, str]:
    """Return field -> column for the fields of Row that have a column with a usual name.

    `free`: column -> cells, for the columns that may be used. `known`: names of columns that are fields already.
    """
    table = tables.load_columns()
    # A language has to be one of ours, and is told from the question.
    absent = {name: usual for name, usual in (table.rows | table.names).items() if name not in {*known, "lang"}}
    columns = {name: column for name, column in tables.match_columns(free, absent).items() if name in FIELDS}
    if {*known, *columns} >= {"response_a", "response_b"}:
        columns.pop("response", None)
    # An id is one row's, unless several raters have lines of it.
    ids = free.get(columns.get("id", ""), ())
    if len(set(map(str, ids))) < len(ids) and "rater" not in {*known, *columns}:
        del columns["id"]
    return columns


def _suggest_mapping(columns: Sequence[str]) -> str:
    """Return a hint for an error message: the --map options to add for a file whose `columns` lack fields."""
    if "form" in map(str.lower, columns):
        return "no label by people stands in this judgment: critic import-grades makes judgments that have one"
    matched = tables.match_columns(columns, tables.load_columns().names | tables.load_columns().labels)
    is_pair = "response_b" in matched or ("preference" in matched and "response" not in matched)
    wanted = ("question", *(("response_a", "response_b", "preference") if is_pair else ("response", "human_score")))
    absent = [f"--map {shlex.quote(matched.get(name, 'COLUMN'))}={name}" for name in wanted if name not in columns]
    own = shorten_line(", ".join(name for name in columns if name not in FIELDS))
    return f"name the file's own columns ({own}), as in {' '.join(absent or ['--lang en'])}"


_CRITERION = re.compile(r"\w[\w .-]{0,39}")

_OTHER_KEYS = ("rating", "reason", "评分", "分数", "理由")
"""Keys of a verdict, in lower case, that a criterion may not be named after (critic.judging.parse reads them)."""


def check_criteria(criteria: Mapping[str, str], location: str) -> None:
    """Raise UsageError if a criterion's name cannot be a key of the verdict's JSON, such as a duplicate or "rating".

    `criteria` maps names to meanings; `location` begins the message.
    """
    taken = set(_OTHER_KEYS)
    for name in criteria:
        if not _CRITERION.fullmatch(name) or name.lower() in taken:
            raise UsageError(
                f"{location}: criterion {quoted(name)}: a name is up to 40 letters, digits, spaces, dots and hyphens, "
                f"differs from the others in more than capitals, and is none of {', '.join(_OTHER_KEYS)}"
            )
        taken.add(name.lower())


def _check_scores(row: Row, location: str) -> None:
    """Check the values of a row; `location` begins the messages.

    Raises UsageError for an empty scale, a score outside it, a wrong number of checklist answers, an invalid name of a
    criterion, or scores of unknown criteria.
    """
    tables.check_ids([row.group], location, "group")
    if not row.scale_min < row.scale_max:
        raise UsageError(f"{location}: scale_min {row.scale_min:g} must be below scale_max {row.scale_max:g}")
    whole, hint = (row.scale_min, row.scale_max), "; criteria_scales says which scale a criterion has"
    scores = {"human_score": row.human_score, **(row.annotators or {})}
    scored = [(name, score, whole, "") for name, score in scores.items()]
    # A criterion may have the name of a rater.
    scored += [(name, score, row.scale_of(name), hint) for name, score in row.criteria_scores.items()]
    for name, score, (low, high), hint in scored:
        if not low <= score <= high:
            raise UsageError(f"{location}: {name} {score:g} is outside its scale {low:g}..{high:g}{hint}")
    answers, questions = len(row.checklist_answers), len(row.checklist)
    if answers not in (0, questions):
        raise UsageError(f"{location}: {answers} checklist_answers to {questions} questions")
    check_criteria(row.criteria, location)
    for column in ("criteria_scores", "criteria_scales", "criteria_weights"):
        if unknown := getattr(row, column).keys() - row.criteria.keys():
            raise UsageError(f"{location}: {column} of {', '.join(sorted(unknown))}, which criteria does not name")


def _parse_scores(location: str, cells: Mapping[str, Any], **options: Any) -> dict[str, float]:
    """Return the scores in the cells, by name, without empty cells. `options` are passed to `parse_optional_number`.

    Raises UsageError for a cell that is not a number, or outside the range in `options`.
    """
    scores = {name: tables.parse_optional_number(location, name, cell, **options) for name, cell in cells.items()}
    return {name: score for name, score in scores.items() if score is not None}


def build_response(row: Row, columns: dict[str, float]) -> Response:
    """Convert a row to a Response, with all scores moved onto 1..10 and a preference onto 0..1.

    `columns` holds the other judges' scores by column name.
    """

    same = ("task", "category", "group", "lang", "reference", "history", "caption", "focus", "checklist", "criteria")
    question = Question(
        id=row.group,
        prompt=row.question,
        references=row.references or [],
        images=[] if BLIND in row.flags else row.pictures,
        **{name: getattr(row, name) for name in (*same, "criteria_weights")},
    )
    other = None if row.other is None else Response(id="", question=question, text=row.other, system=row.other_system)
    response = Response(id=row.id, question=question, text=row.response, system=row.system, columns=columns)
    # A preference is a share of the scale, whatever the scale: 0..1.
    if row.is_pair:
        label: dict[str, Any] = {"preference": (row.human_score - row.scale_min) / (row.scale_max - row.scale_min)}
    else:
        scale = row.scale_min, row.scale_max
        raters = {name: records.to_ten(score, *scale) for name, score in (row.annotators or {}).items()}
        criteria = {name: records.to_ten(score, *row.scale_of(name)) for name, score in row.criteria_scores.items()}
        score = records.to_ten(row.human_score, *scale)
        human = HumanScore(score=score, raters=raters, reason=row.reason, scope=row.scope)
        checked = {"answers": row.checklist_answers, "criteria": criteria}
        label = {"human": replace(human, **checked, probability=row.label_probability)}
    return replace(response, other=other, shown=row.shown, form=row.form, **label)


def build_unscored(cells: dict[str, Any]) -> Response:
    """Convert the cells of a row that nobody scored to a Response, as `walk` does: without the model's thoughts.

    `cells`: at least `id`, `question` and `response`. The human score of the result is a placeholder. Raises UsageError
    if a cell is missing or has a wrong type.
    """
    row = _convert_row(str(cells["id"]), _fill_score(cells, scored=False), [*cells])
    _, ends = _remove_thoughts(row)
    return replace(build_response(row, {}), cut_off=any(ends))


_OURS = {"other": "other_system", "shown": "form", "form": "shown"}
"""Column -> column that must accompany it. Without its companion, the name means something else in other people's
tables, and the column is ignored."""

_TEXTS = {field.name for field in msgspec.structs.fields(Row) if field.type in (str, str | None)} | {*_OF_PAIRS}
_NUMBERS = ("human_score", "scale_min", "scale_max", "score_1_10", "label_probability")
_JSON_COLUMNS = {*FIELDS, "dims"} - {*_TEXTS, *_NUMBERS, "lang", "scope", "rater"}
"""Columns of lists, tables and prompts, which a table's cell holds as JSON."""


def _read_cells(location: str, cells: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of a CSV or parquet table to the form it has in a .jsonl file.

    Parse JSON columns, numbers and images, and turn numeric ids and texts into strings. Raises UsageError for a cell
    that cannot be parsed.
    """
    raw: dict[str, Any] = {}
    for name, cell in cells.items():
        raw[name] = cell
        if name in _JSON_COLUMNS and isinstance(cell, str):
            with located(f"{location}: column {name} must hold JSON", ValueError):
                raw[name] = loads(cell, unique=True) if cell else None
        elif name in ("image", "video") and cell:
            raw[name] = tables.parse_image(location, cell)
        elif name in _NUMBERS or name.endswith(tables.SCORE_SUFFIX):
            raw[name] = tables.parse_optional_number(location, name, cell)
        elif name in _TEXTS:
            raw[name] = tables.cell_text(cell) or ("" if name.startswith("response") else None)
        elif cell == "":
            raw[name] = None
    if isinstance(images := raw.get("images"), list):
        raw["images"] = [tables.parse_image(location, image) for image in images]
    return raw


def _drop_nulls(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row without empty columns and without empty entries of raters and criteria, which data frames add.

    Empty references, systems and labels are kept, since they have a meaning.
    """
    may_be_null = ("reference", "system", "human_score", "preference")
    row = {name: value for name, value in raw.items() if value is not None or name in may_be_null}
    for name in ("annotators", "criteria", "criteria_scores", "criteria_scales", "criteria_weights"):
        if isinstance(row.get(name), dict):
            row[name] = {key: value for key, value in row[name].items() if value is not None}
    return row


_PREFERENCES: dict[tables.Choice, float] = {"a": 1.0, "tie": 0.5, "b": 0.0}
"""Score of each preference for the first answer, on 0..1."""


def _read_label(location: str, raw: dict[str, Any], scored: bool) -> dict[str, Any]:
    """Return the row with its label in `human_score`.

    For a pair, `response_a` becomes the response and `response_b` becomes `other`. A preference (a, tie or b) becomes a
    score of 1, 0.5 or 0. An empty score is computed from the raters' scores. If not `scored`, a preference beside a
    single answer is ignored. Raises UsageError for an unknown preference, or for a pair with only one answer.
    """
    row = {name: value for name, value in raw.items() if name not in _OF_PAIRS}
    if answers := [name for name in ("response_a", "response_b") if raw.get(name) is not None]:
        if len(answers) < 2:
            raise UsageError(f"{location}: only {answers[0]}; a pair has both response_a and response_b")
        row = {"reference": None, **row, "response": raw["response_a"], "other": raw["response_b"]}
        row |= {"system": raw.get("system_a"), "other_system": raw.get("system_b")}
    word = raw.get("preference")
    if "preference" in raw:
        row.setdefault("human_score", None)
    if not tables.is_empty(word) and (scored or _compares(row)):
        if not _compares(row):
            raise UsageError(
                f"{location}: preference {quoted(word)} beside one answer; a pair has response_a and response_b"
            )
        label = tables.find_label("preference", word)
        if label is None:
            choices = ", ".join(tables.name_labels("preference"))
            raise UsageError(f"{location}: preference {quoted(word)}; expected {choices}, or such words as model_a")
        row |= {"human_score": _PREFERENCES[label], "scale_min": 0, "scale_max": 1}
    if row.get("human_score", "absent") is None and isinstance(raters := row.get("annotators"), dict):
        labels = {rater: tables.find_label("preference", word) for rater, word in raters.items()}
        if _compares(row) and all(labels.values()):
            raters = {rater: _PREFERENCES[label] for rater, label in labels.items() if label}
            row |= {"scale_min": 0, "scale_max": 1}
        scores = _parse_scores(location, raters)
        # A row that nobody scored yet keeps its empty label.
        mean = settle_scores(scores.values(), _is_preference(row)) if scores else None
        row |= {"annotators": scores, "human_score": mean}
    return row


def _compares(row: Mapping[str, Any]) -> bool:
    """Return True if an unvalidated row has two answers to compare (as `Row.is_pair` for a validated one)."""
    shown = row.get("shown")
    return row.get("other") is not None or len((shown.get("sides") or ()) if isinstance(shown, dict) else ()) > 1


def _is_preference(row: Mapping[str, Any]) -> bool:
    """Return True if a row's label is a preference (a, tie or b) and not a score."""
    return _compares(row) and (row.get("scale_min"), row.get("scale_max")) == (0, 1)


def settle_scores(scores: Collection[float], compares: bool) -> float:
    """Combine raters' scores: return their mean or, for preferences, the most frequent one (0.5 if two are equally
    frequent).

    `compares`: True if two answers were compared. The scores are preferences only then, and only if all are 0, 0.5 or
    1.

    >>> settle_scores([1.0, 1.0, 0.0], compares=True), settle_scores([1.0, 1.0, 0.0], compares=False)
    (1.0, 0.6666666666666666)
    """
    if not compares or not {*scores} <= {*_PREFERENCES.values()}:
        return fmean(scores)
    most = multimode(scores)
    return most[0] if len(most) == 1 else _PREFERENCES["tie"]


def settle_answers(answers: Iterable[Any], yes: Any = True, no: Any = False) -> bool | None:
    """Return True if more raters answered `yes` than `no`, False if fewer did, or None for a tie.

    >>> settle_answers(["yes", "no", "yes", "cannot say"], "yes", "no"), settle_answers([True, False, None])
    (True, None)
    """
    count = Counter(answers)
    return None if count[yes] == count[no] else count[yes] > count[no]


_Line = tuple[str, dict[str, Any], dict[str, Any]]
"""A row: its location for messages, its cells as read (with a table's numbers and JSON parsed), and the cells without
nulls and with the label in `human_score`."""


def _merge_by_rater(lines: Iterable[_Line]) -> Iterator[_Line]:
    """Merge lines that name a rater into one row per id; yield all other lines unchanged.

    Merged rows come last. Raises UsageError if lines with one id do not fit together (`_merge_raters`).
    """
    by_id: dict[str, list[_Line]] = {}
    for location, cells, raw in lines:
        if (rater := raw.pop("rater", None)) is None:
            yield location, cells, raw
        else:
            by_id.setdefault(str(raw.get("id")), []).append((location, {"rater": rater}, raw))
    yield from (_merge_raters(key, by_id.pop(key)) for key in [*by_id])


_SIDES = {"response": "other", "system": "other_system", "other": "response", "other_system": "system"}
_SHOWN = ("question", "history", "reference", "image", "images", "video", "shown", "checklist", "criteria", *_SIDES)


def _merge_raters(key: str, lines: Sequence[_Line]) -> _Line:
    """Merge the lines of all raters of one answer or pair, with id `key`, into one row.

    The score of a line that shows the two answers in the opposite order is mirrored. Raises UsageError if a rater is
    repeated, if scales differ, or if the lines show different content.
    """
    labelled = [line for line in lines if line[2].get("human_score") is not None]
    first, _, row = (labelled or lines)[0]
    labels = dict[str, Row]()
    for location, cells, raw in lines:
        differs = [name for name in _SHOWN if None not in (raw.get(name), row.get(name)) and raw[name] != row[name]]
        turned = all(raw.get(name) == row.get(side) for name, side in _SIDES.items()) and _compares(raw)
        exchanged = bool(differs) and turned and differs[0] in _SIDES
        if differs and not exchanged:
            raise UsageError(
                f"{location}: {differs[0]} of {quoted(key)} is another at {first}; an id is one answer's or pair's"
            )
        if raw.get("human_score") is None:
            continue
        if (rater := str(cells["rater"])) in labels:
            raise UsageError(f"{location}: {rater} on {quoted(key)} is there twice; name answers apart by id or system")
        if differ := [f"{end} {raw.get(end)}" for end in ("scale_min", "scale_max") if raw.get(end) != row.get(end)]:
            raise UsageError(f"{location}: {', '.join(differ)}, and another at {first}: raters' scales disagree")
        label = _convert_row(location, raw, [*raw])
        _check_scores(label, location)
        score = label.scale_min + label.scale_max - label.human_score if exchanged else label.human_score
        labels[rater] = replace(label, human_score=score)
    merged = row | _merge_details([*labels.values()])
    if labels:
        scores = {rater: label.human_score for rater, label in labels.items()}
        merged |= {"annotators": scores, "human_score": settle_scores(scores.values(), _is_preference(row))}
    return first, merged, merged


def _merge_details(labels: Sequence[Row]) -> dict[str, Any]:
    """Merge what raters gave beside the score: mean score per criterion, majority per checklist item, and the first
    reason."""
    scores = [label.criteria_scores for label in labels]
    criteria = {name: fmean(each[name] for each in scores if name in each) for name in dict.fromkeys(chain(*scores))}
    answers = list(map(settle_answers, zip_longest(*(label.checklist_answers for label in labels))))
    reason = next((label.reason for label in labels if label.reason), None)
    details = {"criteria_scores": criteria, "checklist_answers": answers, "reason": reason}
    return {name: value for name, value in details.items() if value}


_NAMES = {"score": "human_score", "raters": "annotators", "answers": "checklist_answers", "criteria": "criteria_scores"}


def _row_of_judgment(location: str, cells: dict[str, Any]) -> dict[str, Any]:
    """Convert a judgment of `critic judge` or `critic import-grades` to a row, with the human label if it has one.

    Any other row is returned unchanged. Raises UsageError if the judgment is malformed.
    """
    if not records.is_judgment(cells):
        return cells
    with located(location, ValueError):
        judgment = jsonl.build_decoder(Judgment)(msgspec.json.encode(cells))
    response = judgment.sample.response
    question, human, shown = map(msgspec.to_builtins, (response.question, response.human or {}, judgment.sample.shown))
    row = {"reference": None, **question, "question": response.question.prompt}
    row |= {"response": response.text, "system": response.system, "id": judgment.id, "shown": shown}
    row |= {"form": judgment.prompt, "scale_min": TEN[0], "scale_max": TEN[1]}
    row |= {_NAMES.get(name, name): value for name, value in human.items() if name != "probability"}
    if (other := judgment.sample.other) is not None:
        row = {name: value for name, value in row.items() if name not in ("human_score", "annotators")}
        row |= {"other": other.answer, "other_system": other.system}
        # The label is how many points people's score of the first is above the other's.
        if response.human and other.human:
            widest = TEN[1] - TEN[0]
            ahead = response.human.score - other.human.score
            row |= {"human_score": ahead, "scale_min": -widest, "scale_max": widest}
    if judgment.sample.preference is not None:
        row |= {"human_score": judgment.sample.preference, "scale_min": 0, "scale_max": 1}
    return row


def _row_of_reply(location: str, cells: dict[str, Any]) -> dict[str, Any] | None:
    """Convert a reply of `critic infer` to a row, or return None if the reply failed. Any other row is returned
    unchanged.

    Raises UsageError for a malformed reply. Also raises it for turn 2 or later if the history holds the model's own
    replies, because the answers of different models would have different histories.
    """
    if not cells.keys() >= _REPLY:
        return cells
    with located(location, ValueError):
        turn = msgspec.convert(cells, ModelTurn)
        turn.check()
        turn = without_thoughts_in(turn)
    # Under these two conditions the references come before the turn, the same for all models.
    if turn.turn > 1 and turn.condition not in ("oracle", "rephrased_reference"):
        raise UsageError(
            f"{location}: turn {turn.turn} under the condition {turn.condition}; expected --condition oracle"
        )
    conversation, question = turn.conversation, turn.conversation.turns[turn.turn - 1]
    earlier = conversation.turns[: turn.turn - 1]
    before = [Turn(user=exchange.prompt, assistant=exchange.reference or "") for exchange in earlier]
    row: dict[str, Any] = {"id": f"{conversation.id}/{turn.turn}/{turn.system}/{turn.condition}"}
    row |= {"lang": conversation.lang, "task": question.task or "", "question": question.prompt}
    row |= {"reference": question.reference, "group": conversation.group, "response": turn.reply, "system": turn.system}
    row["history"] = msgspec.to_builtins([*conversation.history, *before])
    row["images"] = [*chain.from_iterable(exchange.images for exchange in [*earlier, question])]
    optional: dict[str, Any] = {"category": conversation.category, "caption": conversation.caption}
    optional |= {"focus": question.focus, "checklist": question.checklist}
    return None if turn.reply is None else {**row, **{name: value for name, value in optional.items() if value}}


def say_left_out(counts: Counter[str]) -> None:
    """Print to stderr, for each reason, how many rows were left out."""
    for reason, count in counts.most_common():
        notify(f"left out {count} rows: {reason}")


class Loaded(Struct):
    """The usable rows of a file, in file order, in three forms, and the number of rows left out by reason.

    `raw` holds each row's cells as in the file; `responses` holds each row as a Response.
    """

    rows: list[Row]
    raw: list[dict[str, Any]]
    responses: list[Response]
    left_out: Counter[str]


def _read_raw_rows(path: Path, scored: bool, own: OwnColumns | None) -> Iterator[_Line]:
    """Yield the rows of a file or folder, cleaned but not validated.

    Unless `scored`, replies of `critic infer` are accepted, and failed ones are skipped.
    """
    number = 0
    for file in tables.list_files(path):
        typed = jsonl.suffix(file) == ".jsonl"
        columns = find_columns(file, own)
        for location, entry in tables.rows(file):
            number += 1
            cells = _row_of_judgment(location, entry) if scored else _row_of_reply(location, entry)
            if cells is None:
                continue
            # In people's tables some of our names mean something else.
            named = {name: cell for name, cell in cells.items() if typed or _OURS.get(name, name) in cells}
            named |= columns.rename(location, cells) if columns else {}
            cells = named if typed else _read_cells(location, named)
            raw = _drop_nulls(cells)
            if columns:
                cells = raw = columns.fill(location, number, raw if scored else {**raw, "rater": None})
            yield location, cells, _read_label(location, raw, scored)


def walk(
    path: Path,
    left_out: Counter[str],
    keep_flags: frozenset[str] = frozenset(),
    judges: Sequence[str] = (),
    pictures: bool = False,
    scored: bool = True,
    own: OwnColumns | None = None,
    unlabelled: bool = False,
) -> Iterator[tuple[Row, dict[str, Any], Response]]:
    """Yield the usable rows of a file or folder, each as a Row, as its cells in the file, and as a Response.

    `left_out`: is updated with the number of unusable rows by reason: a flag, no reference, no label, a cut-off answer.
    `keep_flags`: flags of UNUSABLE_FLAGS that do not exclude a row.
    `judges`: names of judges (columns JUDGE_score_1_10). A row without a human label is kept if one of them scored it.
        The number of rows without a judge's score is added to `left_out`.
    `pictures`: True if rows with images or a video need no reference.
    `scored`: False if rows need only id, question and response; replies of `critic infer` are accepted then.
    `own`: how to read the user's own columns, or None.
    `unlabelled`: True if rows may lack a human label.

    Raises UsageError, naming file, line and column, for a missing column, a score outside its scale or a repeated id.
    Also raises it if one of the `judges` scored no row at all.
    """
    ids, seen, answers, thinking = tables.Ids(), set[str](), 0, 0
    scales = dict[str, tuple[float, float]]()
    lines = _read_raw_rows(path, scored, own)
    for location, cells, raw in _merge_by_rater(lines) if scored else lines:
        others = {name: cell for name, cell in raw.items() if name.endswith(tables.SCORE_SUFFIX)}
        # FastChat's mark of a reply without a verdict is no score.
        columns = _parse_scores(location, others, ends=TEN, none=records.NO_VERDICT)
        lacks = raw.get("human_score") is None
        seen.update(columns)
        unscored_by = [tables.score_column(judge) for judge in judges if tables.score_column(judge) not in columns]
        empty = lacks and scored and not unlabelled and len(unscored_by) == len(judges)
        if empty and (judges or "human_score" in raw):
            left_out[", nor ".join(["no score by people", *([", ".join(unscored_by)] if judges else [])])] += 1
            continue
        # The score put in its place is no label of the response.
        filled = _fill_score(raw, scored) if lacks and (judges or unlabelled or not scored) else raw
        row = _convert_row(location, filled, [*cells])
        ids.add(location, row.id)
        if reason := _find_unusable(row, keep_flags, pictures):
            left_out[reason] += 1
            continue
        _check_scores(row, location)
        for name, (low, high) in row.criteria_scales.items():
            if scales.setdefault(name, (low, high)) != (low, high):
                before = "{:g}..{:g}".format(*scales[name])
                raise UsageError(f"{location}: {name} is on the scale {low:g}..{high:g}, in a row before on {before}")
        has_thoughts, ends = _remove_thoughts(row)
        answers, thinking = answers + 1, thinking + has_thoughts
        # People scored an answer that has no end: no label of a complete one. A judge fails it by name.
        if any(ends) and scored:
            left_out[records.CUT_OFF] += 1
            continue
        left_out.update(f"no {name}" for name in unscored_by)
        no_label = {"human": None, "preference": None} if lacks else {}
        yield row, dict(cells), replace(build_response(row, columns), cut_off=any(ends), **no_label)
    say_thoughts(path, thinking, answers)
    if missing := [tables.score_column(judge) for judge in judges if tables.score_column(judge) not in seen]:
        choices = ", ".join(sorted(seen)) or "none of another judge"
        raise UsageError(f"{path}: no row has {missing[0]}; the columns on 1..10: {choices}")


def _remove_thoughts(row: Row) -> tuple[bool, list[bool]]:
    """Remove the models' thoughts from a row's answers and history, in place.

    Return True if an answer had thoughts, and for each answer whether it ends before its thoughts do.
    """
    row.history = [Turn(turn.user, split_thoughts(turn.assistant).answer) for turn in row.history]
    splits = [split_thoughts(text) for text in (row.response, row.other) if text is not None]
    row.response = splits[0].answer
    if row.other is not None:
        row.other = splits[1].answer
    return any(split.thoughts for split in splits), [not split.closed for split in splits]


def _convert_row(location: str, raw: dict[str, Any], columns: Sequence[str]) -> Row:
    """Validate a row's cells as a Row. `columns` are the file's columns, for the hint.

    Raises UsageError if they do not fit; if a field is missing, the message suggests --map options.
    """
    try:
        # Scores in the JSON of a table's cell may be strings.
        return msgspec.convert(raw, Row, strict=False)
    except msgspec.ValidationError as error:
        hint = f"; {_suggest_mapping(columns)}" if "missing required field" in str(error) else ""
        raise UsageError(f"{location}: {shorten_line(str(error))}{hint}") from None


def _fill_score(raw: dict[str, Any], scored: bool) -> dict[str, Any]:
    """Return a row that has no human score, with a placeholder (`scale_min`) as its score.

    If not `scored`, also fill in defaults for all missing fields but id, question and response; the group is then the
    row's id.
    """
    own = {name: value for name, value in raw.items() if name not in ("human_score", "annotators", "label_probability")}
    if scored:
        return {**own, "human_score": raw.get("scale_min", TEN[0]), "criteria_scores": {}}
    default = _default_cells(f"{raw.get('question')}{raw.get('response')}") | {"group": raw.get("id", "")}
    # Its own columns come first: an error then names one of them.
    row = {**own, **default, **own}
    return {**row, "human_score": row["scale_min"]}


def _find_unusable(row: Row, keep_flags: frozenset[str], pictures: bool) -> str | None:
    """Return the reason for leaving a row out, or None if it is usable.

    `keep_flags` and `pictures` are as in `walk`.
    """
    # An image shows what is right.
    kept = keep_flags | {"no_reference"} if pictures and row.pictures else keep_flags
    flags = [flag for flag in row.flags if flag in UNUSABLE_FLAGS and flag not in kept]
    if not row.reference and not row.is_pair and row.shown is None and "no_reference" not in kept:
        flags.append("no_reference")
    return UNUSABLE_FLAGS[flags[0]] if flags else None


def load(path: Path, **options: Any) -> Loaded:
    """Return all rows that `walk` yields as one object; `options` are passed on to `walk`."""
    loaded = Loaded([], [], [], Counter())
    for row, raw, response in walk(path, loaded.left_out, **options):
        loaded.rows.append(row)
        loaded.raw.append(raw)
        loaded.responses.append(response)
    return loaded


def describe_one_class(responses: Sequence[Response]) -> str | None:
    """Return an error message if all rows have the same label, from which a judge cannot learn; else None.

    A single row passes.
    """
    labels = [(human.score, human.answers, human.criteria) for response in responses if (human := response.human)]
    # A single row may be a try of the command.
    if len(labels) < 2 or any(label != labels[0] for label in labels):
        return None
    return (
        f"every row has the score {labels[0][0]:g} ({len(labels)} rows, on 1..10): a judge that learns from them "
        "says it of any answer; give rows with different scores"
    )
