"""The protocols by which a model's conversations are judged: which verdicts each gets, and what a judge is shown.

pointwise: 1..10 against the reference (AlignMMBench). direct: 1..10, the reference fixed at 10, each turn and the whole
(ConvBench). pairwise: against the reference or another model, each turn and the whole (ConvBench, VisIT-Bench).
checklist and quality: yes or no by item, and 1..10 with the reference fixed at 10, each turn (MultiVerse).
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from critic import jsonl, records
from critic.errors import UsageError, whole
from critic.judging import replies
from critic.judging.forms import IN_FULL, REASON_FIRST, graded, inquiry, preferred
from critic.judging.history import CONDITIONS, lacks
from critic.judging.prompt import load
from critic.judging.render import focus_of_turns
from critic.judging.thoughts import without_thoughts
from critic.records import Candidate, Exchange, JudgeConfig, Judgment, ModelTurn, PromptInputs, Protocol, Sample

OF_WHOLES: tuple[Protocol, ...] = ("direct", "pairwise")
"""The protocols that judge whole conversations as well as turns."""


def form_name(protocol: Protocol, turn: int | None, setup: JudgeConfig) -> str:
    """The form in which a protocol asks of a turn, or of the whole (None)."""
    # The one protocol whose form is the user's choice.
    if protocol == "pointwise":
        return setup.pointwise_prompt
    whole = turn is None
    name = f"{protocol}_{'whole' if whole else 'turn'}" if protocol in OF_WHOLES else protocol
    name += "_forced" if protocol == "pairwise" and setup.order == "forced" else ""
    name += REASON_FIRST if setup.reason_first else ""
    # Of a whole conversation all turns are in sight anyway; the other protocols' papers have no such form.
    name += IN_FULL if setup.sight == "all" and protocol in OF_WHOLES and not whole else ""
    return name


class Transcript(Struct, frozen=True, kw_only=True):
    """A model's conversation under a condition: what was recorded of its turns, by number from 1."""

    conversation: records.Conversation
    condition: str
    system: str
    turns: dict[int, ModelTurn]

    @property
    def asked(self) -> range:
        """The turns that the condition has the model answer."""
        return CONDITIONS[self.condition].asked(len(self.conversation.turns))

    def problem(self, turns: Iterable[int]) -> tuple[records.Failure, str] | None:
        """Why one of these turns has no reply: the failure's name and a sentence."""
        for number in turns:
            line = self.turns.get(number)
            if line is None:
                return "not_run", f"turn {number} of {self.system} is not in the file of replies"
            if line.failure is not None:
                return line.failure, f"turn {number} of {self.system} has no reply: {line.detail or line.failure}"
        return None

    def answer(self, turn: int) -> str:
        """The reply to a turn, or the reference where the condition gives it."""
        line = self.turns.get(turn)
        text = self.conversation.turns[turn - 1].reference if line is None else line.reply
        # A turn without a reply is a `problem`, which is asked for first.
        assert text is not None
        return text

    def earlier(self, turn: int) -> list[Exchange]:
        """The exchanges that the model saw before a turn: those that were left out are not judged by."""
        sent = self.turns[turn].seen[:-1]
        said = list(zip(sent[::2], sent[1::2], strict=True))
        whole = self.whole(lambda _: "", turn - 1)  # of which the oldest may have been left out
        shown = [one.images for one in whole[len(whole) - len(said) :]]
        return [Exchange(one.content, reply.content, names) for (one, reply), names in zip(said, shown, strict=True)]

    def whole(self, answers: Callable[[int], str], turns: int | None = None) -> list[Exchange]:
        """What was said before, and all turns or the first few, with the `answers` by number."""
        # What was said before turn 1 is about its images.
        shown = [self.conversation.turns[0].images, *([] for _ in self.conversation.history)]
        history = zip(self.conversation.history, shown, strict=False)
        given = [Exchange(turn.user, turn.assistant, names) for turn, names in history]
        asked = enumerate(self.conversation.turns[:turns], 1)
        return [*given, *(Exchange(turn.prompt, answers(number), turn.images) for number, turn in asked)]

    def later(self, turn: int, answers: Callable[[int], str] | None = None) -> list[Exchange]:
        """The exchanges behind a turn, as far as the model replied: with its replies, or other `answers` by number."""
        asked = enumerate(self.conversation.turns, 1) if CONDITIONS[self.condition].history else ()
        return [
            Exchange(one.prompt, (answers or self.answer)(number), one.images)
            for number, one in asked
            if number > turn and (line := self.turns.get(number)) and line.reply is not None
        ]

    def images(self, turn: int) -> list[str]:
        """Those of a turn and of all before it, whether or not the model saw them."""
        return [name for one in self.conversation.turns[:turn] for name in one.images]

    def reference(self, turn: int) -> str:
        return self.conversation.turns[turn - 1].reference or ""


Transcripts = dict[tuple[str, str], Transcript]
"""A model's transcripts by conversation and condition."""

Pair = tuple[Transcript, Transcript | None]
"""A model's transcript, and the other model's where two are compared."""

VerdictKey = tuple[str, str, str, Protocol, str, int | None, str | None]


def key(verdict: "Judgment | PlannedVerdict") -> VerdictKey:
    """What tells the verdicts of a file apart."""
    one = verdict.sample
    protocol = verdict.protocol or "pointwise"
    return one.system or "", one.id, one.condition, protocol, verdict.judging, one.turn, one.opponent


class PlannedVerdict(Struct, frozen=True, kw_only=True):
    """One verdict to be asked for in a form. Of a pair the model stands first in `material`, which is None where a
    `problem` (failure and sentence) leaves nothing to judge. `judging` and `unjudged` are as in Judgment."""

    sample: Sample
    form: str
    protocol: Protocol | None = None
    judging: str = "standard"
    unjudged: int = 0
    problem: tuple[records.Failure, str] | None = None
    material: PromptInputs | None = None

    def of(self, made: Judgment) -> Judgment:
        """What a judge made of another one that it was shown alike."""
        how = {"protocol": self.protocol, "judging": self.judging, "unjudged": self.unjudged}
        return replace(made, sample=self.sample, **how)


class Assignment(Struct, frozen=True, kw_only=True):
    """A transcript judged by a protocol in one way: `against` another model's, `backed` by the reference or not, or
    against the references."""

    one: Transcript
    protocol: Protocol
    judging: str = "standard"
    against: Transcript | None = None
    backed: bool = True

    def lacks(self, turn: records.ConversationTurn) -> str | None:
        """What a turn lacks that the protocol needs; such turns are not judged."""
        return lacks(turn, self.protocol, self.judging, self.against is None or self.backed)

    def turns(self) -> list[int]:
        """The turns that get a verdict of their own."""
        # The first asks of wholes alone; only ConvBench's protocols have focus points to leave out.
        if self.judging == "no_turn_verdicts" or (self.judging == "no_focus" and self.protocol not in OF_WHOLES):
            return []
        turns = self.one.conversation.turns
        return [turn for turn in self.one.asked if not self.lacks(turns[turn - 1])]

    def is_judged_whole(self) -> bool:
        """Whether the conversation as a whole gets a verdict: one of several turns that the model saw one after
        another, all of which have what the protocol needs."""
        turns = self.one.conversation.turns
        # A single turn is its own whole; to leave out focus points is an ablation of turns.
        if self.protocol not in OF_WHOLES or self.judging == "no_focus" or len(turns) < 2:
            return False
        complete = not any(map(self.lacks, turns))
        return complete and CONDITIONS[self.one.condition].history and bool(self.one.asked)

    def planned(self, turn: int | None, setup: JudgeConfig, lines: Sequence[Judgment] = ()) -> PlannedVerdict:
        """The verdict on one turn, in sight of the exchanges that the model saw; or on the whole conversation (None),
        in sight of the judgments of its turns."""
        one, against = self.one, self.against
        shown = one.asked if turn is None else [turn]
        problem = one.problem(shown) or (against.problem(shown) if against else None)
        answer = one.answer(turn) if turn is not None and problem is None else None
        form, material = form_name(self.protocol, turn, setup), None
        # A turn without a reply, the model's or its opponent's, leaves nothing to judge or to compare.
        if problem is None and turn is not None:
            material = self._turn(turn, setup)
        elif problem is None:
            material = self._whole(setup, lines)
        sample = Sample(
            id=one.conversation.id,
            conversation=one.conversation,
            system=one.system,
            condition=one.condition,
            turn=turn,
            answer=answer,
            length=None if answer is None else len(answer),
            opponent=against.system if against else None,
            shown=material,
        )
        return PlannedVerdict(
            sample=sample,
            protocol=self.protocol,
            form=form,
            judging=self.judging,
            # The whole is judged without the judgment of a turn that failed, and says how many it lacked.
            unjudged=sum(line.failure is not None for line in lines) if problem is None else 0,
            problem=problem,
            material=material,
        )

    def _turn(self, turn: int, setup: JudgeConfig) -> PromptInputs:
        one, asked = self.one, self.one.conversation.turns[turn - 1]
        mine = Candidate(earlier=one.earlier(turn), answer=one.answer(turn))
        # AlignMMBench has rules by task in place of focus points and checklists.
        if self.protocol == "pointwise":
            task, reference = asked.task or "none", asked.reference or ""
            shown = one.images(turn)
            return PromptInputs(sides=[mine], question=asked.prompt, references=[reference], task=task, images=shown)
        if self.against is not None:
            theirs = Candidate(earlier=self.against.earlier(turn), answer=self.against.answer(turn))
        else:  # the reference's conversation begins where the model's does
            earlier = one.whole(one.reference, turn - 1)
            theirs = Candidate(earlier=earlier[len(earlier) - len(mine.earlier) :], answer=asked.reference)
        references = [asked.reference]
        # Turns that the model saw apart are no conversation to look ahead in.
        if setup.sight == "all" and self.protocol in OF_WHOLES and CONDITIONS[one.condition].history:
            mine, references = replace(mine, later=one.later(turn)), [each.reference for each in one.conversation.turns]
            behind = one.later(turn, one.reference) if self.against is None else self.against.later(turn)
            theirs = replace(theirs, later=behind)
        return PromptInputs(
            question=asked.prompt,
            caption=one.conversation.caption,
            sides=[mine, theirs] if self.protocol == "pairwise" else [mine],
            references=references if self._shows_reference(setup) else [],
            focus=None if self.judging == "no_focus" else asked.focus,
            checklist=asked.checklist if self.protocol in ("checklist", "quality") else [],
            images=one.images(turn),
        )

    def _whole(self, setup: JudgeConfig, lines: Sequence[Judgment]) -> PromptInputs:
        one, against = self.one, self.against
        turned = None
        judged = [(line, form_name(self.protocol, line.turn, setup)) for line in lines]
        # In the other order A is the other side, in the judgments of the turns as well.
        if self.protocol == "pairwise":
            verdicts, turned = ([_said(*each, first) for each in judged] for first in records.PLAYERS)
        else:
            verdicts = [_said(*each) for each in judged]
        focus = {number: turn.focus for number, turn in enumerate(one.conversation.turns, 1) if turn.focus}
        mine = Candidate(earlier=one.whole(one.answer))
        theirs = Candidate(earlier=against.whole(against.answer) if against else one.whole(one.reference))
        return PromptInputs(
            caption=one.conversation.caption,
            sides=[mine, theirs] if self.protocol == "pairwise" else [mine],
            references=[turn.reference for turn in one.conversation.turns] if self._shows_reference(setup) else [],
            focus=focus_of_turns(focus, one.conversation.lang),
            verdicts=verdicts,
            turned=turned,
        )

    def _shows_reference(self, setup: JudgeConfig) -> bool:
        """Against the reference itself there is no other one to show."""
        return self.protocol != "pairwise" or (self.against is not None and setup.reference_backed)


UNJUDGED: dict[records.Language, str] = {"en": "not judged", "zh": "未评判"}
"""What stands for the judgment of a turn that failed."""


def _said(line: Judgment, form: str, first: records.Position | None = None) -> records.TurnJudgment:
    """The judgment of a turn with what the judge wrote; of a comparison what it said with `first` as A."""
    turn, lang = line.turn or 0, line.conversation.lang
    calls = [call for call in line.calls if call.first == first]
    if not calls and line.score is not None:  # people's, or in the order in which the judge was not asked
        side = line.score if first == "model" else 1 - line.score
        return records.TurnJudgment(turn, graded(line.score) if first is None else preferred(side))
    said = next((call.value for call in reversed(calls) if call.value is not None), None)
    if first is None and said is not None:  # a grade that was read is none where its scoring failed
        said = None if line.score is None else graded(line.score)
    # A comparison that could not be read counts as a tie, and is shown as what it counts.
    if said is None:
        return records.TurnJudgment(turn, load(form, lang).tie if line.unread else UNJUDGED[lang])
    text = without_thoughts(calls[0].reply)
    reason = inquiry(form, lang, PromptInputs()).read(text, False).reason
    # Free text is its own reason; an object without one would only show braces.
    return records.TurnJudgment(turn, said, reason or (None if text.startswith("{") else text))


def assignments(
    pair: Pair, protocols: Sequence[Protocol], judgings: Sequence[str], backed: bool
) -> Iterator[Assignment]:
    """How a conversation under a condition is judged; only to compare is it held against the other model's."""
    one, other = pair
    for protocol in protocols:
        # Where two ways show the same, the standard one is asked and the other takes its answer.
        for judging in sorted(judgings, key=lambda name: name != "standard"):
            against = other if protocol == "pairwise" else None
            yield Assignment(one=one, protocol=protocol, judging=judging, against=against, backed=backed)


async def judge_all(
    pair: Pair,
    protocols: Sequence[Protocol],
    judgings: Sequence[str],
    setup: JudgeConfig,
    judged: Callable[[PlannedVerdict], Awaitable[Judgment]],
) -> None:
    """Every verdict on a conversation under a condition: turns side by side, then the whole in sight of them. `judged`
    gives the judgment of a planned verdict, asking for it unless it is known."""
    for each in assignments(pair, protocols, judgings, setup.reference_backed):
        lines = await asyncio.gather(*(judged(each.planned(turn, setup)) for turn in each.turns()))
        if each.is_judged_whole():
            await judged(each.planned(None, setup, lines))


def read_transcripts(
    path: Path, benchmark: str, asked: Sequence[records.Conversation] = (), name: str | None = None
) -> Transcripts:
    """A model's transcripts, in the file's order: of what critic infer wrote, or of another program's replies to the
    conversations `asked`, whose model is called `name`. Raises UsageError for replies to another benchmark, by several
    models, or twice to one turn."""
    found: Transcripts = {}
    system: str | None = None
    # Only what critic infer wrote has the conversation beside each reply.
    if not replies.is_table(path):
        lines = jsonl.read(path, ModelTurn)
    elif asked:
        lines = enumerate(replies.read(path, asked, name or whole(path.stem)), 1)
    else:
        raise UsageError(f"{path}: a table of replies, not critic infer's; give the benchmark's file with --questions")
    for number, line in lines:
        place, one = f"{path}:{number}", line.conversation
        if one.benchmark != benchmark:
            raise UsageError(f"{place}: a conversation of {one.benchmark}, expected {benchmark}")
        # Transcripts are known by conversation and condition: another model's would mix with them.
        if system not in (None, line.system):
            raise UsageError(f"{place}: replies of {line.system!r} after those of {system!r}; one model a file")
        if line.condition not in CONDITIONS:
            raise UsageError(f"{place}: unknown condition {line.condition!r}; expected {', '.join(CONDITIONS)}")
        system = line.system
        blank = Transcript(conversation=one, condition=line.condition, system=system, turns={})
        transcript = found.setdefault((one.id, line.condition), blank)
        if line.turn in transcript.turns:
            raise UsageError(f"{place}: turn {line.turn} of {one.id!r} ({line.condition}) is there twice")
        transcript.turns[line.turn] = line
    return found


def paired(mine: Transcripts, theirs: Transcripts, against: Path) -> list[Pair]:
    """Each transcript with the other model's. Raises UsageError where the two are not of the same conversations."""
    # The first file says what is judged: conversations that the other alone has are left out.
    for name, one in mine.items():
        if name not in theirs:
            swap = "where it has fewer conversations or conditions, judge it, --against the other"
            raise UsageError(f"{against}: lacks conversation {name[0]!r} ({name[1]}); {swap}")
        if theirs[name].conversation != one.conversation:
            raise UsageError(f"{against}: has another conversation {name[0]!r} ({name[1]})")
        if theirs[name].system == one.system:
            raise UsageError(f"{against}: the same model, {one.system!r}; infer with --name tells them apart")
    return [(one, theirs[name]) for name, one in mine.items()]


def battles(models: Sequence[Transcripts], how: records.Pairing, seed: int) -> list[Pair]:
    """Who meets whom, of several models' transcripts of the same conversations: in each every two models, or each (of
    a newcomer: the first) with an opponent drawn for it, the same in every run; those who drew each other meet once."""
    found: list[Pair] = []
    for name in models[0]:
        met = {frozenset(pair) for pair in combinations(range(len(models)), 2)}
        if how != "all":
            drawing = range(len(models) if how == "random" else 1)
            met = {frozenset((place, _drawn(place, len(models), seed, *name))) for place in drawing}
        found += [(models[min(pair)][name], models[max(pair)][name]) for pair in sorted(met, key=sorted)]
    return found


def _drawn(place: int, models: int, *words: object) -> int:
    """An opponent of the model at a place, anyone but itself."""
    digest = hashlib.sha256("/".join(map(str, (*words, place))).encode()).digest()
    return (place + 1 + int.from_bytes(digest[:6], "big") % (models - 1)) % models


class VerdictPlan(Struct, frozen=True):
    """Which verdicts are asked for."""

    pairs: list[Pair]
    protocols: list[Protocol]
    judgings: Sequence[str]
    backed: bool

    def wanted(self) -> Iterator[VerdictKey]:
        for pair in self.pairs:
            for each in assignments(pair, self.protocols, self.judgings, self.backed):
                opponent = each.against.system if each.against else None
                one, whole = each.one, [None] if each.is_judged_whole() else []
                for turn in [*each.turns(), *whole]:
                    yield one.system, one.conversation.id, one.condition, each.protocol, each.judging, turn, opponent

    def lacking(self) -> Counter[str]:
        """Turns that are not judged, by what they lack."""
        found: Counter[str] = Counter()
        for pair in self.pairs:
            # A turn without focus points lacks nothing: there is just nothing to leave out.
            for each in assignments(pair, self.protocols, ["standard"], self.backed):
                turns = each.one.conversation.turns
                reasons = (each.lacks(turns[turn - 1]) for turn in each.one.asked)
                found.update(f"{each.protocol}: no {reason}" for reason in reasons if reason)
        return found
