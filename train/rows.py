"""Tokenize human-scored rows once and in parallel. The result is cached on disk and memory-mapped."""

import hashlib
import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import msgspec
import numpy as np
import transformers
from filelock import FileLock
from recipe import objective_of
from recipe_keys import PEOPLE, Recipe, judges, labels, list_made_files, used_forms
from tiny import tiny_processor, train_tokenizer
from vision import SeeingTokenizer, read_processor

from critic import human_scored, jsonl, tables
from critic.backends import parts_of
from critic.backends.answers import cut_answer, find_answer
from critic.errors import UsageError
from critic.human_scored import EDITED, SWAPPED, Loaded
from critic.images import ImageError, Images
from critic.judging.distribution import probabilities, whole_rating
from critic.judging.examples import Plan, Planned, build_example, plan
from critic.judging.forms import ONE_SIDE, form_of, rates
from critic.judging.kinds import human_score
from critic.judging.prompt import load, prompt_hash
from critic.judging.targets import encode, source_ids, target
from critic.records import RATINGS, TEN, Example, HumanScore, Judgment, Response, Scale

FORMAT = 10
"""Version of the cache. Increase it to make all caches invalid."""

TOKENIZED = {"forms", "labels", "arms", "images", "max_image_pixels", "vision", "tiny"}
TOKENIZED |= {"max_source_tokens", "max_target_tokens"}
"""Keys of a recipe, by the names under which they are saved, that token ids depend on."""

FEWEST_IN_PARALLEL = 2000
"""Fewest examples for which starting more processes saves time."""

FAR_APART = 5.0
"""Difference between scores of one answer, in points on 1..10, that is too large for noise: half of the scale."""

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(tuple[Planned, dict[str, Response], float, str])


class Data(msgspec.Struct, frozen=True):
    """Tokenized examples (`rows`), and counts of truncated, refused and left-out ones (`counts`).

    Columns of `rows`:

    - id, group, form, input_ids, length.
    - source: number of prompt tokens. answer: index of the first token of the prompt's answer
      (`critic.backends.answers.find_answer`).
    - value: positions of the tokens that spell the verdict's value; for a checklist, its answers.
    - rating: integer 1..10, or 0 if there is none.
    - people: human scores as probabilities of the ratings 1..10, or [] if the form does not rate. For a pair, one
      number: how far people prefer the first answer, -1..1. If the recipe has `criteria`: probabilities of the scores
      by each criterion, in alphabetical order of the criteria. The criteria that the row was scored by have equal sums,
      which add up to 1; all others are 0.
    - other_ids: token ids of the prompt for a pair's second answer, or [].
    - weight: weight of the source of the score, above 0.
    - scorer: who gave the score: `people`, or a judge as named in the recipe's `labels`.
    - images, image_tokens: names of the images in order, and the number of tokens of each.
    """

    rows: datasets.Dataset
    counts: dict[str, Any]


def prompt_hashes(recipe: Recipe) -> dict[str, str]:
    """Return the hashes of the prompts that the recipe's forms are rendered with, by name in alphabetical order."""
    names = sorted(map(objective_of(recipe).prompt_form, used_forms(recipe)))
    return {name: prompt_hash(name, sees(recipe)) for name in names}


def sees(recipe: Recipe) -> bool:
    """Return True if the judge is shown images."""
    return recipe.images == "show"


def fingerprint(recipe: Recipe, train: Path) -> dict[str, Any]:
    """Return the facts that token ids depend on, as JSON: recipe keys, files and prompts.

    The tokenizer of a base is not included.
    """
    keys, criteria = msgspec.to_builtins(recipe), dict(objective_of(recipe).criteria)
    files = [*tables.list_files(train), *map(Path, list_made_files(recipe))]
    return {
        "format": FORMAT,
        "recipe": {name: keys[name] for name in TOKENIZED} | ({"criteria": criteria} if criteria else {}),
        "files": sorted(map(jsonl.sha256, files)),
        "prompts": prompt_hashes(recipe),
    }


def prepare(recipe: Recipe, train: Path, cache: Path, processes: int, images: Images | None = None) -> tuple[Data, Any]:
    """Return the tokenized examples of `train` and the tokenizer. Use the `cache` folder if it already holds them.

    `processes` is the number of processes to tokenize with. With `images` the tokenizer is a SeeingTokenizer. Raise
    UsageError if there is no example to learn from or the base has no suitable tokenizer.
    """
    facts = fingerprint(recipe, train)
    tokenizer = None if recipe.tiny else base_tokenizer(recipe, images)
    if tokenizer is not None:
        facts["tokenizer"] = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
        facts["template"] = tokenizer.chat_template
    # Reading the rows takes long, so it is done only for images or on a cache miss.
    loaded = None
    if images is not None:
        loaded = _load_rows(recipe, train, True)
        names = {name for response in loaded.responses for name in response.question.images}
        facts["images"] = {**images.facts(), "files": images.state(names)}
        if tokenizer is not None:
            facts["processor"] = tokenizer.processor.to_json_string()
    folder = cache / hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    cache.mkdir(parents=True, exist_ok=True)
    # A second run with the same rows waits for the first one's tokens.
    with FileLock(f"{folder}.lock"):
        if not (folder / "counts.json").is_file():
            _build(recipe, train, loaded or _load_rows(recipe, train, False), folder, tokenizer, processes, images)
    if tokenizer is None:
        tokenizer = _read_tokenizer(str(folder / "tokenizer"), images)
    counts = json.loads((folder / "counts.json").read_text("utf-8"))
    return Data(datasets.load_from_disk(str(folder / "rows")), counts), tokenizer


def _read_tokenizer(folder: str, images: Images | None, revision: str | None = None) -> Any:
    """Return the tokenizer in a folder or on a hub, as a SeeingTokenizer if `images` is given."""
    if images is None:
        return transformers.AutoTokenizer.from_pretrained(folder, revision=revision)
    return SeeingTokenizer(read_processor(folder, revision), images)


def base_tokenizer(recipe: Recipe, images: Images | None = None) -> Any:
    """Return the tokenizer of a recipe's base, with the recipe's `chat_template_kwargs` set in its chat template.

    Raise UsageError if it is missing, is not a fast tokenizer, or has no suitable chat template.
    """
    base = str(recipe.base)
    try:
        tokenizer = _read_tokenizer(base, images, recipe.revision)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise UsageError(f"base {base!r} is no model that transformers can load: {why}") from None
    if tokenizer.chat_template is None:
        raise UsageError(f"base {base!r} has no chat template; take the chat version of the model")
    for name, value in (recipe.chat_template_kwargs or {}).items():
        line = f"{{%- set {name} = {value!r} %}}"
        # The base is a judge that was trained with it.
        if line in tokenizer.chat_template:
            continue
        # A variable that no template reads would be noted in critic.json and change nothing.
        if not re.search(rf"\b{name}\b", tokenizer.chat_template):
            raise UsageError(f"base {base!r}: its chat template takes no {name}; leave it out of chat_template_kwargs")
        tokenizer.chat_template = f"{line}\n{tokenizer.chat_template}"
    if not tokenizer.is_fast:
        raise UsageError(f"base {base!r} has no fast tokenizer, which the place of the rating is found with")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    message = {"role": "user", "content": "?"}
    begins = tokenizer.bos_token_id
    # Without <bos> a Gemma writes nonsense, and not all who write its tokenizer put it in front of texts.
    needed = begins in tokenizer("?")["input_ids"][:1] or tokenizer.bos_token == "<bos>"
    if begins is not None and needed and source_ids(tokenizer, [message])[0] != begins:
        raise UsageError(
            f"base {base!r}: texts begin with {tokenizer.bos_token}, but its chat template leaves it out; "
            "put {{ bos_token }} in front of it"
        )
    try:
        encode(tokenizer, Example(id="", form="pointwise", messages=[message], target=target(RATINGS[0], "")))
    except UsageError as error:
        thinks = "enable_thinking" in tokenizer.chat_template and not recipe.chat_template_kwargs
        way = "set chat_template_kwargs: {enable_thinking: false}" if thinks else "choose a base that does not think"
        raise UsageError(f"base {base!r}: {error}; {way}") from None
    return tokenizer


def _load_rows(recipe: Recipe, train: Path, pictures: bool) -> Loaded:
    """Read the training rows. `pictures` keeps rows that need an image.

    Raise UsageError if `critic attack` changed some of the answers.
    """
    columns, teachers = judges(recipe)
    loaded = human_scored.load(train, judges=columns, pictures=pictures, unlabelled=bool(teachers))
    if changed := [row.id for row in loaded.rows if {EDITED, SWAPPED} & {*row.flags}]:
        why = f"{len(changed)} answers that `critic attack --images` changed ({changed[0]}) have no score by people"
        raise UsageError(
            f"{train}: {why}; train on the rows as they were, and name this file in counterfactuals of the recipe"
        )
    _check_scales(train, loaded.rows, objective_of(recipe).criteria)
    return loaded


def _make_raters(shares: list[float], key: str) -> HumanScore:
    """Return a rating distribution [10] as a HumanScore with twenty raters.

    Its `score`, which a verdict to learn contains, is the rating of one rater, chosen by a hash of `key`. The mean
    might be a rating that no rater gave.

    >>> _make_raters([0, 0, 0, 0, 0, 0, 0, 1, 0, 0], key="row-1").score
    8.0
    """
    places = np.searchsorted(np.cumsum(shares)[:-1], (np.arange(20) + 0.5) / 20, side="right")
    ratings = [float(RATINGS[place]) for place in places]
    drawn = hashlib.sha256(key.encode()).digest()[0] % 20
    return HumanScore(score=ratings[drawn], raters={str(rater): score for rater, score in enumerate(ratings)})


def _hash_content(response: Response, images: bool = True) -> str:
    """Return a hash of an answer and its question, without ids. `images` says whether the images are included."""
    question = response.question
    text = [question.prompt, question.reference, question.history, response.text, *(question.images if images else [])]
    return hashlib.sha256(msgspec.json.encode(text)).hexdigest()


def describe_far_apart(responses: Sequence[Response]) -> str | None:
    """Return a warning about answers whose human scores differ by `FAR_APART` points or more, or None if there are
    none.

    Scores are those of the raters if a row has them, else the row's score. Rows with the same answer to the same
    question are compared, whatever their ids.
    """
    scores = defaultdict[tuple[str, str], list[tuple[float, str]]](list)
    for response in responses:
        if (human := response.human) is not None and response.preference is None:
            given = human.raters.values() or [human.score]
            scores[human.scope, _hash_content(response)] += [(score, response.id) for score in given]
    spans = [(min(given), max(given)) for given in scores.values()]
    wide = [(low, high) for low, high in spans if high[0] - low[0] >= FAR_APART]
    if not wide:
        return None
    (low, first), (high, second) = wide[0]
    ids = first if first == second else f"{first} and {second}"
    count = f"{len(wide)} answer{'s' if len(wide) > 1 else ''}"
    return (
        f"people's scores of {count} are {FAR_APART:g} points or more apart on 1..10 ({ids}: {low:g} and {high:g}); "
        "the judge learns all of them: look whether a label is wrong"
    )


def _read_teacher(name: str, loaded: Loaded) -> dict[str, HumanScore]:
    """Return row id -> score by a teacher, a judge to learn from. `name` is the file with the judge's judgments.

    A row gets the judgment of the same answer to the same question, preferably the one with the row's id. Rows without
    a judgment are counted in `loaded.left_out`. Raise UsageError if judgments do not rate on 1..10 or match no row.
    """
    judgments = [judgment for _, judgment in jsonl.read(Path(name), Judgment)]
    if strange := [judgment.prompt for judgment in judgments if not rates(judgment.prompt)]:
        problem = f"{len(strange)} of {len(judgments)} judgments do not rate on 1..10 ({', '.join(sorted({*strange}))})"
        raise UsageError(f"labels: {name}: {problem}; judge in a form that does, such as pointwise")
    by_key = {(judgment.sample.id, _hash_content(judgment.sample.response)): judgment for judgment in judgments}
    by_content = {content: judgment for (_, content), judgment in by_key.items()}
    scores, lacking, strangers = dict[str, HumanScore](), Counter[str](), set[str]()
    for response in loaded.responses:
        judgment = by_key.get((response.id, _hash_content(response))) or by_content.get(_hash_content(response))
        if judgment is None or judgment.score is None:
            lacking[f"{'not' if judgment is None else 'failed'} in {name}"] += 1
            strangers |= {response.id} if judgment is None else set()
        else:
            distribution = judgment.verdict.distribution or probabilities(judgment.score)
            scores[response.id] = _make_raters(distribution, response.id)
    if not scores:
        ids = len(strangers & {row_id for row_id, _ in by_key})
        why = f"{_join_counts(lacking)}; {ids} of their ids have another question, reference, image or answer there"
        raise UsageError(f"labels: {name}: its {len(judgments)} judgments are labels of no row of --train ({why})")
    loaded.left_out.update(lacking)
    return scores


class Labelled(msgspec.Struct, frozen=True):
    """Rows with the scores of one source (people or a judge), by id, and the examples planned from them.

    `weight` is the weight of each example in the loss. `scorer` is who gave the scores.
    """

    name: str
    weight: float
    by_id: dict[str, Response]
    planned: Plan
    scorer: str = PEOPLE


def _label_rows(loaded: Loaded, name: str, weight: float, recipe: Recipe) -> Labelled:
    """Return the rows with the scores of the source `name`, and the examples to learn from them.

    A judge's scores replace the human ones. Forms that do not depend on scores are learned from human-scored rows only.
    """
    forms = recipe.forms
    if name == PEOPLE:
        chosen = [answer for answer in loaded.responses if answer.human is not None or answer.preference is not None]
    else:
        column = tables.score_column(name)
        scored = [answer for answer in loaded.responses if column in answer.columns]
        scores = {answer.id: HumanScore(score=answer.columns[column]) for answer in scored}
        # A teacher's file has ratings and nothing else.
        taught = name in judges(recipe)[1]
        if taught:
            scores = _read_teacher(name, loaded)
        chosen = [
            msgspec.structs.replace(answer, human=msgspec.structs.replace(scores[answer.id], scope=row.scope))
            for row, answer in zip(loaded.rows, loaded.responses, strict=True)
            if answer.id in scores
        ]
        # What does not depend on scores was learned from people's rows, and would count twice.
        forms = _keep_forms(forms, "single_rating" if taught else "is_verdict")
    if criteria := objective_of(recipe).criteria:
        scored = [answer for answer in chosen if _is_scored_by(criteria, answer)]
        unscored, chosen = len(chosen) - len(scored), scored
        loaded.left_out["not scored by all its criteria, or by one that the recipe has not"] += unscored
    planned = plan(chosen, forms) if any(forms.values()) else Plan([], {})
    planned = objective_of(recipe).choose_examples(planned)
    return Labelled(name, weight, {answer.id: answer for answer in chosen}, planned, name)


def _is_scored_by(criteria: Collection[str], answer: Response) -> bool:
    """Return True if people scored an answer by all criteria of its row, and the recipe has these `criteria`."""
    named = answer.question.criteria.keys()
    return bool(named) and answer.human is not None and answer.human.criteria.keys() == named <= {*criteria}


def _check_scales(train: Path, rows: Sequence[human_scored.Row], criteria: Mapping[str, Scale]) -> None:
    """Raise UsageError if people's scores by a criterion are on another scale than the recipe's."""
    for row in rows:
        for name in row.criteria_scores.keys() & criteria.keys():
            if row.scale_of(name) != criteria[name]:
                known, stated = ("{:g}..{:g}".format(*scale) for scale in (row.scale_of(name), criteria[name]))
                raise UsageError(f"{train}: {row.id}: {name} is on the scale {known}, in the recipe on {stated}")


def _note_criteria(train: Path, criteria: Collection[str], scored: Sequence[Response]) -> dict[str, bool]:
    """Return {"apart": True} if answers have different sets of criteria, else {"apart": False}; {} without `criteria`.

    Raise UsageError if there is a criterion in the recipe's `criteria` that no answer is scored by.
    """
    sets = {frozenset(answer.question.criteria) for answer in scored}
    if unscored := [name for name in criteria if not any(name in names for names in sets)]:
        raise UsageError(f"{train}: criteria: no row has people's score by {unscored[0]}")
    return {"apart": len(sets) > 1} if criteria else {}


def _label_changed(recipe: Recipe, loaded: Loaded) -> list[Labelled]:
    """Return the changed answers (recipe key `counterfactuals`) with their assumed scores, as examples to learn from.

    If the objective compares answers, each is paired with its original, which is the better one. Raise UsageError if a
    changed answer belongs to no row of --train, or if there is nothing to learn from.
    """
    arms = recipe.counterfactuals
    if arms is None:
        return []
    altered = human_scored.load(Path(arms.file), pictures=sees(recipe))
    points = {EDITED: arms.edited, SWAPPED: arms.swapped}
    originals = {response.id: response for response in loaded.responses}
    changed, unused = dict[str, Response](), Counter[str]()
    for row, response in zip(altered.rows, altered.responses, strict=True):
        original, kind = originals.get(row.id.rpartition("#")[0]), next(iter(points.keys() & {*row.flags}), None)
        if original is None or not (kind or _hash_content(response, False) == _hash_content(original, False)):
            problem = f"counterfactuals: {arms.file}: {row.id} is of no answer of --train, or of another by that id"
            raise UsageError(f"{problem}; make it of the training rows: critic attack TRAIN --images --out FILE")
        less = points[kind] if kind else None
        if kind and less is None:
            unused[f"{kind}, to which arms gives no points"] += 1
        elif less is not None and response.human is not None:
            changed[row.id] = msgspec.structs.replace(response, human=_lower_scores(response.human, less))
    if not changed:
        problem = "has no answer with one fact edited or another image that has points"
        raise UsageError(
            f"counterfactuals: {arms.file} {problem}; give --train answers with images that people scored 7 or more"
        )
    loaded.left_out.update(unused)
    # The answer as it was is the better one.
    if objective_of(recipe).compares:
        pairs = [Planned(ONE_SIDE["pairwise"], (name.rpartition("#")[0], name)) for name in changed]
        return [Labelled("arms", arms.weight, originals | changed, Plan(pairs, {}))]
    ratings = _keep_forms(recipe.forms, "single_rating")
    return [Labelled("arms", arms.weight, changed, plan([*changed.values()], ratings))]


def _keep_forms(forms: dict[str, float], trait: str) -> dict[str, float]:
    """Return the forms, with their fractions, whose kind of verdict has a `trait` (an attribute of `Kind`)."""
    return {form: share for form, share in forms.items() if getattr(form_of(form).kind, trait)}


def _lower_scores(human: HumanScore, points: float) -> HumanScore:
    """Return a human score reduced by `points`, but at least the lowest value of the scale."""
    raters = {name: max(score - points, TEN[0]) for name, score in human.raters.items()}
    return msgspec.structs.replace(human, score=max(human.score - points, TEN[0]), raters=raters)


def _build(
    recipe: Recipe, train: Path, loaded: Loaded, folder: Path, tokenizer: Any, processes: int, images: Images | None
) -> None:
    """Write the tokenized examples to `folder`, and then their counts, which mark the folder as complete.

    Raise UsageError if there is no example to learn from.
    """
    objective = objective_of(recipe)
    sources = [_label_rows(loaded, name, weight, recipe) for name, weight in labels(recipe).items()]
    sources += _label_changed(recipe, loaded)
    left_out = sum((Counter(source.planned.left_out) for source in sources), loaded.left_out)
    coded = _encode_examples(sources)
    if not coded:
        shares = ", ".join(f"{form}: {recipe.forms[form]:g}" for form in used_forms(recipe))
        why = _join_counts(left_out) or "none"
        raise UsageError(f"{train}: no usable row for the recipe's labels and forms ({shares}); left out: {why}")
    # A killed run may have left a part of it.
    shutil.rmtree(folder, ignore_errors=True)
    with jsonl.remove_on_failure(folder):
        # A tiny model's tokenizer is trained on the rendered examples.
        if recipe.tiny is not None:
            tokenizer = train_tokenizer(_render_texts(coded, images is not None), recipe.tiny.vocab_size, recipe.vision)
            if recipe.vision is not None:
                tokenizer = SeeingTokenizer(tiny_processor(tokenizer, recipe.vision), images)
            tokenizer.save_pretrained(folder / "tokenizer")
        limits = (recipe.max_source_tokens, recipe.max_target_tokens)
        workers = min(processes, max(1, len(coded) // FEWEST_IN_PARALLEL))
        # Small data would flash a bar on the screen.
        if workers == 1:
            datasets.disable_progress_bars()
        tokenized = datasets.Dataset.from_generator(
            _tokenize,
            features=_FEATURES,
            gen_kwargs={"coded": coded, "tokenizer": tokenizer, "limits": limits, "criteria": objective.criteria},
            num_proc=workers,
            cache_dir=str(folder / "building"),
        )
        rows = tokenized.select(np.flatnonzero(np.array(tokenized["length"]))).remove_columns(["shortened", "failure"])
        outcomes = tokenized.select_columns(["id", "form", "length", "failure"]).to_pandas()
        failed = Counter(outcomes["failure"].dropna())
        refused = outcomes[outcomes["failure"].isna() & (outcomes["length"] == 0)]
        if not len(rows):
            most = f"max_source_tokens {limits[0]} and max_target_tokens {limits[1]}"
            shown = f", or its images cannot be shown ({_join_counts(failed)}); --data-root says where they lie"
            raise UsageError(f"{train}: no row fits into {most}{shown if failed else ''}")
        rows.save_to_disk(str(folder / "rows"))
        every_row = [response for source in sources for response in source.by_id.values()]
        by_source = {source.name: len(source.planned.examples) for source in sources}
        by_form = Counter(rows["form"])
        counts = {
            "shortened": dict(Counter(chain.from_iterable(tokenized["shortened"]))),
            "refused": [*(refused["id"] + " (" + refused["form"] + ")")],
            "left_out": dict(left_out + failed),
            "rows": len(rows),
            "forms": dict(sorted(by_form.items())),
            "untaught": [form for form in used_forms(recipe) if objective.prompt_form(form) not in by_form],
            **({"labels": by_source} if recipe.labels or recipe.counterfactuals else {}),
            "one_class": human_scored.describe_one_class(every_row),
            **_note_criteria(train, objective.criteria, every_row),
            **({"far_apart": conflict} if (conflict := describe_far_apart(loaded.responses)) else {}),
        }
        del tokenized, rows
        shutil.rmtree(folder / "building")
        jsonl.write_json(folder / "counts.json", counts)


def _join_counts(counts: Counter[str]) -> str:
    """Return counts as text, such as "3 no score, 1 too long", the largest first."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())


_FEATURES = datasets.Features.from_dict(msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes()))


def _encode_examples(sources: list[Labelled]) -> list[bytes]:
    """Return each planned example as JSON, with its rows by id, its weight and its scorer.

    Processes that tokenize are sent only these bytes, and not all rows.
    """
    return [
        _ENCODER.encode((planned, {name: source.by_id[name] for name in planned.ids}, source.weight, source.scorer))
        for source in sources
        for planned in source.planned.examples
    ]


def _tokenize(
    coded: list[bytes], tokenizer: Any, limits: tuple[int, int], criteria: Mapping[str, Scale]
) -> Iterator[dict[str, Any]]:
    """Yield a row with the columns `_FEATURES` for each planned example in `coded` (`_encode_examples`).

    `limits` are the most tokens of a prompt and of a verdict. A row that exceeds them has length 0. `criteria` are
    `Objective.criteria`.
    """

    def count(messages: Any) -> int:
        return len(source_ids(tokenizer, messages))

    for planned, by_id, weight, scorer in map(_DECODER.decode, coded):
        # A row that stays like this, without tokens, is refused.
        row: dict[str, Any] = {"id": "+".join(planned.ids), "form": planned.form, "length": 0, "shortened": []}
        try:
            example = build_example(planned, by_id, limits[0], count, isinstance(tokenizer, SeeingTokenizer))
            tokens = None if example is None else encode(tokenizer, example)
        except ImageError as error:
            yield row | {"failure": error.failure}
            continue
        if example is not None and tokens is not None and len(tokens.ids) - tokens.source <= limits[1]:
            row |= {
                "input_ids": tokens.ids,
                "other_ids": source_ids(tokenizer, example.other) if example.other else [],
                "source": tokens.source,
                "answer": find_answer(tokens.ids[: tokens.source], source_ids(tokenizer, cut_answer(example.messages))),
                "value": tokens.value,
                "length": len(tokens.ids),
                "images": example.images,
                "image_tokens": [tokenizer.image_tokens(name) for name in example.images],
                "shortened": list(example.shortened),
                "group": by_id[planned.ids[0]].question.group,
                "weight": weight,
                "scorer": scorer,
                **_read_people(example),
            }
            if criteria:
                row["people"] = _read_criteria(human_score(by_id[planned.ids[0]]), criteria)
        yield row


def _read_criteria(human: HumanScore, criteria: Mapping[str, Scale]) -> list[float]:
    """Return the column `people` (see Data) of an answer that people scored by some of `criteria` (name -> scale).

    >>> _read_criteria(HumanScore(score=1, criteria={"b": 5.5}), {"a": (0, 1), "b": (1, 3)})
    [0.0, 0.0, 0.0, 1.0, 0.0]
    """
    people = list[float]()
    for name, scale in criteria.items():
        # The lowest score of a criterion that did not count gets nothing too.
        part = 1 / len(human.criteria) if name in human.criteria else 0.0
        people += [part * share for share in probabilities(human.criteria.get(name, float(TEN[0])), scale)]
    return people


def _read_people(example: Example) -> dict[str, Any]:
    """Return the columns `rating` and `people` of an example (see Data).

    Forms that do not rate on 1..10 have rating 0, and `people` is [] or, for a pair, its preference.
    """
    if example.score is None or not load(example.form, "en").on_ten:
        return {"rating": 0, "people": example.label if example.other else []}
    return {"rating": whole_rating(example.score), "people": example.label or probabilities(example.score)}


def _render_texts(coded: list[bytes], sees: bool) -> Iterator[tuple[str, str]]:
    """Yield the prompt's text and the verdict of each planned example in `coded` (`_encode_examples`).

    `sees` is True if prompts contain images, which the text leaves out.
    """
    for planned, by_id, *_ in map(_DECODER.decode, coded):
        example = build_example(planned, by_id, None, lambda messages: 0, sees)
        assert example is not None
        texts = (part["text"] for part in parts_of(example.messages[0]) if part["type"] == "text")
        yield "".join(texts), example.target
