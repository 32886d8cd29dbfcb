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
from critic.errors import UsageError, quoted, replace_surrogates
from critic.judging import replies
from critic.judging.answers import say_thoughts, without_thoughts_in
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
        sent = self.turns[turn].seen[:-1]  # without the question itself
        pairs = list(zip(sent[::2], sent[1::2], strict=True))
        whole = self.whole(lambda _: "", turn - 1)  # of which the oldest may have been left out
        shown = [exchange.images for exchange in whole[len(whole) - len(pairs) :]]
        return [Exchange(user.content, reply.content, names) for (user, reply), names in zip(pairs, shown, strict=True)]

    def whole(self, answers: Callable[[int], str], turns: int | None = None) -> list[Exchange]:
        """What was said before, and all turns or the first few, with the `answers` by number."""
        # What was said before turn 1 is about its images.
        shown = [self.conversation.turns[0].images, *([] for _ in self.conversation.history)]
        history = zip(self.conversation.history, shown, strict=False)
        before = [Exchange(turn.user, turn.assistant, names) for turn, names in history]
        numbered = enumerate(self.conversation.turns[:turns], 1)
        return [*before, *(Exchange(turn.prompt, answers(number), turn.images) for number, turn in numbered)]

    def later(self, turn: int, answers: Callable[[int], str] | None = None) -> list[Exchange]:
        """The exchanges behind a turn, as far as the model replied: with its replies, or other `answers` by number."""
        # What a model saw apart is no conversation that goes on.
        numbered = enumerate(self.conversation.turns, 1) if CONDITIONS[self.condition].history else ()
        return [
            Exchange(question.prompt, (answers or self.answer)(number), question.images)
            for number, question in numbered
            if number > turn and (line := self.turns.get(number)) and line.reply is not None
        ]

    def images(self, turn: int) -> list[str]:
        """Those of a turn and of all before it, whether or not the model saw them."""
        return [name for question in self.conversation.turns[:turn] for name in question.images]

    def reference(self, turn: int) -> str:
        return self.conversation.turns[turn - 1].reference or ""


Transcripts = dict[tuple[str, str], Transcript]
"""A model's transcripts by conversation and condition."""

Pair = tuple[Transcript, Transcript | None]
"""A model's transcript, and the other model's where two are compared."""

VerdictKey = tuple[str, str, str, Protocol, str, int | None, str | None]


def key(verdict: "Judgment | PlannedVerdict") -> VerdictKey:
    """What tells the verdicts of a file apart."""
    sample = verdict.sample
    protocol = verdict.protocol or "pointwise"
    return sample.system or "", sample.id, sample.condition, protocol, verdict.judging, sample.turn, sample.opponent


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

    def of(self, judgment: Judgment) -> Judgment:
        """What a judge made of another one that it was shown alike."""
        how = {"protocol": self.protocol, "judging": self.judging, "unjudged": self.unjudged}
        return replace(judgment, sample=self.sample, **how)


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
        transcript, against = self.one, self.against
        shown = transcript.asked if turn is None else [turn]
        problem = transcript.problem(shown) or (against.problem(shown) if against else None)
        answer = transcript.answer(turn) if turn is not None and problem is None else None
        form, material = form_name(self.protocol, turn, setup), None
        # A turn without a reply, the model's or its opponent's, leaves nothing to judge or to compare.
        if problem is None and turn is not None:
            material = self._turn(turn, setup)
        elif problem is None:
            material = self._whole(setup, lines)
        sample = Sample(
            id=transcript.conversation.id,
            conversation=transcript.conversation,
            system=transcript.system,
            condition=transcript.condition,
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
        transcript, question = self.one, self.one.conversation.turns[turn - 1]
        mine = Candidate(earlier=transcript.earlier(turn), answer=transcript.answer(turn))
        # AlignMMBench has rules by task in place of focus points and checklists.
        if self.protocol == "pointwise":
            task, reference = question.task or "none", question.reference or ""
            shown = transcript.images(turn)
            return PromptInputs(sides=[mine], question=question.prompt, references=[reference], task=task, images=shown)
        if self.against is not None:
            theirs = Candidate(earlier=self.against.earlier(turn), answer=self.against.answer(turn))
        else:  # the reference's conversation begins where the model's does
            earlier = transcript.whole(transcript.reference, turn - 1)
            theirs = Candidate(earlier=earlier[len(earlier) - len(mine.earlier) :], answer=question.reference)
        references = [question.reference]
        # Turns that the model saw apart are no conversation to look ahead in.
        if setup.sight == "all" and self.protocol in OF_WHOLES and CONDITIONS[transcript.condition].history:
            mine = replace(mine, later=transcript.later(turn))
            references = [shown_turn.reference for shown_turn in transcript.conversation.turns]
            behind = transcript.later(turn, transcript.reference) if self.against is None else self.against.later(turn)
            theirs = replace(theirs, later=behind)
        return PromptInputs(
            question=question.prompt,
            caption=transcript.conversation.caption,
            sides=[mine, theirs] if self.protocol == "pairwise" else [mine],
            references=references if self._shows_reference(setup) else [],
            focus=None if self.judging == "no_focus" else question.focus,
            checklist=question.checklist if self.protocol in ("checklist", "quality") else [],
            images=transcript.images(turn),
        )

    def _whole(self, setup: JudgeConfig, lines: Sequence[Judgment]) -> PromptInputs:
        transcript, against = self.one, self.against
        turns, turned = transcript.conversation.turns, None
        judged = [(line, form_name(self.protocol, line.turn, setup)) for line in lines]
        # In the other order A is the other side, in the judgments of the turns as well.
        if self.protocol == "pairwise":
            verdicts, turned = (
                [_turn_judgment(line, form, first) for line, form in judged] for first in records.PLAYERS
            )
        else:
            verdicts = [_turn_judgment(line, form) for line, form in judged]
        focus = {number: turn.focus for number, turn in enumerate(turns, 1) if turn.focus}
        mine = Candidate(earlier=transcript.whole(transcript.answer))
        theirs = Candidate(earlier=against.whole(against.answer) if against else transcript.whole(transcript.reference))
        return PromptInputs(
            caption=transcript.conversation.caption,
            sides=[mine, theirs] if self.protocol == "pairwise" else [mine],
            references=[turn.reference for turn in turns] if self._shows_reference(setup) else [],
            focus=focus_of_turns(focus, transcript.conversation.lang),
            verdicts=verdicts,
            turned=turned,
        )

    def _shows_reference(self, setup: JudgeConfig) -> bool:
        """Against the reference itself there is no other one to show."""
        return self.protocol != "pairwise" or (self.against is not None and setup.reference_backed)


UNJUDGED: dict[records.Language, str] = {"en": "not judged", "zh": "未评判"}
"""What stands for the judgment of a turn that failed."""


def _turn_judgment(line: Judgment, form: str, first: records.Position | None = None) -> records.TurnJudgment:
    """The judgment of a turn with what the judge wrote; of a comparison what it said with `first` as A."""
    turn, lang = line.turn or 0, line.conversation.lang
    calls = [call for call in line.calls if call.first == first]
    if not calls and line.score is not None:  # people's, or in the order in which the judge was not asked
        side = line.score if first == "model" else 1 - line.score
        return records.TurnJudgment(turn, graded(line.score) if first is None else preferred(side))
    verdict = next((call.value for call in reversed(calls) if call.value is not None), None)
    if first is None and verdict is not None:  # a grade that was read is none where its scoring failed
        verdict = None if line.score is None else graded(line.score)
    # A comparison that could not be read counts as a tie, and is shown as what it counts.
    if verdict is None:
        return records.TurnJudgment(turn, load(form, lang).tie if line.unread else UNJUDGED[lang])
    text = without_thoughts(calls[0].reply)
    reason = inquiry(form, lang, PromptInputs()).read(text, False).reason
    # Free text is its own reason; an object without one would only show braces.
    return records.TurnJudgment(turn, verdict, reason or (None if text.startswith("{") else text))


def assignments(
    pair: Pair, protocols: Sequence[Protocol], judgings: Sequence[str], backed: bool
) -> Iterator[Assignment]:
    """How a conversation under a condition is judged; only to compare is it held against the other model's."""
    transcript, opponent = pair
    for protocol in protocols:
        # Where two ways show the same, the standard one is asked and the other takes its answer.
        for judging in sorted(judgings, key=lambda name: name != "standard"):
            against = opponent if protocol == "pairwise" else None
            yield Assignment(one=transcript, protocol=protocol, judging=judging, against=against, backed=backed)


async def judge_all(
    pair: Pair,
    protocols: Sequence[Protocol],
    judgings: Sequence[str],
    setup: JudgeConfig,
    judged: Callable[[PlannedVerdict], Awaitable[Judgment]],
) -> None:
    """Every verdict on a conversation under a condition: turns side by side, then the whole in sight of them. `judged`
    gives the judgment of a planned verdict, asking for it unless it is known."""
    for assignment in assignments(pair, protocols, judgings, setup.reference_backed):
        lines = await asyncio.gather(*(judged(assignment.planned(turn, setup)) for turn in assignment.turns()))
        if assignment.is_judged_whole():
            await judged(assignment.planned(None, setup, lines))


def read_transcripts(
    path: Path, benchmark: str, conversations: Sequence[records.Conversation] = (), name: str | None = None
) -> Transcripts:
    """A model's transcripts, in the file's order: of what critic infer wrote, or of another program's replies to the
    `conversations`, whose model is called `name`. Raises UsageError for replies to another benchmark, by several
    models, or twice to one turn."""
    transcripts: Transcripts = {}
    system: str | None = None
    # Only what critic infer wrote has the conversation beside each reply.
    if not replies.is_table(path):
        lines = jsonl.read(path, ModelTurn)
    elif conversations:
        lines = enumerate(replies.read(path, conversations, name or replace_surrogates(path.stem)), 1)
    else:
        raise UsageError(f"{path}: a table of replies, not critic infer's; give the benchmark's file with --questions")
    thinking = answers = 0
    for number, recorded in lines:
        line = without_thoughts_in(recorded)
        location, conversation = f"{path}:{number}", line.conversation
        thinking += line.thoughts is not None
        answers += line.thoughts is not None or line.reply is not None
        if conversation.benchmark != benchmark:
            raise UsageError(f"{location}: a conversation of {conversation.benchmark}, expected {benchmark}")
        # Transcripts are known by conversation and condition: another model's would mix with them.
        if system not in (None, line.system):
            raise UsageError(
                f"{location}: replies of {quoted(line.system)} after those of {quoted(system)}; one model a file"
            )
        if line.condition not in CONDITIONS:
            raise UsageError(
                f"{location}: unknown condition {quoted(line.condition)}; expected {', '.join(CONDITIONS)}"
            )
        system = line.system
        blank = Transcript(conversation=conversation, condition=line.condition, system=system, turns={})
        transcript = transcripts.setdefault((conversation.id, line.condition), blank)
        if line.turn in transcript.turns:
            raise UsageError(
                f"{location}: turn {line.turn} of {quoted(conversation.id)} ({line.condition}) is there twice"
            )
        transcript.turns[line.turn] = line
    say_thoughts(path, thinking, answers)
    return transcripts


def paired(mine: Transcripts, theirs: Transcripts, against: Path) -> list[Pair]:
    """Each transcript with the other model's. Raises UsageError where the two are not of the same conversations."""
    # The first file says what is judged: conversations that the other alone has are left out.
    for name, transcript in mine.items():
        if name not in theirs:
            swap = "where it has fewer conversations or conditions, judge it, --against the other"
            raise UsageError(f"{against}: lacks conversation {quoted(name[0])} ({name[1]}); {swap}")
        # Another edition of the benchmark may ask something else under the same id.
        if theirs[name].conversation != transcript.conversation:
            raise UsageError(f"{against}: has another conversation {quoted(name[0])} ({name[1]})")
        # Verdicts are told apart by the models' names.
        if theirs[name].system == transcript.system:
            raise UsageError(
                f"{against}: the same model, {quoted(transcript.system)}; infer with --name tells them apart"
            )
    return [(transcript, theirs[name]) for name, transcript in mine.items()]


def battles(models: Sequence[Transcripts], how: records.Pairing, seed: int) -> list[Pair]:
    """Who meets whom, of several models' transcripts of the same conversations: in each every two models, or each (of
    a newcomer: the first) with an opponent drawn for it, the same in every run; those who drew each other meet once."""
    pairs: list[Pair] = []
    for name in models[0]:
        met = {frozenset(pair) for pair in combinations(range(len(models)), 2)}
        if how != "all":
            drawing = range(len(models) if how == "random" else 1)
            met = {frozenset((index, _drawn(index, len(models), seed, *name))) for index in drawing}
        pairs += [(models[min(pair)][name], models[max(pair)][name]) for pair in sorted(met, key=sorted)]
    return pairs


def _drawn(index: int, models: int, *words: object) -> int:
    """The index of an opponent of a model, anyone but itself."""
    digest = hashlib.sha256("/".join(map(str, (*words, index))).encode()).digest()
    return (index + 1 + int.from_bytes(digest[:6], "big") % (models - 1)) % models


class VerdictPlan(Struct, frozen=True):
    """Which verdicts are asked for."""

    pairs: list[Pair]
    protocols: list[Protocol]
    judgings: Sequence[str]
    backed: bool

    def wanted(self) -> Iterator[VerdictKey]:
        for pair in self.pairs:
            for assignment in assignments(pair, self.protocols, self.judgings, self.backed):
                transcript, whole = assignment.one, [None] if assignment.is_judged_whole() else []
                named = transcript.system, transcript.conversation.id, transcript.condition
                opponent = assignment.against.system if assignment.against else None
                for turn in [*assignment.turns(), *whole]:
                    yield *named, assignment.protocol, assignment.judging, turn, opponent

    def lacking(self) -> Counter[str]:
        """Turns that are not judged, by what they lack."""
        counts: Counter[str] = Counter()
        for pair in self.pairs:
            # A turn without focus points lacks nothing: there is just nothing to leave out.
            for assignment in assignments(pair, self.protocols, ["standard"], self.backed):
                turns = assignment.one.conversation.turns
                reasons = (assignment.lacks(turns[turn - 1]) for turn in assignment.one.asked)
                counts.update(f"{assignment.protocol}: no {reason}" for reason in reasons if reason)
        return counts
