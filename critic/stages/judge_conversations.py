"""The part of `critic judge` that judges conversations: the replies of `critic infer` -> judgments by protocol.

critic judge replies.jsonl --benchmark convbench --out judged.jsonl --protocol direct
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from critic import benchmarks, jsonl
from critic.backends import Backend
from critic.errors import UsageError, notify
from critic.images import BY_HASH, Images, name_images
from critic.judging import protocols, transcripts
from critic.judging.assignments import VerdictPlan, form_name
from critic.judging.forms import BY_NAME, Form, form_of
from critic.judging.judge import EXTRACTED, Judge
from critic.judging.packs import Pack, open_pack
from critic.judging.prompt import EXTRACTION, prompt_hash
from critic.records import Conversation, JudgeConfig, Judgment
from critic.stages import options
from critic.stages.judge_samples import JudgeSamples, print_certified
from critic.stages.options import EVERY_REASON_FIRST, Endpoint, JudgeOptions, check
from critic.stages.run import RunOptions, describe_source
from critic.stages.totals import RunSummary, listed, name_forms


class JudgeConversations(JudgeSamples[list[transcripts.Pair]]):
    """The stage that makes the verdicts of a plan.

    An item is one conversation under all its conditions, so that equal prompts are requested only once.
    """

    unit = "verdict"

    def __init__(self, run: RunOptions, judge: Judge, plan: VerdictPlan, source: dict[str, Any]) -> None:
        super().__init__(run, judge, dict.fromkeys(plan.wanted()), source)
        self._plan, self._not_judged = plan, plan.lacking()
        self.facts["not_judged"] = dict(self._not_judged)

    def items(self) -> Iterable[list[transcripts.Pair]]:
        # Conditions share turns: equal prompts of one conversation meet in one item.
        by_conversation: dict[str, list[transcripts.Pair]] = {}
        for pair in self._plan.pairs:
            by_conversation.setdefault(pair[0].conversation.id, []).append(pair)
        return by_conversation.values()

    async def work(self, item: list[transcripts.Pair], keep: Callable[..., None]) -> None:
        judged = partial(self._judge, in_flight={}, keep=keep)
        await replace(self._plan, pairs=item).judge_all(self.judge.setup, judged)

    def summary(self, records: Iterable[Judgment]) -> RunSummary:
        totals = super().summary(records)
        if self._not_judged:
            totals.lines.insert(1, f"turns not judged: {listed(self._not_judged)}")
        return totals


def judge_conversations(
    run: RunOptions, endpoint: Endpoint, how: JudgeOptions, files: list[Path], benchmark: str, questions: Path | None
) -> int:
    """Judge the conversations in files of replies. Return the exit code: 0, or 3 if too many verdicts failed.

    `run`: how the stage is run. `endpoint`: the judge's model or server. `how`: the options for judging.
    `files`: the replies of the judged model to `benchmark`, and then those of the models that it is compared with.
    `questions`: the benchmark's own file, or None.

    Raises UsageError if options or files do not fit together.
    """
    replies, *against = files
    whole = plan_verdicts(how, benchmark, models=len(files))
    published, uris = name_images(benchmarks.read(benchmark, questions)) if questions is not None else ([], {})
    models = [transcripts.read_transcripts(path, benchmark, published) for path in files]
    for path in files:
        # A table of another program has no sidecar.
        if not (transcripts.is_table(path) or jsonl.sidecar(path).is_file()):
            notify(f"{path}: critic infer has not finished it; what it lacks is not judged")
    if questions is not None:
        replied = [transcript.conversation for transcript in models[0].values()]
        benchmarks.check_asked(questions, published, ((conversation, replies) for conversation in replied))
        if missing := len(published) - len({conversation.id for conversation in replied}):
            notify(f"{missing} of {len(published)} conversations of {questions} have no replies and are not judged")
    whole = replace(whole, pairs=transcripts.pair_up(models, files, how.battles, how.seed))
    root = endpoint.data_root or options.root_of(replies, questions)
    # The forms follow from the rows of all shards: merged files say alike how they were judged.
    judge = prepare_judge(endpoint, how, whole, replies, root, uris)
    plan = replace(whole, pairs=[pair for pair in whole.pairs if run.takes(pair[0].conversation.group)])
    say_calls(plan, judge.setup)
    forms = list_forms(whole, judge.setup)
    print_certified(run, [judge], forms)
    sources = {
        "replies": describe_source(replies),
        "benchmark": benchmark,
        "protocols": plan.protocols,
        "judgings": plan.judgings,
        "forms": forms,
        "against": [describe_source(path) for path in against] or None,
    }
    return JudgeConversations(run, judge, plan, sources).run()


def prepare_judge(
    endpoint: Endpoint, how: JudgeOptions, plan: VerdictPlan, file: Path, root: Path, uris: Mapping[str, str]
) -> Judge:
    """Open the judge, and choose the prompt forms of the planned verdicts, without any request.

    `endpoint`: the judge's model or server.
    `how`: the options for judging. Forms that they leave open are those the judge was trained on.
    `plan`: the verdicts to request; its transcripts may still lack replies.
    `file`: the file of the conversations, for messages.
    `root`: folder of the images. `uris`: images inside the benchmark's file, name -> data URI.

    Raises UsageError if there is nothing to judge, or if the judge cannot do it; the message says what it can do.
    """
    usual = _usual_setup(how, plan.benchmark, plan.protocols)
    _check_plan(plan, file)
    pack = open_pack(how.prompt_pack) if how.prompt_pack else None
    (backend,) = endpoint.open("--judge", how.judge)
    # A constrained reply is a verdict, or was cut off before it: it holds nothing to extract.
    if backend.served.is_vllm or backend.served.is_classifier:
        check((not how.extract, f"--extract: {backend.served.name} is held to the form of a verdict; leave it out"))
        usual = replace(usual, second_question="")
    # A judge is asked as it learned wherever the options leave the form open.
    setup, usual_forms = _find_setup(how, usual, plan, backend), list_forms(plan, usual)
    if pack:
        _check_pack(pack, how, plan, usual, backend)
        setup = replace(usual, pack=pack.name)
    if setup is None:
        instead = _say_instead(how, plan, backend)
        unlearned = options.force_unlearned(backend, usual_forms, "protocol", how.force_form, instead)
        setup = replace(usual, unlearned=unlearned)
    forms = list_forms(plan, setup)
    # A form without ties uses one random order, so only now is it known whether --seed matters.
    if how.seed and setup.orders == 2 and how.battles not in ("random", "newcomer"):
        raise UsageError(f"--seed {how.seed}: nothing is drawn but by --order random or forced, --battles random")
    # A form that is named outranks a paper without reasons.
    asked = replace(how, no_reason=how.no_reason or not (how.prompt or usual.decoding.reason))
    setup = replace(setup, judge=how.judge_name or backend.served.name, decoding=asked.decoding(forms))
    # Free text reasons before it comes to a verdict.
    tokens = options.TOKENS_OF_STEPS if setup.reason_first or pack or backend.served.writes_freely else options.TOKENS
    # The paper's judge may be blind to images; an option outranks it.
    if how.published and usual.decoding.images == "blind":
        how = replace(how, images=how.images or "blind")
    images = endpoint.shown(how, root, [backend])
    judge = Judge(backend, setup, how.max_tokens or tokens, images, pack=pack)
    # The judge may see images that the model was not shown: all must be there before the first call.
    if judge.images is not None:
        judge.images.uris |= uris
        _check_images(judge.images, [transcript.conversation for transcript, _ in plan.pairs], file)
    why = ", as it learned" if backend.served.forms else ""
    if setup.unlearned:
        why = f"; it did not learn {setup.unlearned} (--force-form)"
    usually = f" (usual: {', '.join(usual_forms)})" if usual_forms != forms else ""
    notify(f"{backend.served.name} is asked in {name_forms(forms)}{why}{usually}")
    if how.published and (otherwise := benchmarks.load(plan.benchmark).setup_departures(judge.setup, plan.protocols)):
        notify(f"not as published: {'; '.join(otherwise)}")
    return judge


def _check_pack(pack: Pack, how: JudgeOptions, plan: VerdictPlan, setup: JudgeConfig, judge: Backend) -> None:
    """Raise UsageError if the pack lacks a prompt for a verdict of the plan, or if judge or options cannot use it."""
    named, served = f"--prompt-pack {how.prompt_pack}", judge.served
    check(
        (not served.is_classifier, f"{named}: {served.name} is a scoring head, which writes no verdict"),
        (not served.forms or how.force_form, f"{named}: {served.name} learned our prompts; --force-form asks by it"),
        (not how.no_reason, f"{named}: is answered in free text, which --no-reason leaves out"),
        (setup.score_kind == "argmax", f"{named}: is answered in free text, without a distribution for --score"),
    )
    talks = {transcript.conversation.id: transcript.conversation for transcript, _ in plan.pairs}
    for _, key, _, protocol, _, turn, _ in plan.wanted():
        form, turns = form_name(protocol, turn, setup), len(talks[key].history) + len(talks[key].turns)
        seen = turns if turn is None or form_of(form).all_turns else len(talks[key].history) + turn
        pack.check(form, turn, talks[key].lang, seen)
    notify(f"prompts of {pack.name}: {', '.join(pack.prompts)}")


def plan_verdicts(how: JudgeOptions, benchmark: str, models: int = 1) -> VerdictPlan:
    """Return a plan, still without pairs, for judging the replies of `models` models.

    Its protocols are the values of --protocol, or the benchmark's own.

    Raises UsageError if options contradict each other, or if none of the protocols uses an option.
    """
    entry = benchmarks.load(benchmark)
    named = options.choose("protocol", how.protocol or [], protocols.PROTOCOLS)
    comparing = _heeding(lambda protocol: protocol.compares)
    # The other protocols judge the answers of one model.
    own = [name for name in entry.protocols if models < 3 or name in comparing]
    chosen = named or own or ["pairwise"]
    if how.published and not {*named} <= {*entry.protocols}:
        raise UsageError(f"--as published: {entry.title} is judged by --protocol {' and '.join(entry.protocols)}")
    if models > 2 and not {*chosen} <= {*comparing}:
        raise UsageError(f"more than two models are compared by --protocol {' and '.join(comparing)} alone")
    if how.battles is not None and models < 3:
        raise UsageError("--battles is one of three models or more: --against A --against B")
    setup = _usual_setup(how, benchmark, chosen)
    of_wholes = _heeding(lambda protocol: protocol.whole_form is not None)
    of_any_form = _heeding(lambda protocol: protocol.form is None)
    form = setup.pointwise_prompt
    limited: list[tuple[bool, str, list[str]]] = [
        (setup.order != "both", f"--order {setup.order}", comparing),
        (setup.unread != "fail", f"--on-unparsed {setup.unread}", comparing),
        (how.extract, "--extract", list(EXTRACTED)),
        (setup.sight != "before", f"--turn-context {setup.sight}", of_wholes),
        (setup.score_kind != "argmax", f"--score {setup.score_kind}", _heeding(lambda protocol: protocol.rates)),
        *((name != "standard", f"--judging {name}", of_wholes) for name in how.judging or ()),
        (form != "pointwise" and not setup.reason_first, f"--prompt {form} (unlike reason_first)", of_any_form),
    ]
    for is_given, option, heeding in limited:
        check((not is_given or {*heeding} & {*chosen}, f"{option} is one of --protocol {' and '.join(heeding)}"))
    asks_first = setup.reason_first and any(form_name(name, 1, setup) == protocols.load(name).form for name in chosen)
    if models > 1 and not {*comparing} & {*chosen}:
        raise UsageError(f"--against compares two models: it needs --protocol {' or '.join(comparing)}")
    if not _rates_answers(form_of(form)):
        raise UsageError(f"--prompt {form}: --protocol pointwise takes a form that rates single answers")
    check(
        (setup.reference_backed or models > 1, "--reference-free needs --against"),
        (setup.unread == "fail" or setup.order != "forced", "--on-unparsed tie: --order forced has no ties"),
        (not asks_first, f"--prompt reason_first: --protocol {' or '.join(chosen)} has no such form"),
    )
    judgings = options.choose("judging", how.judging or ["standard"], options.ABLATIONS)
    return VerdictPlan(benchmark, [], chosen, judgings, not how.reference_free)


def _usual_setup(how: JudgeOptions, benchmark: str, chosen: Sequence[str]) -> JudgeConfig:
    """Return the setup that the options select, without regard to the forms that the judge was trained on.

    What the options leave open has the paper's value (--as published) or else critic's default. `chosen`: the names of
    the protocols.
    """
    base = JudgeConfig(judge="", score_kind="argmax")
    if how.published is not None:
        base = benchmarks.load(benchmark).paper_setup(chosen)
    # A form that is named outranks the paper's reason first.
    reason_first = how.prompt == EVERY_REASON_FIRST or (base.reason_first and how.prompt is None)
    if reason_first:
        how = replace(how, prompt=EVERY_REASON_FIRST)
    return replace(
        base,
        score_kind=how.score or "argmax",
        order=how.order or base.order,
        seed=how.seed,
        repeat=how.repeat,
        battles=how.battles,
        reference_backed=not how.reference_free,
        pointwise_prompt=how.answer_form if how.prompt else base.pointwise_prompt,
        second_question=prompt_hash(EXTRACTION) if how.extract else base.second_question,
        unread=how.on_unparsed or base.unread,
        sight=how.turn_context or base.sight,
        reason_first=reason_first,
    )


def list_forms(plan: VerdictPlan, setup: JudgeConfig) -> list[str]:
    """Return the sorted names of the prompt forms that the verdicts of a plan need."""
    return sorted({form_name(protocol, turn, setup) for *_, protocol, _, turn, _ in plan.wanted()})


def _find_setup(how: JudgeOptions, usual: JudgeConfig, plan: VerdictPlan, judge: Backend) -> JudgeConfig | None:
    """Return the first setup whose forms the judge was trained on, or None if the options allow none.

    `usual` is the setup to try first (`_usual_setup`). The others differ in what the options leave open: form, position
    of the reason, order of the answers, and turns shown.
    """
    prompts, reasons = [usual.pointwise_prompt], [usual.reason_first]
    orders, sights = [usual.order], [usual.sight]
    # What the paper prescribes is no more open than what an option names.
    if how.prompt is None and how.published is None:
        reasons.append(True)
        # In the table's order: ratings on 1..10 come first, whatever the order of the recipe.
        for name, form in BY_NAME.items():
            if name in judge.served.forms and _rates_answers(form) and form.protocol == "pointwise":
                prompts.append(name)
    if how.published is None:
        orders += ["forced"] if how.order is None and usual.unread == "fail" else []
        sights += ["all"] if how.turn_context is None else []
    for prompt, reason_first, order, sight in product(prompts, reasons, orders, sights):
        setup = replace(usual, pointwise_prompt=prompt, reason_first=reason_first, order=order, sight=sight)
        forms = list_forms(plan, setup)
        reasoned = how.no_reason and any(map(options.puts_reason_first, forms))
        if not reasoned and not options.list_unlearned(judge.served, forms):
            return setup
    return None


def _say_instead(how: JudgeOptions, plan: VerdictPlan, judge: Backend) -> str:
    """Return part of an error message: how the judge can judge these replies if other options are given."""
    free = replace(how, prompt=None, published=None, order=None, turn_context=None, no_reason=False)
    usual = _usual_setup(free, "", ())
    possible = list[str]()
    # Protocols are tried one at a time: together they may need two setups.
    for protocol in protocols.PROTOCOLS:
        part = replace(plan, protocols=[protocol], judgings=["standard"])
        if any(part.wanted()) and _find_setup(free, usual, part, judge):
            possible.append(protocol)
    named: dict[str, Any] = {"--as published": how.published, "--prompt": how.prompt, "--order": how.order}
    named |= {"--turn-context": how.turn_context, "--no-reason": how.no_reason}
    given = [option for option, value in named.items() if value]
    if given and {*plan.protocols} <= {*possible}:
        return f"leave out {', '.join(given)} to ask as it learned"
    if possible:
        return f"these replies it can judge by --protocol {' or '.join(possible)}"
    return "it can judge these replies by no protocol"


def say_calls(plan: VerdictPlan, setup: JudgeConfig) -> None:
    """Print how many requests the verdicts need at most, and how many if the judge is asked as in the paper.

    Equal prompts are requested only once, which is known only with the replies, so there may be fewer.
    """
    by_protocol = Counter(protocol for *_, protocol, _, _, _ in plan.wanted())
    paper = benchmarks.load(plan.benchmark).paper_setup(plan.protocols)
    compared = sum(count for name, count in by_protocol.items() if protocols.load(name).compares)
    calls, paper_calls = (by_protocol.total() + compared * (how.orders - 1) for how in (setup, paper))
    fewer = f" (--as published: {paper_calls})" if paper_calls != calls else ""
    if setup.second_question:
        fewer = f", {calls} if every reply can be read{fewer}"
        calls += sum(by_protocol[name] * (setup.orders if name == "pairwise" else 1) for name in EXTRACTED)
    notify(f"{by_protocol.total()} verdicts by at most {calls} calls{fewer}")


def _check_plan(plan: VerdictPlan, replies: Path) -> None:
    """Raise UsageError if a plan, or one of its ablations, has no verdict to make; `replies` is the file."""
    if not any(plan.wanted()):
        lacking = listed(plan.lacking())
        free = "; --against OTHER --reference-free compares two models without one" if "no reference" in lacking else ""
        raise UsageError(f"{replies}: nothing to judge: {lacking or 'no such turn'}{free}")
    # An ablation without a verdict would leave a gap in the tables, and nobody would know why.
    present = {judging for *_, judging, _, _ in plan.wanted()}
    for judging in plan.judgings:
        check((judging in present, f"--judging {judging}: no turn of {replies} can be judged so"))


def _check_images(images: Images, conversations: Sequence[Conversation], replies: Path) -> None:
    """Check that the images of the conversations can be loaded. Warns if some files are missing.

    Raises UsageError if all files are missing, or if an image is embedded in the benchmark's file but --questions does
    not give that file. `replies` is the file of the conversations, for messages.
    """
    names = [name for conversation in conversations for turn in conversation.turns for name in turn.images]
    for name in names:
        # A name of a hash is an image inside the benchmark's file, which replies do not hold.
        inside = name.startswith(BY_HASH) and name not in images.uris
        check((not inside, f"{replies}: {name} stands in the benchmark's file: give it with --questions"))
    images.require(names)


def _heeding(heeds: Callable[[protocols.Protocol], bool]) -> list[str]:
    """Return the names of the protocols for which the function `heeds` returns True."""
    return [name for name in protocols.PROTOCOLS if heeds(protocols.load(name))]


def _rates_answers(form: Form) -> bool:
    """Return True if a form asks for one rating of a single answer, as the protocol "pointwise" requires."""
    return form.kind.single_rating and form.scope == "turn" and not form.pair
