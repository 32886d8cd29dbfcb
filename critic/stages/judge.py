"""critic judge: responses -> judgments, by one judge or a panel.

critic judge rows.jsonl --judge runs/demo/judge --out judged.jsonl
critic judge rows.jsonl --judge http://a:8000/v1 --judge gpt.jsonl --out panel.jsonl
critic judge replies.jsonl --benchmark convbench --as published --out judged.jsonl
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from msgspec.structs import replace

from critic import human_scored, records
from critic.benchmarks import BENCHMARKS, load
from critic.errors import replace_surrogates
from critic.judging.distribution import Aggregation, ScoreKind
from critic.judging.forms import FORMS, REASON_FIRST, form_of, inquiry
from critic.judging.judge import Judge, ResponseJudge
from critic.judging.protocols import PROTOCOLS
from critic.judging.replies import benchmark_of
from critic.judging.targets import REASON
from critic.stages import options
from critic.stages.judge_conversations import judge_conversations
from critic.stages.judge_responses import FormResponses, judge_responses
from critic.stages.judge_samples import summary
from critic.stages.options import Endpoint, check, root_of, takes_endpoint
from critic.stages.run import RunOptions, check_plain, source

DEFAULT_URL = "http://127.0.0.1:8000/v1"

EVERY_REASON_FIRST = "reason_first"

TOKENS, TOKENS_OF_STEPS = 256, 1024
"""The most tokens of a verdict, and of one behind a reason of many steps: twice what LONGEST_STEPS comes to."""


def _responses(
    path: Path, form: str, run: RunOptions, tell: Callable[[], bool], own: human_scored.OwnColumns | None
) -> FormResponses:
    """What is judged; `tell`: a picture tells what is right where there is no reference."""

    def read(left_out: Counter[str]) -> Iterator[records.Response]:
        for _, _, response in human_scored.walk(path, left_out, pictures=True, scored=False, own=own):
            if response.question.reference or response.other or response.shown or tell():
                yield response
            else:
                left_out[human_scored.UNUSABLE_FLAGS["no_reference"]] += 1

    return FormResponses(read, path, form, run)


def _decoding(prompt: str, no_reason: bool, panel: bool, temperature: float) -> records.SamplingParams:
    form = form_of(prompt)
    reason_first = no_reason and inquiry(prompt, "en", records.PromptInputs()).keys()[:1] == (REASON,)
    check(
        (form.kind.is_verdict, f"--prompt {prompt}: asks for an answer, not for a verdict; commit_first asks it first"),
        (form.kind.rates or not panel, f"several --judge make a panel of ratings, and --prompt {prompt} does not rate"),
        (not reason_first, f"--no-reason: prompt {prompt!r} has the reason before the rating"),
    )
    # The very object is what records leave out.
    changed = no_reason or temperature
    return records.SamplingParams(reason=not no_reason, temperature=temperature) if changed else records.GREEDY


def _refuse(where: str, **options_given: object) -> None:
    """Raises UsageError for options that do not go together."""
    for option, value in options_given.items():
        check((not value, f"{'several --judge' if option == 'several' else f'--{option}'} cannot be used {where}"))


def _base_setup(benchmark: str | None, published: str | None, protocols: list[str]) -> records.JudgeConfig:
    """How conversations are judged where no option says it: as we do, or as the benchmark's paper does. Raises
    UsageError for protocols that the paper does not have."""
    paper = None if benchmark is None else load(benchmark)
    if paper is None or published is None:
        return records.JudgeConfig(judge="", score_kind="argmax")
    check(
        (
            {*protocols} <= {*paper.protocols},
            f"--as published: {paper.title} is judged by --protocol {' and '.join(paper.protocols)}",
        )
    )
    return paper.paper_setup(protocols)


_judge = options.endpoint
_how = partial(typer.Option, rich_help_panel="The form of a verdict")
_rare = options.rare


@takes_endpoint
def main(
    responses: Annotated[Path, typer.Argument(metavar="RESPONSES", help="Scored rows, or replies to a benchmark.")],
    out: Annotated[Path, options.data(metavar="FILE", help="Output file; rerun to resume.", callback=check_plain)],
    endpoint: Endpoint,
    questions: Annotated[Path | None, options.data(metavar="FILE", help="The benchmark's published file.")] = None,
    benchmark: Annotated[str | None, options.data(metavar="NAME", help=f"{', '.join(BENCHMARKS)}.")] = None,
    against: Annotated[
        list[Path] | None, options.data(metavar="FILE", help="Replies of another model.", show_default="the reference")
    ] = None,
    images: Annotated[
        records.Showing | None, options.data(help="Show images to the judge, or not.", show_default="show, if it can")
    ] = None,
    mapped: options.Mapped = None,
    scale: options.OwnScale = None,
    lang: options.OwnLanguage = None,
    judge: Annotated[
        list[str] | None,
        _judge(
            metavar="JUDGE",
            help="FOLDER (vLLM in this process), URL, URL#MODEL, @FILE of URLs, replies.jsonl; several: a panel.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        _judge(parser=replace_surrogates, metavar="NAME", help="Name of the judge.", show_default="the model's"),
    ] = None,
    aggregate: Annotated[Aggregation, _judge(metavar="HOW", help="Score of a panel: mean or median.")] = "mean",
    certificate: Annotated[
        Path | None, _judge(metavar="FILE", help="Certificate of an audit; refuse any other judge.")
    ] = None,
    prompt: Annotated[
        str, _how(metavar="FORM", show_default=False, help=f"{', '.join(FORMS)}, {EVERY_REASON_FIRST}.")
    ] = "pointwise",
    published: Annotated[Literal["published"] | None, _how("--as", help="Judge a benchmark as its paper does.")] = None,
    protocol: Annotated[list[str] | None, _how(metavar="NAME", help=f"{', '.join(PROTOCOLS)}.")] = None,
    score: Annotated[
        ScoreKind | None,
        _how(metavar="WHICH", help="Rating: expected, median or argmax.", show_default="argmax with --benchmark"),
    ] = None,
    no_reason: Annotated[bool, _how("--no-reason", help="Ask for the rating only: much faster.")] = False,
    force_form: Annotated[bool, _how("--force-form", help="Ask in a form that the judge did not learn.")] = False,
    temperature: Annotated[float, _rare(min=0, help="Sampling temperature; each row has its own seed.")] = 0.0,
    seed: Annotated[int, _rare(help="Seed of random orders and battles.")] = 0,
    battles: Annotated[records.Pairing | None, _rare(help="Which of several models are compared.")] = None,
    reference_free: Annotated[bool, _rare("--reference-free", help="Compare models without a reference.")] = False,
    order: Annotated[records.Order | None, _rare(help="Order in which two answers are shown.")] = None,
    judging: Annotated[list[str] | None, _rare(help="Ablations of ConvBench's judge.")] = None,
    on_unparsed: Annotated[records.OnUnparsed | None, _rare(help="Result of an unreadable comparison.")] = None,
    turn_context: Annotated[records.TurnContext | None, _rare(help="Turns shown beside the judged one.")] = None,
    max_tokens: Annotated[int | None, options.max_tokens(8, f"{TOKENS}; steps: {TOKENS_OF_STEPS}")] = None,
) -> int:
    """Score responses with a judge or a panel; a benchmark's replies by protocol."""
    if endpoint.gpus is not None:
        return endpoint.run_on_gpus(main, locals(), judge or [endpoint.model or ""], summary)
    # AlignMMBench's answers name no benchmark, but come with its questions.
    named = benchmark or (None if mapped else benchmark_of(responses, questions))
    benchmark = named or ("alignmmbench" if questions else None)
    run = endpoint.run_options(out, certificate)
    if not (judge or endpoint.base_url):
        endpoint = replace(endpoint, base_url=DEFAULT_URL)
    root = endpoint.data_root or root_of(responses, questions)
    protocols = options.chosen("protocol", protocol or [], PROTOCOLS)
    base = _base_setup(benchmark, published, protocols)
    if base.reason_first and prompt == "pointwise":
        prompt = EVERY_REASON_FIRST
    steps = prompt == EVERY_REASON_FIRST
    form, most = f"pointwise{REASON_FIRST}" if steps else prompt, TOKENS_OF_STEPS if steps else TOKENS
    decoding = _decoding(form, no_reason, panel := len(judge or []) > 1, temperature)
    check((panel or aggregate == "mean", f"--aggregate {aggregate} makes one score of those of several --judge"))
    if benchmark is None:
        flags = {"as published": published, "reference-free": reference_free, "seed": seed}
        _refuse("without --benchmark", protocol=protocol, against=against, battles=battles, judging=judging, **flags)
        _refuse("without --benchmark", order=order, **{"on-unparsed": on_unparsed, "turn-context": turn_context})
        backends = endpoint.open("--judge", judge)
        own = human_scored.OwnColumns.parse(mapped, scale, lang)
        rows = _responses(
            responses, form, run, lambda: images is not None or all(backend.sees() for backend in backends), own
        )
        shown = endpoint.shown(images, root, backends, rows.images)
        # They need log probabilities where the score is named, or was measured by them.
        needs = f"--score {score}" if score else str(certificate) if certificate else None
        judges = []
        asked = [form, *(["answer"] if form_of(form).first else [])]
        for backend in backends:
            unlearned = options.not_learned(backend, asked, "prompt", force_form)
            own_name = backend.served.name if panel or name is None else name
            how = score or "expected", max_tokens or most, decoding, shown, needs
            judges.append(ResponseJudge(backend, own_name, form, *how))
            judges[-1].setup = replace(judges[-1].setup, unlearned=unlearned)
        return judge_responses(run, judges, rows, source(responses), aggregate, name)
    _refuse("with --benchmark", several=panel, map=mapped, scale=scale, lang=lang)
    judgings = options.chosen("judging", judging or ["standard"], get_args(records.Ablation))
    (backend,) = endpoint.open("--judge", judge)
    setup = replace(
        base,
        judge=name or backend.served.name,
        score_kind=score or "argmax",
        order=order or base.order,
        seed=seed,
        battles=battles,
        reference_backed=not reference_free,
        pointwise_prompt=form,
        decoding=decoding,
        unread=on_unparsed or base.unread,
        sight=turn_context or base.sight,
        reason_first=steps,
    )
    draws = setup.order != "both" or battles in ("random", "newcomer")
    check((draws or not seed, f"--seed {seed}: nothing is drawn but by --order random or forced, --battles random"))
    judge_of = Judge(backend, setup, max_tokens or most, endpoint.shown(images, root, [backend]))
    how_judged = against or [], protocols, judgings, force_form
    return judge_conversations(run, judge_of, responses, benchmark, questions, *how_judged)
