"""critic judge: responses -> judgments, by one judge or a panel.

critic judge test.jsonl --out judged.jsonl --base-url http://127.0.0.1:8000/v1
critic judge test.jsonl --out judged.jsonl --judge runs/demo/judge --judge http://127.0.0.1:8000/v1#gpt-4
critic judge replies.jsonl --benchmark convbench --out judged.jsonl     # what critic infer wrote, by protocol
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import typer
from msgspec.structs import replace

from critic import human_scored
from critic.asking.forms import (
    FORMS,
    REASON_FIRST,
    AnswerKind,
    CriteriaKind,
    RatingKind,
    form_of,
    inquiry,
    prompt_name,
)
from critic.asking.judge import Judge, ResponseJudge
from critic.asking.packs import open_pack
from critic.asking.prompt import has
from critic.asking.rating import Aggregation, ScoreKind
from critic.asking.render import Material
from critic.asking.replies import benchmark_of
from critic.asking.tokens import REASON
from critic.backends import ATTEMPTS, TIMEOUT, Backend
from critic.benchmarks import BENCHMARKS, alignmmbench
from critic.errors import UsageError, whole
from critic.images import MAX_BYTES, Images
from critic.records import GREEDY, Battles, Decoding, Judging, Order, Protocol, Response, Setup, Sight, Unread
from critic.stages import options
from critic.stages.judge_conversations import judge_conversations
from critic.stages.judge_responses import FormResponses, judge_responses
from critic.stages.options import Endpoint, ShownImages, check, root_of, spend
from critic.stages.run import RunOptions, Shard, check_plain, source

DEFAULT_URL = "http://127.0.0.1:8000/v1"

EVERY_REASON_FIRST = "reason_first"

TOKENS, TOKENS_OF_STEPS = 256, 1024
"""The most tokens of a verdict, and of one behind a reason of many steps: twice what LONGEST_STEPS comes to."""


def _responses(
    path: Path,
    questions: Path | None,
    system: str | None,
    form: str,
    criteria: Path | None,
    run: RunOptions,
    tell: Callable[[], bool],
) -> FormResponses:
    """What is judged; `tell`: a picture tells what is right where there is no reference."""
    if criteria is not None and not isinstance(form_of(form).kind, CriteriaKind):
        raise UsageError(f"--criteria is one of --prompt criteria, got --prompt {form}")
    given = {} if criteria is None else _criteria(criteria)
    fixed = None
    if questions is not None:
        asked = alignmmbench.read_questions(questions)
        fixed = alignmmbench.read_responses(path, asked, system)
        if missing := len(asked) - len(fixed):
            which = f"{missing} of {len(asked)} questions of {questions}"
            print(f"{which} have no answer and are not judged", file=sys.stderr)

    def read(left_out: Counter[str]) -> Iterator[Response]:
        for one in fixed or (one for _, _, one in human_scored.walk(path, left_out, pictures=True, scored=False)):
            if fixed is None and not one.question.reference and not tell():
                left_out[human_scored.UNUSABLE_FLAGS["no_reference"]] += 1
                continue
            lacks = given and not one.question.criteria  # a row's own come first
            yield replace(one, question=replace(one.question, criteria=given)) if lacks else one

    return FormResponses(read, path, form, run, replies=fixed is not None)


def _criteria(path: Path) -> dict[str, str]:
    """Criteria out of a TOML file, name = "what it means". Raises UsageError for anything else."""
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, ValueError) as error:
        raise UsageError(f'--criteria {path}: expected lines of the form name = "what it means": {error}') from None
    if not found:
        raise UsageError(f"--criteria {path}: names no criterion")
    human_scored.check_criteria(found, f"--criteria {path}")
    return found


def _prompt(prompt: str, folder: Path | None, benchmark: str | None) -> tuple[str, str | None, int]:
    """The pointwise prompt's name, with that of the pack in front where it comes from one, the pack's name, and the
    most tokens of a verdict."""
    tokens = TOKENS_OF_STEPS if prompt == EVERY_REASON_FIRST or folder is not None else TOKENS
    prompt = f"pointwise{REASON_FIRST}" if prompt == EVERY_REASON_FIRST else prompt
    if folder is None:
        return prompt, None, tokens
    pack = open_pack(folder)
    if any(has(pack, prompt_name(name)) for name in (prompt, form_of(prompt).first) if name):
        return f"{pack}/{prompt}", pack, tokens
    if benchmark is None:
        raise UsageError(f"--prompt-pack {folder} says nothing of the prompt {prompt}")
    return prompt, pack, tokens


def _decoding(
    prompt: str, samples: int, temperature: float | None, seed: int, no_reason: bool, panel: bool
) -> Decoding:
    form = form_of(prompt)
    rates = isinstance(form.kind, RatingKind | CriteriaKind)
    asks_verdict = not isinstance(form.kind, AnswerKind)
    reason_first = no_reason and inquiry(prompt, "en", Material()).keys()[:1] == (REASON,)
    drawn = temperature if temperature is not None else float(samples > 1)
    check(
        (asks_verdict, f"--prompt {prompt}: asks for an answer, not for a verdict; commit_first asks it first"),
        (rates or (samples == 1 and not drawn), "--samples and --temperature draw ratings, not choices"),
        (rates or not panel, f"several --judge make a panel of ratings, and --prompt {prompt} does not rate"),
        (samples == 1 or drawn, "--samples draws verdicts, and at --temperature 0 they are all the same"),
        (
            not no_reason or samples == 1,
            "--no-reason reads the rating's distribution at once; --samples adds nothing to it",
        ),
        (not reason_first, f"--no-reason: prompt {prompt!r} has the reason before the rating"),
    )
    made = Decoding(reason=not no_reason, samples=samples, temperature=drawn, seed=seed if drawn else 0)
    return GREEDY if made == GREEDY else made  # the very object is what records leave out


def _judges(
    backends: list[Backend],
    name: str | None,
    form: str,
    score: ScoreKind | None,
    max_tokens: int,
    decoding: Decoding,
    images: Images | None,
    measured: Path | str | None = None,
) -> list[ResponseJudge]:
    """Judges of single responses; warns of each that was trained in other forms than it is asked in. They need log
    probabilities where the score is named, or judgments were `measured` (--cascade, --certificate)."""
    for each in backends:
        options.say_untrained(each, [form], "prompt")
    needs = f"--score {score}" if score else None if measured is None else str(measured)
    how = form, score or "expected", max_tokens, decoding, images, needs
    return [ResponseJudge(one, name or one.served.name, *how) for one in backends]


def _of_conversations(given: Mapping[str, Any]) -> dict[str, object]:
    """Of the options given those of conversations, empty where they say what they say anyway."""
    usual = {"order": "both", "unread": "fail", "sight": "before"}
    names = ("protocol", "against", "judging", "reference_free", "no_extraction", "strict", "battles", *usual)
    return {name: given[name] if given[name] != usual.get(name) else None for name in names}


def _refuse(where: str, **given: object) -> None:
    """Raises UsageError for options that do not go together."""
    for option, value in given.items():
        spelt = "several --judge" if option == "several" else f"--{option.replace('_', '-')}"
        check((not value, f"{spelt} cannot be used {where}"))


def _chosen(protocols: list[str], judgings: list[str]) -> tuple[list[Protocol], list[Judging]]:
    return (
        options.chosen("protocol", protocols, get_args(Protocol)),
        options.chosen("judging", judgings, get_args(Judging)),
    )


JudgeNames = Annotated[
    list[str] | None,
    typer.Option(
        help="A checkpoint folder (vLLM in this process), a server's URL or URL#MODEL, or a JSONL file of "
        f"scripted replies. {options.SERVERS} (URL,URL#MODEL). Several --judge make a panel.",
        show_default="the server at --base-url",
    ),
]
JudgeName = Annotated[
    str | None,
    typer.Option(parser=whole, metavar="TEXT", help="The judge's name in the records.", show_default="the model's"),
]
JudgeUrl = Annotated[
    str | None,
    typer.Option(help="An OpenAI-compatible server, such as serve/judge.py starts.", show_default=DEFAULT_URL),
]
QuestionsFile = Annotated[
    Path | None,
    typer.Option(
        help="AlignMMBench questions; RESPONSES then holds question_id/predict lines. With --benchmark its file, "
        "which the replies are checked against, and which a table of replies needs."
    ),
]
BenchmarkName = Annotated[
    str | None,
    typer.Option(
        help="RESPONSES are replies to a benchmark's conversations, by critic infer or another program "
        f"(critic/asking/replies.py): {', '.join(BENCHMARKS)}.",
        show_default="what critic infer's file says",
    ),
]
Protocols = Annotated[
    list[str] | None,
    typer.Option(
        help=f"How conversations are judged: {', '.join(get_args(Protocol))}; several are judged together.",
        show_default="the benchmark's own",
    ),
]
Against = Annotated[
    list[Path] | None,
    typer.Option(help="Another model's replies: pairwise against them, or several.", show_default="the reference"),
]
ReferenceFree = Annotated[
    bool, typer.Option("--reference-free", help="Compare two models without showing the reference.")
]
OrderOfTwo = Annotated[
    Order,
    typer.Option(
        help="Two answers: both orders (verdicts that differ are a tie), random, or forced (random, no ties)."
    ),
]
Judgings = Annotated[
    list[str] | None,
    typer.Option(
        help="ConvBench's ablations beside the usual judging: no_focus, no_turn_verdicts.", show_default="standard"
    ),
]
NoExtraction = Annotated[
    bool, typer.Option("--no-extraction", help="Do not ask again for a verdict that cannot be read.")
]
StrictWholes = Annotated[
    bool, typer.Option("--strict", help="A whole conversation fails where the judgment of one of its turns did.")
]
OtherTurns = Annotated[
    Sight, typer.Option(help="Turns of direct and pairwise are judged in sight of those before them, or of all.")
]
UnreadPairs = Annotated[
    Unread,
    typer.Option(
        help="A comparison in which no verdict can be read, even when asked again: fail, or a tie (VisIT-Bench)."
    ),
]
SystemName = Annotated[
    str | None,
    typer.Option(
        parser=whole, metavar="TEXT", help="Name of the model that gave the responses.", show_default="the file's stem"
    ),
]
PromptName = Annotated[
    str,
    typer.Option(
        help="The form in which the judge is asked, and its prompt (critic/prompts/): "
        + ", ".join(name for name, form in FORMS.items() if not isinstance(form.kind, AnswerKind))
        + f"; {EVERY_REASON_FIRST}: every protocol's form with the reason before the verdict."
    ),
]
PromptPack = Annotated[
    Path | None,
    typer.Option(help="A folder of prompt files that stand in for ours.", show_default="our prompts"),
]
ScoreOf = Annotated[
    ScoreKind | None,
    typer.Option(
        help="What of the rating distribution counts as the score. Of answers that one judge has rated already "
        "another one is taken without asking anew.",
        show_default="expected; argmax with --benchmark, whose ratings are whole numbers",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        min=8,
        help="The most tokens of a verdict.",
        show_default=f"{TOKENS}; {TOKENS_OF_STEPS} by reason_first and with a prompt pack",
    ),
]
DrawnAt = Annotated[float | None, typer.Option(min=0, help="Sampling temperature.", show_default="0, with --samples 1")]
NoReason = Annotated[
    bool, typer.Option("--no-reason", help="Ask for the rating alone: the same scores, several times as fast.")
]
CheckRepeat = Annotated[
    int, typer.Option(min=0, help="Judge this many again in another order and say how many ratings changed.")
]
CriteriaFile = Annotated[
    Path | None,
    typer.Option(help='With --prompt criteria: a TOML file, name = "what it means".', show_default="the rows' own"),
]

ResponsesFile = Annotated[
    Path,
    typer.Argument(
        help="Human-scored rows (JSONL, CSV, Parquet, .gz, .zst, a folder), or replies to a benchmark (--benchmark), "
        "a benchmark's responses with --questions."
    ),
]
BattlePlan = Annotated[
    Battles | None,
    typer.Option(
        help="The models of RESPONSES and of each --against all meet: every two in each conversation, or each with a "
        "random opponent (--seed).",
        show_default="RESPONSES meet each --against",
    ),
]
CascadeOf = Annotated[
    str | None,
    typer.Option(
        help="Of two --judge the second only where the first is unsure. FILE or FILE:POINTS: rows that people scored, "
        "judged by both as a panel, and the mean absolute error that sparing the second may cost (0.05)."
    ),
]
CertificateFile = Annotated[
    Path | None,
    typer.Option(help="What critic audit found of this judge: say it, and refuse to judge where it holds no more."),
]


def main(
    responses: ResponsesFile,
    out: Annotated[Path, typer.Option(help="Where judgments go (.jsonl). Run again to resume.", callback=check_plain)],
    vllm_options: options.VllmOptions = None,
    judge: JudgeNames = None,
    base_url: JudgeUrl = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for.", show_default="the server's first")] = None,
    name: JudgeName = None,
    aggregate: Annotated[Aggregation, typer.Option(help="How a panel's scores become one.")] = "mean",
    questions: QuestionsFile = None,
    benchmark: BenchmarkName = None,
    protocol: Protocols = None,
    against: Against = None,
    battles: BattlePlan = None,
    reference_free: ReferenceFree = False,
    order: OrderOfTwo = "both",
    judging: Judgings = None,
    no_extraction: NoExtraction = False,
    unread: UnreadPairs = "fail",
    strict: StrictWholes = False,
    sight: OtherTurns = "before",
    system: SystemName = None,
    prompt: PromptName = "pointwise",
    prompt_pack: PromptPack = None,
    score: ScoreOf = None,
    no_reason: NoReason = False,
    samples: Annotated[int, typer.Option(min=1, help="Verdicts drawn for each response, pooled.")] = 1,
    temperature: DrawnAt = None,
    seed: options.Seed = 0,
    concurrency: Annotated[int | None, options.concurrency("Responses judged at once.")] = None,
    max_tokens: MaxTokens = None,
    max_failed: options.MaxFailed = options.MAX_FAILED,
    retry_failed: Annotated[bool, options.retry_failed("Judge again what failed in an earlier run.")] = False,
    check_repeat: CheckRepeat = 0,
    criteria: CriteriaFile = None,
    images: options.ShowImages = None,
    data_root: options.DataRoot = None,
    max_image_pixels: options.MaxImagePixels = None,
    max_image_bytes: options.MaxImageBytes = MAX_BYTES,
    certificate: CertificateFile = None,
    shard: options.ShardOf = None,
    cache: options.CacheOf = None,
    budget: options.BudgetOf = None,
    cascade: CascadeOf = None,
    engine: options.Engine = None,
    ray_address: options.RayAddress = None,
    replicas: options.Replicas = 1,
    attempts: options.Attempts = ATTEMPTS,
    timeout: options.Timeout = TIMEOUT,
    api_key: options.ApiKey = None,
) -> int:
    """Score responses with a judge or a panel of several; conversations by protocol (--benchmark), by one judge."""
    benchmark = benchmark or benchmark_of(responses, questions)
    run = RunOptions(
        out=out,
        concurrency=concurrency,
        max_failed=max_failed,
        retry_failed=retry_failed,
        certificate=certificate,
        shard=Shard.read(shard),
        rescores=score is not None,
    )
    endpoint = Endpoint(
        model=model,
        cache=cache,
        api_key=api_key,
        concurrency=concurrency,
        attempts=attempts,
        engine=engine,
        vllm_options=vllm_options,
        timeout=timeout,
        fresh=retry_failed,
        budget=spend(budget),
        base_url=base_url or (None if judge else DEFAULT_URL),
        ray_address=ray_address,
        replicas=replicas,
    )
    see = ShownImages(images, data_root or root_of(responses, questions), max_image_pixels, max_image_bytes)
    form, pack, most = _prompt(prompt, prompt_pack, benchmark)
    decoding = _decoding(form, samples, temperature, seed, no_reason, panel := len(judge or []) > 1)
    if benchmark is None:
        _refuse("without --benchmark", **_of_conversations(locals()))
        backends = endpoint.open("--judge", judge)
        rows = _responses(responses, questions, system, form, criteria, run, lambda: see.tell(backends))
        how = form, score, max_tokens or most, decoding, see.shown(backends, rows.pictured), cascade or certificate
        judges = _judges(backends, None if panel else name, *how)
        return judge_responses(run, judges, rows, source(responses), check_repeat, aggregate, name, cascade)
    _refuse("with --benchmark", criteria=criteria, check_repeat=check_repeat > 0, cascade=cascade, several=panel)
    chosen = _chosen(protocol or [], judging or ["standard"])
    (backend,) = endpoint.open("--judge", judge)
    setup = Setup(
        judge=name or backend.served.name,
        score_kind=score or "argmax",
        order=order,
        battles=battles,
        seed=seed if order != "both" or battles == "random" else 0,
        extraction=not no_extraction,
        reference_backed=not reference_free,
        pointwise_prompt=form,
        decoding=decoding,
        pack=pack,
        unread=unread,
        texts=True,
        strict=strict,
        sight=sight,
        reason_first=prompt == EVERY_REASON_FIRST,
    )
    asked = Judge(backend, setup, max_tokens or most, see.shown([backend]))
    return judge_conversations(run, asked, responses, benchmark, questions, against or [], system, *chosen)
