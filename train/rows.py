"""Human-scored rows as token ids, made once in parallel, kept on disk and memory-mapped."""

import hashlib
import json
import os
import re
import shutil
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import datasets
import msgspec
import numpy as np
import transformers
from msgspec import Struct
from recipe import PEOPLE, Recipe, judges, labels, made_files
from tiny import tiny_processor, train_tokenizer
from vision import SeeingTokenizer, read_processor

from critic import human_scored, jsonl
from critic.backends import parts_of
from critic.errors import UsageError
from critic.human_scored import EDITED, SWAPPED, Loaded
from critic.images import ImageError, Images
from critic.judging.distribution import probabilities, whole_rating
from critic.judging.examples import Plan, Planned, TooLong, example_of, plan
from critic.judging.forms import ONE_SIDE, ChecklistKind, ChoiceKind, CriteriaKind, RatingKind, form_of, rates
from critic.judging.prompt import load, prompt_hash
from critic.judging.targets import IGNORED, encode, source_ids, target
from critic.records import RATINGS, TEN, Example, HumanScore, Judgment, Response

FORMAT = 7
"""Of the cache; another number makes everybody tokenize again."""

FEWEST_IN_PARALLEL = 2000
"""Examples below which starting processes costs more than it saves."""

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(tuple[Planned, list[Response], float])


class Data(Struct, frozen=True):
    """Tokenized examples. Columns of `rows`: id, group, form, input_ids, source (prompt tokens), value (the places of
    the tokens that spell the verdict's value, of a checklist its answers), length, rating (whole, 1..10, 0 for none),
    people (probabilities of 1..10, or empty; of a pair how far the first answer is ahead, -1..1), other_ids (the prompt
    of a pair's second answer), weight (of whose score it is, above 0), images (their names, in their order) and
    image_tokens (how many take each). `counts` says what was shortened, refused and left out."""

    rows: datasets.Dataset
    counts: dict[str, Any]


def prompt_names(recipe: Recipe) -> list[str]:
    used = (form for form, share in recipe.forms.items() if share > 0.0)
    return sorted(ONE_SIDE[form] if recipe.objective == "pairwise" else form for form in used)


def sees(recipe: Recipe) -> bool:
    return recipe.images == "show"


def fingerprint(recipe: Recipe, train: Path) -> dict[str, Any]:
    """What the token ids depend on: data, forms, prompts, limits, and where the tokenizer comes from."""
    return {
        "format": FORMAT,
        "data": sorted(jsonl.sha256(file) for file in human_scored.list_files(train)),
        "forms": dict(sorted(recipe.forms.items())),
        "labels": labels(recipe),
        "teachers": [jsonl.sha256(Path(name)) for name in made_files(recipe)],
        **({"arms": msgspec.to_builtins(recipe.arms)} if recipe.arms else {}),
        "prompts": {name: prompt_hash(name, sees(recipe)) for name in prompt_names(recipe)},
        "limits": [recipe.max_source_tokens, recipe.max_target_tokens],
        "tokenizer": msgspec.to_builtins(recipe.tiny) if recipe.tiny else recipe.base,
        **({"vision": msgspec.to_builtins(recipe.vision), "pixels": recipe.max_image_pixels} if sees(recipe) else {}),
    }


def prepare(recipe: Recipe, train: Path, cache: Path, processes: int, images: Images | None = None) -> tuple[Data, Any]:
    """The examples of `train` and the tokenizer, from `cache` where a run before left them; with `images` a
    SeeingTokenizer.

    Raises UsageError when no row can be learned from.
    """
    facts = fingerprint(recipe, train)
    tokenizer = None if recipe.tiny else base_tokenizer(recipe, images)
    if tokenizer is not None:
        facts["tokenizer"] = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
        facts["template"] = tokenizer.chat_template
    loaded = None
    if images is not None:
        loaded = _loaded(recipe, train, True)
        names = {name for response in loaded.responses for name in response.question.images}
        facts["images"] = {**images.facts(), "files": images.state(names)}
        if tokenizer is not None:
            facts["processor"] = tokenizer.processor.to_json_string()
    folder = cache / hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    if not (folder / "counts.json").is_file():
        _build(recipe, train, loaded or _loaded(recipe, train, False), folder, tokenizer, processes, images)
    if tokenizer is None:
        tokenizer = _read_tokenizer(str(folder / "tokenizer"), images)
    counts = json.loads((folder / "counts.json").read_text("utf-8"))
    return Data(datasets.load_from_disk(str(folder / "rows")), counts), tokenizer


def _read_tokenizer(folder: str, images: Images | None, revision: str | None = None) -> Any:
    if images is None:
        return transformers.AutoTokenizer.from_pretrained(folder, revision=revision)
    return SeeingTokenizer(read_processor(folder, revision), images)


def base_tokenizer(recipe: Recipe, images: Images | None = None) -> Any:
    """Raises UsageError for a base that has no tokenizer, or none for chat, or whose chat template rewrites answers."""
    base = str(recipe.base)
    try:
        tokenizer = _read_tokenizer(base, images, recipe.revision)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"base {base!r} is no model that transformers can load: {str(error).splitlines()[0]}"
        ) from None
    if tokenizer.chat_template is None:
        raise UsageError(f"base {base!r} has no chat template; take the chat version of the model")
    for name, value in (recipe.chat_template_kwargs or {}).items():
        line = f"{{%- set {name} = {value!r} %}}"
        if line in tokenizer.chat_template:  # the base is a judge that was trained with it
            continue
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


def _loaded(recipe: Recipe, train: Path, pictures: bool) -> Loaded:
    columns, teachers = judges(recipe)
    loaded = human_scored.load(train, judges=columns, pictures=pictures, unlabelled=bool(teachers))
    if changed := [row.id for row in loaded.rows if {EDITED, SWAPPED} & {*row.flags}]:
        why = f"{len(changed)} answers that `critic attack --images` changed ({changed[0]}) have no score by people"
        raise UsageError(f"{train}: {why}; train on the rows as they were, and name this file in arms of the recipe")
    return loaded


def _as_raters(shares: list[float], key: str) -> HumanScore:
    """Probabilities (10,) as twenty raters who each gave a rating. The score, which text learns, is that of one rater,
    drawn by `key`: their mean is what none of them may have said."""
    below = [*accumulate(shares)][:-1]
    ratings = [float(RATINGS[bisect(below, (rater + 0.5) / 20)]) for rater in range(20)]
    drawn = hashlib.sha256(key.encode()).digest()[0] % 20
    return HumanScore(score=ratings[drawn], raters={str(rater): score for rater, score in enumerate(ratings)})


def _content(response: Response, images: bool = True) -> str:
    """The same for the same answer to the same question, by whatever id; about the same `images` as well."""
    question = response.question
    text = [question.prompt, question.reference, question.history, response.text, *(question.images if images else [])]
    return hashlib.sha256(msgspec.json.encode(text)).hexdigest()


def _taught(name: str, loaded: Loaded) -> dict[str, HumanScore]:
    """What the teacher whose judgments are the file `name` says of rows, by id: of each the judgment of the same answer
    to the same question, that of its own id where there are several; those without one are counted in `left_out`.
    Raises UsageError, with counts, for judgments that are no ratings on 1..10 or of none of the rows."""
    judgments = [judgment for _, judgment in jsonl.read(Path(name), Judgment)]
    if strange := [judgment.prompt for judgment in judgments if not rates(judgment.prompt)]:
        problem = f"{len(strange)} of {len(judgments)} judgments do not rate on 1..10 ({', '.join(sorted({*strange}))})"
        raise UsageError(f"labels: {name}: {problem}; judge in a form that does, such as pointwise")
    by_key = {(judgment.sample.id, _content(judgment.sample.response)): judgment for judgment in judgments}
    by_content = {content: judgment for (_, content), judgment in by_key.items()}
    scores, lacking, strangers = dict[str, HumanScore](), Counter[str](), set[str]()
    for response in loaded.responses:
        judgment = by_key.get((response.id, _content(response))) or by_content.get(_content(response))
        if judgment is None or judgment.score is None:
            lacking[f"{'not' if judgment is None else 'failed'} in {name}"] += 1
            strangers |= {response.id} if judgment is None else set()
        else:
            distribution = judgment.verdict.distribution or probabilities(judgment.score)
            scores[response.id] = _as_raters(distribution, response.id)
    if not scores:
        ids = len(strangers & {row_id for row_id, _ in by_key})
        why = f"{_listed(lacking)}; {ids} of their ids have another question, reference, image or answer there"
        raise UsageError(f"labels: {name}: its {len(judgments)} judgments are labels of no row of --train ({why})")
    loaded.left_out.update(lacking)
    return scores


class Labelled(Struct, frozen=True):
    """The rows that people or another judge scored, and what is made of them; `weight` is how much each counts."""

    name: str
    weight: float
    by_id: dict[str, Response]
    planned: Plan


def _labelled(loaded: Loaded, name: str, weight: float, recipe: Recipe) -> Labelled:
    """Another judge's scores stand in people's place; what does not depend on them is learned from people's rows."""
    forms = recipe.forms
    if name == PEOPLE:
        chosen = [answer for answer in loaded.responses if answer.human is not None or answer.preference is not None]
    else:
        learned: Any = RatingKind | CriteriaKind | ChoiceKind | ChecklistKind
        column = human_scored.score_column(name)
        scores = {
            answer.id: HumanScore(score=answer.columns[column])
            for answer in loaded.responses
            if column in answer.columns
        }
        if name in judges(recipe)[1]:
            learned, scores = RatingKind, _taught(name, loaded)
        chosen = [
            msgspec.structs.replace(answer, human=msgspec.structs.replace(scores[answer.id], scope=row.scope))
            for row, answer in zip(loaded.rows, loaded.responses, strict=True)
            if answer.id in scores
        ]
        forms = _of_kind(forms, learned)
    planned = plan(chosen, forms) if any(forms.values()) else Plan([], {})
    if recipe.objective == "pairwise":  # which of two stands first makes no difference
        once = {(pair.form, *sorted(pair.ids)): Planned(ONE_SIDE[pair.form], pair.ids) for pair in planned.examples}
        planned = Plan([*once.values()], planned.left_out)
    return Labelled(name, weight, {answer.id: answer for answer in chosen}, planned)


def _changed(recipe: Recipe, loaded: Loaded) -> list[Labelled]:
    """The answers of the recipe's `arms`, with the scores that it takes them to be worth; in a pair beside what they
    were. Raises UsageError for arms of other rows than --train's, and where there is nothing to learn from."""
    arms = recipe.arms
    if arms is None:
        return []
    altered = human_scored.load(Path(arms.file), pictures=sees(recipe))
    points = {EDITED: arms.edited, SWAPPED: arms.swapped}
    originals = {response.id: response for response in loaded.responses}
    changed, pairs, unused = dict[str, Response](), list[Planned](), Counter[str]()
    for row, response in zip(altered.rows, altered.responses, strict=True):
        original, kind = row.id.rpartition("#")[0], next(iter(points.keys() & {*row.flags}), None)
        if original not in originals or not (kind or _content(response, False) == _content(originals[original], False)):
            problem = f"arms: {arms.file}: {row.id} is of no answer of --train, or of another by that id"
            raise UsageError(f"{problem}; make it of the training rows: critic attack TRAIN --images --out FILE")
        less = points[kind] if kind else None
        if kind and less is None:
            unused[f"{kind}, to which arms gives no points"] += 1
        elif less is not None and response.human is not None:
            changed[row.id] = msgspec.structs.replace(response, human=_worth_less(response.human, less))
            pairs.append(Planned(ONE_SIDE["pairwise"], (original, row.id)))
    if not changed:
        problem = "has no answer with one fact edited or another image, to which arms gives points"
        raise UsageError(f"arms: {arms.file} {problem}; give --train answers with images that people scored 7 or more")
    loaded.left_out.update(unused)
    if recipe.objective == "pairwise":
        return [Labelled("arms", arms.weight, originals | changed, Plan(pairs, {}))]
    return [Labelled("arms", arms.weight, changed, plan([*changed.values()], _of_kind(recipe.forms, RatingKind)))]


def _of_kind(forms: dict[str, float], kind: Any) -> dict[str, float]:
    return {form: share for form, share in forms.items() if isinstance(form_of(form).kind, kind)}


def _worth_less(human: HumanScore, points: float) -> HumanScore:
    raters = {name: max(score - points, TEN[0]) for name, score in human.raters.items()}
    return msgspec.structs.replace(human, score=max(human.score - points, TEN[0]), raters=raters)


def _build(
    recipe: Recipe, train: Path, loaded: Loaded, folder: Path, tokenizer: Any, processes: int, images: Images | None
) -> None:
    sources = [_labelled(loaded, name, weight, recipe) for name, weight in labels(recipe).items()]
    sources += _changed(recipe, loaded)
    left_out = sum((Counter(source.planned.left_out) for source in sources), loaded.left_out)
    pieces = _pieces(sources)
    if not pieces:
        raise _nothing_planned(recipe, train, sources, left_out)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        if tokenizer is None:
            tokenizer = _trained_tokenizer(recipe, sources, images)
            tokenizer.save_pretrained(partial / "tokenizer")
        limits = (recipe.max_source_tokens, recipe.max_target_tokens)
        tokenized = _tokenized_in_parallel(pieces, tokenizer, limits, processes, partial / "building")
        rows = tokenized.select(np.flatnonzero(np.array(tokenized["length"]))).remove_columns(["shortened", "failure"])
        counts, failed = _counts(tokenized)
        if failed and not len(rows):
            shown = f"the images of no row can be shown ({_listed(failed)}); --data-root says where they lie"
            raise UsageError(f"{train}: {shown}")
        if not len(rows):
            most = f"max_source_tokens {limits[0]} and max_target_tokens {limits[1]}"
            raise UsageError(f"{train}: no row fits into {most}")
        rows.save_to_disk(str(partial / "rows"))
        every_row = [response for source in sources for response in source.by_id.values()]
        by_source = {source.name: len(source.planned.examples) for source in sources}
        counts |= {
            "left_out": dict(left_out + failed),
            "rows": len(rows),
            "forms": dict(sorted(Counter(rows["form"]).items())),
            **({"labels": by_source} if recipe.labels or recipe.arms else {}),
            "one_class": human_scored.describe_one_class(every_row),
        }
        del tokenized, rows
        shutil.rmtree(partial / "building")
        jsonl.write_json(partial / "counts.json", counts)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "counts.json").is_file():  # another run was quicker
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _trained_tokenizer(recipe: Recipe, sources: list[Labelled], images: Images | None) -> Any:
    assert recipe.tiny is not None
    tokenizer = train_tokenizer(_texts(sources, images is not None), recipe.tiny, recipe.vision)
    if recipe.vision is None:
        return tokenizer
    return SeeingTokenizer(tiny_processor(tokenizer, recipe.vision), images)


def _tokenized_in_parallel(
    pieces: list[tuple[bytes, ...]], tokenizer: Any, limits: tuple[int, int], processes: int, folder: Path
) -> datasets.Dataset:
    workers = min(processes, max(1, len(pieces) * _PIECE // FEWEST_IN_PARALLEL))
    if workers == 1:
        datasets.disable_progress_bars()
    return datasets.Dataset.from_generator(
        _tokenized,
        features=_FEATURES,
        gen_kwargs={"pieces": pieces, "tokenizer": tokenizer, "limits": limits},
        num_proc=workers if workers > 1 else None,
        cache_dir=str(folder),
    )


def _counts(tokenized: datasets.Dataset) -> tuple[dict[str, Any], Counter[str]]:
    """What was shortened and refused, and why images could not be shown."""
    failed, refused = Counter[str](), list[str]()
    for row in tokenized.select_columns(["id", "form", "length", "failure"]):
        if row["failure"]:
            failed[row["failure"]] += 1
        elif not row["length"]:
            refused.append(f"{row['id']} ({row['form']})")
    shortened = Counter(chain.from_iterable(tokenized["shortened"]))
    return {"shortened": dict(shortened), "refused": refused}, failed


def _nothing_planned(recipe: Recipe, train: Path, sources: list[Labelled], left_out: Counter[str]) -> UsageError:
    if not any(source.by_id for source in sources):
        return UsageError(f"{train}: no usable row to learn from")
    shares = ", ".join(f"{form}: {share:g}" for form, share in recipe.forms.items() if share > 0.0)
    why = f": {_listed(left_out)}" if left_out else ""
    return UsageError(f"{train}: no row for the recipe's forms ({shares}){why}")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())


_FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "group": datasets.Value("string"),
        "form": datasets.Value("string"),
        "input_ids": datasets.List(datasets.Value("int32")),
        "source": datasets.Value("int32"),
        "value": datasets.List(datasets.Value("int32")),
        "length": datasets.Value("int32"),
        "rating": datasets.Value("int8"),
        "people": datasets.List(datasets.Value("float32")),
        "other_ids": datasets.List(datasets.Value("int32")),
        "weight": datasets.Value("float32"),
        "images": datasets.List(datasets.Value("string")),
        "image_tokens": datasets.List(datasets.Value("int32")),
        "shortened": datasets.List(datasets.Value("string")),
        "failure": datasets.Value("string"),
    }
)

_PIECE = 250
"""Examples that a process takes at a time."""


def _pieces(sources: list[Labelled]) -> list[tuple[bytes, ...]]:
    """The planned examples with the rows they are made of, in JSON, so that each process is sent its own alone."""
    coded = [
        _ENCODER.encode((planned, [source.by_id[name] for name in planned.ids], source.weight))
        for source in sources
        for planned in source.planned.examples
    ]
    return [tuple(coded[start : start + _PIECE]) for start in range(0, len(coded), _PIECE)]


def _tokenized(pieces: list[tuple[bytes, ...]], tokenizer: Any, limits: tuple[int, int]) -> Iterator[dict[str, Any]]:
    def count(messages: Any) -> int:
        return len(source_ids(tokenizer, messages))

    for line in (line for piece in pieces for line in piece):
        planned, responses, weight = _DECODER.decode(line)
        # One that stays as it is here is refused: it has no tokens.
        row: dict[str, Any] = {"id": "+".join(planned.ids), "form": planned.form, "length": 0, "shortened": []}
        by_id = {response.id: response for response in responses}
        try:
            example = example_of(planned, by_id, limits[0], count, isinstance(tokenizer, SeeingTokenizer))
            tokens = None if isinstance(example, TooLong) else encode(tokenizer, example)
        except ImageError as error:
            yield row | {"failure": error.failure}
            continue
        if not isinstance(example, TooLong) and tokens is not None:
            learned = sum(label != IGNORED for label in tokens.labels)
            if learned <= limits[1]:
                row |= {
                    "input_ids": tokens.ids,
                    "other_ids": source_ids(tokenizer, example.other) if example.other else [],
                    "source": len(tokens.ids) - learned,
                    "value": [position for position, spells in enumerate(tokens.rating) if spells],
                    "length": len(tokens.ids),
                    "images": example.images,
                    "image_tokens": [tokenizer.image_tokens(name) for name in example.images],
                    "shortened": list(example.shortened),
                    "group": responses[0].question.group,
                    "weight": weight,
                    **_people(example),
                }
        yield row


def _people(example: Example) -> dict[str, Any]:
    """The whole rating and the distribution over 1..10 that people gave; of other forms nothing, but of a pair how far
    its first answer is ahead."""
    if example.score is None or not load(example.form, "en").on_ten:
        return {"rating": 0, "people": example.label if example.other else []}
    return {"rating": whole_rating(example.score), "people": example.label or probabilities(example.score)}


def _texts(sources: list[Labelled], sees: bool) -> Iterator[tuple[str, str]]:
    for source in sources:
        for planned in source.planned.examples:
            example = example_of(planned, source.by_id, None, lambda messages: 0, sees)
            assert not isinstance(example, TooLong)
            texts = (part["text"] for part in parts_of(example.messages[0]) if part["type"] == "text")
            yield "".join(texts), example.target
