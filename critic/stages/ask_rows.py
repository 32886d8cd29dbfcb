"""The steps of `critic build` and `critic rewrite` that ask a model.

Each row becomes a prompt. The reply is parsed by the step's JSON schema; a reply that cannot be used gets a named
failure.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import msgspec
from msgspec.structs import replace

from critic.backends import Backend, Request, find_failure
from critic.building import replies
from critic.errors import Refused, Transient, decode, hash_value
from critic.images import ImageError, Images
from critic.judging.prompt import quote_untrusted
from critic.judging.thoughts import without_thoughts
from critic.records import Language, Sampling
from critic.stages.run import RunOptions, Stage
from critic.stages.totals import RunSummary, listed

STEPS: dict[str, type[replies.StepReply]] = {
    "quality": replies.Quality,
    "category": replies.Category,
    "persona": replies.Persona,
    "talk": replies.GeneratedConversation,
    "levels": replies.Levels,
    "single": replies.Single,
    "wordings": replies.Wordings,
    "checklist": replies.Checklist,
    "held": replies.HeldItems,
}
"""Each step that asks a model, by name, with the type of its replies. To add one, add an entry here, a type for its
replies, and a text under the step's name in every file of critic/prompts/build."""

TOKENS = 4096
"""Longest reply to a step of `critic build`, in tokens: enough for a conversation of four turns."""

SUB_GOALS = 4
"""Number of sub-goals per goal that a prompt lists; MultiVerse has 30 to 123 per goal."""

LOST = ("server_error", "refused", "content_filter", "budget", "context_length_exceeded", "truncated", "image_missing")
"""Failures of a request, which count for --max-failed. All other failures reject the content of a reply."""


class BuildRow(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of one request of a step.

    `facts`: values to fill into the prompt. `image`: path of the image to show, with its `md5`; both None if none is
    shown. `key`: unique within the step.
    """

    key: str
    lang: Language
    image: str | None = None
    md5: str | None = None
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


class AskedRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply to one request, or the name of its failure.

    `asked`: hash of the prompt and the image's path. `image`: MD5 of the row's image, or None.
    `reply`: the parsed reply; it is kept even if a check rejected it.
    """

    step: str
    key: str
    asked: str
    image: str | None
    model: str
    sampling: Sampling
    reply: dict[str, Any] | None = None
    failure: str | None = None
    detail: str | None = None


@cache
def _content(language: Language) -> dict[str, Any]:
    return msgspec.toml.decode((files("critic") / f"prompts/build/{language}.toml").read_bytes(), type=dict[str, Any])


@cache
def _template(step: str, language: Language) -> jinja2.Template:
    content = _content(language)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True)
    environment.filters["quote"] = quote_untrusted
    keys = json.dumps(replies.build_example(STEPS[step]), ensure_ascii=False)
    text = f"{content['steps'][step].strip()}\n\n{content['output']} {keys}"
    return environment.from_string(text, {name: content[name] for name in ("categories", "aspects")})


def prompt(step: str, row: BuildRow) -> str:
    """Return the prompt of a step for a row. A persona's prompt lists SUB_GOALS sub-goals per goal, chosen by the row's
    key."""
    facts = dict(row.facts)
    if step == "persona":
        drawn = int(hash_value(row.key), 16)
        facts["goals"] = {name: _sub_goals(goals, drawn) for name, goals in _content(row.lang)["goals"].items()}
    return _template(step, row.lang).render(facts)


def _sub_goals(names: Sequence[str], drawn: int) -> Sequence[str]:
    start = drawn % len(names)
    return [*names[start:], *names[:start]][:SUB_GOALS] if len(names) > SUB_GOALS else names


class AskRows(Stage[BuildRow, AskedRow]):
    """The stage that requests a reply to one step for each row.

    Replies about images that have changed since are removed from the file and requested again. Replies about rows that
    are no longer wanted stay in the file, but are not counted.
    """

    unit, counted = "reply", "asked"

    def __init__(
        self, run: RunOptions, backend: Backend, step: str, rows: Sequence[BuildRow], tokens: int, images: Images | None
    ) -> None:
        self.name, self._reply, self._images = step, STEPS[step], images  # type: ignore[misc]  # one class, many steps
        super().__init__(run, AskedRow, backend, {row.key: row for row in rows})
        self._sampling = Sampling(max_tokens=tokens)
        self.facts = {"step": step, "model": backend.served.name, "rows": len(rows), "sampling": self._sampling}

    def _hash(self, row: BuildRow) -> str:
        return hash_value([self.name, prompt(self.name, row), row.image], 16)

    def problem(self, record: AskedRow) -> str | None:
        row = self.wanted.get(record.key)
        if record.step != self.name:
            return f"has replies of the step {record.step}; choose another --out"
        if row is not None and not self._goes(record) and record.asked != self._hash(row):
            return f"{record.key} was asked otherwise; delete the file, or choose another --out"
        return None

    def _goes(self, record: AskedRow) -> bool:
        row = self.wanted.get(record.key)
        # The file of a row's image may have been replaced.
        return (row is not None and record.image != row.md5) or super()._goes(record)

    def load_existing(self, record: AskedRow) -> None:
        if record.key in self.wanted:
            super().load_existing(record)

    async def work(self, item: BuildRow, keep: Callable[..., None]) -> None:
        fields: dict[str, Any] = {"step": self.name, "asked": self._hash(item), "image": item.md5}
        record = AskedRow(key=item.key, model=self.backend.served.name, sampling=self._sampling, **fields)
        try:
            shown = self._images.load(item.image).parts if item.image and self._images else []
            content = [*shown, {"type": "text", "text": prompt(self.name, item)}]
            messages, schema = [{"role": "user", "content": content}], msgspec.json.schema(self._reply)
            request = Request(messages=messages, max_tokens=self._sampling.max_tokens, schema=schema)
            reply = await self.backend.chat(request)
            self.note_answered([reply.answered_by])
            record = self._read(item, record, reply)
        except (ImageError, Refused, Transient) as error:
            record = replace(record, failure=error.failure, detail=str(error))
        keep(record)
        self.note(record.failure, record.detail)

    def _read(self, row: BuildRow, record: AskedRow, reply: Any) -> AskedRow:
        if lost := find_failure(reply):
            return replace(record, failure=lost[0], detail=lost[1])
        if reply.truncated:
            return replace(record, failure="truncated")
        text = without_thoughts(reply.text)
        try:
            reply = decode(text[text.find("{") : text.rfind("}") + 1].encode(), msgspec.json.Decoder(self._reply))
        except msgspec.ValidationError as error:
            return replace(record, failure="not_as_asked", detail=str(error))
        except ValueError as error:
            return replace(record, failure="no_json", detail=str(error))
        # A rejected reply stays in the file, for whoever wants to see it.
        return replace(record, reply=msgspec.to_builtins(reply), failure=reply.find_problem(row))

    def summary(self, records: Iterable[AskedRow]) -> RunSummary:
        """Return how many of the wanted rows have a usable reply, a rejected reply, or a failed request."""
        wanted = [record for record in records if record.key in self.wanted]
        counts = Counter(record.failure for record in wanted if record.failure)
        lost = Counter({name: count for name, count in counts.items() if name in LOST or name.startswith("image_")})
        good = len(wanted) - counts.total()
        line = f"{self.name}: {good} of {len(wanted)} can be used" + (f" ({listed(counts)})" if counts else "")
        facts = {"used": good, "rejected": dict(counts - lost), "failed": dict(lost)}
        return RunSummary(count=len(wanted), failures=lost, facts=facts, lines=[line])
