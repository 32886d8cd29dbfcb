"""Options that several stages share: the data, the model or judge, and how its replies or verdicts are requested."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from msgspec import Struct, toml
from msgspec.structs import replace

from critic import jsonl, records
from critic.backends import ATTEMPTS, CONNECTIONS, TIMEOUT, Backend, ModelInfo
from critic.backends.address import normalize_url, redact_url
from critic.backends.middleware import Budget, Cached, Metered, walk_layers
from critic.backends.scripted import from_file
from critic.backends.vllm import VllmBackend, count_gpus
from critic.certificate import read_map
from critic.cli import RARELY_NEEDED, takes_options
from critic.errors import UsageError, located, notify, replace_surrogates
from critic.images import MAX_BYTES, Images
from critic.judging.distribution import Aggregation, ScoreKind
from critic.judging.forms import FORMS, ONE_SIDE, REASON_FIRST, can_give, form_of, inquiry
from critic.judging.history import CONDITIONS
from critic.judging.protocols import PROTOCOLS
from critic.judging.targets import REASON
from critic.stages.run import RunOptions, Shard
from critic.stages.totals import Price, read_by_model

NAMES = toml.decode(Path(__file__).with_name("options.toml").read_bytes(), type=dict[str, tuple[str, ...]])
"""Named lists of options and of sidecar facts, from `options.toml`, whose comments explain each list."""

ABLATIONS = get_args(records.Ablation)
"""Values of --judging."""

MAX_FAILED = 0.02
"""Default share of failures above which a stage exits with code 3."""

EVERY_REASON_FIRST = "reason_first"
"""Value of --prompt that selects, in every protocol, the form with the reason before the verdict."""

TOKENS, TOKENS_OF_STEPS = 256, 1024
"""Default token limits of a verdict, and of a verdict after a reason in several steps (about 500 tokens)."""

data, endpoint, verdicts, limits, cluster, rare = (
    partial(typer.Option, rich_help_panel=title)
    for title in ("Data", "Endpoint", "The form of a verdict", "Limits", "Several machines", RARELY_NEEDED)
)
"""Functions that declare an option, one for each group of --help."""

takes_one_model, takes_common = (partial(takes_options, names=NAMES[name]) for name in ("one_model", "common"))
"""Decorators of commands that offer only some options of their Structs, as `options.toml` names them."""

MaxFailed = Annotated[float, limits(min=0, max=1, help="Exit with 3 if a larger share fails.")]
Temperature = Annotated[float, typer.Option(min=0, help="Sampling temperature.")]
Published = Annotated[Literal["published"] | None, data("--as")]
Mapped = Annotated[
    list[str] | None, data("--map", metavar="COLUMN=FIELD", help="Read a column as a field: answer=response.")
]
OwnScale = Annotated[str | None, data("--scale", metavar="LOW:HIGH", help="Scale of people's scores.")]
OwnLanguage = Annotated[records.Language | None, data("--lang", help="Language of all rows.")]


def root_of(rows: Path, questions: Path | None = None) -> Path:
    """Return the default folder of images: the folder that holds `questions` or, if that is None, `rows`.

    If `questions` is None and the sidecar of `rows` names an image folder that exists, return that folder.
    """
    # A name that is no UTF-8 is in the sidecar as bytes in disguise (PEP 383).
    recorded = jsonl.restore_places(rows).get("data_root") if questions is None else None
    root = Path(os.fsdecode(recorded.encode())) if isinstance(recorded, str) else None
    return root if root is not None and root.is_dir() else (questions or rows).parent


def parse_budget(words: str) -> Budget:
    """Parse the value of --budget, such as 2000000tokens. Raises UsageError for any other text.

    >>> parse_budget("2000000tokens").limit
    2000000
    """
    number = words.removesuffix("tokens")
    if not number.isdecimal() or number == words:
        raise UsageError(f"--budget {words}: expected a number of tokens: 2000000tokens")
    return Budget(limit=int(number))


def check(*rules: tuple[object, str]) -> None:
    """Raise UsageError with the message of the first rule, a pair (condition, message), whose condition is false."""
    for holds, problem in rules:
        if not holds:
            raise UsageError(problem)


def puts_reason_first(form: str) -> bool:
    """Return True if the judge writes its reason before the verdict in a form.

    >>> puts_reason_first("pointwise"), puts_reason_first("pointwise_reason_first")
    (False, True)
    """
    return form_of(form).steps or inquiry(form, "en", records.PromptInputs()).keys()[:1] == (REASON,)


def is_impossible(judge: ModelInfo, form: str) -> bool:
    """Return True if a judge is a scoring head that cannot produce the verdict of a form."""
    return judge.is_classifier and not can_give(judge.about, form)


def list_unlearned(judge: ModelInfo, forms: Iterable[str]) -> list[str]:
    """Return the forms that a judge was not trained on, or cannot produce as a scoring head.

    If a form needs the judge's own answer first, the form for that answer is checked as well. A judge that does not
    state its forms counts as trained on all.
    """
    every = [name for form in forms for name in (form, form_of(form).first) if name]
    return [form for form in every if is_impossible(judge, form) or (judge.forms and form not in judge.forms)]


def force_unlearned(judge: Backend, forms: Iterable[str], option: str, forced: bool, instead: str) -> str:
    """Return the forms in use that a judge was not trained on, comma-separated; "" if there are none.

    `forms`: the forms in use. `option`: the option that selects them, for messages.
    `forced`: True if the user allows such forms.
    `instead`: what the judge can do, for messages.

    Raises UsageError for such forms unless `forced`, and in any case for forms that a scoring head cannot produce.
    """
    served, unlearned = judge.served, list_unlearned(judge.served, forms)
    for form in unlearned:
        # Nothing can force a head: it writes no verdict of another kind.
        if is_impossible(served, form):
            pairs = f"compares two answers ({', '.join(ONE_SIDE)})"
            gives = "gives one rating on 1..10" if served.tie_band is None else pairs
            raise UsageError(f"--{option} {form}: {served.name} is a scoring head, which {gives}; {instead}")
    if unlearned and not forced:
        problem = f"{judge.endpoint} learned {', '.join(served.forms)}, and not {', '.join(unlearned)} (--{option})"
        raise UsageError(f"{problem}; {instead}, or all the same with --force-form")
    return ", ".join(unlearned)


def choose(option: str, values: Iterable[str], choices: Collection[str]) -> list[Any]:
    """Return the values of an option without duplicates. Raises UsageError for a value that is not in `choices`.

    >>> choose("protocol", ["direct", "direct"], ["direct", "pairwise"])
    ['direct']
    """
    for value in values:
        if value not in choices:
            raise UsageError(f"--{option} {value}: unknown; choose {', '.join(choices)}")
    return list(dict.fromkeys(values))


def urls(where: str) -> list[str]:
    """Return the server URLs in `where`: "URL,URL", or "@FILE" with one URL per line.

    Blank lines and lines that begin with # are skipped. URLs that differ only in their credentials are duplicates.
    Raises UsageError if there is no URL.

    >>> urls("http://a:1/v1,http://b:1/v1")
    ['http://a:1/v1', 'http://b:1/v1']
    >>> urls("http://a:1@h/v1?key=1&n=2,http://b/v1,http://h/v1?n=2, http://b")
    ['http://a:1@h/v1?key=1&n=2', 'http://b/v1']
    """
    with located(f"{where}: no file of servers", OSError, UnicodeDecodeError):
        words = Path(where[1:]).read_text("utf-8").split("\n") if where.startswith("@") else where.split(",")
    named = [normalize_url(word.strip()) for word in words if word.strip() and not word.strip().startswith("#")]
    check((named, f"{where}: names no server"))
    servers = dict[str, str]()
    for url in named:
        servers.setdefault(redact_url(url), url)
    return list(servers.values())


class ModelOptions(Struct, frozen=True, kw_only=True):
    """Options of `critic infer` for prompting a model under test; `critic run` has some of them, too.

    - name: The model's name in the records.
    - published: Use the paper's conditions, protocols and judge settings.
    - max_tokens: Longest reply, in tokens.
    - seed: Seed for sampling.
    - limit: Run only the first N conversations.
    """

    name: Annotated[str | None, typer.Option(parser=replace_surrogates, metavar="TEXT", show_default="its own")] = None
    condition: Annotated[
        list[str] | None,
        typer.Option(
            help="What the model sees of the conversation; repeat for several. "
            + "; ".join(f"{name}: {condition.help}" for name, condition in CONDITIONS.items()),
            show_default="the paper's usual one: own, MultiVerse's oracle",
        ),
    ] = None
    published: Published = None
    max_tokens: Annotated[int, limits(min=1)] = 1024
    temperature: Temperature = 0.0
    seed: int = 0
    limit: Annotated[int | None, typer.Option(min=1)] = None


class JudgeOptions(Struct, frozen=True, kw_only=True):
    """Options of `critic judge` for judging; `critic run` has some of them, too.

    - against: Other replies to compare.
    - aggregate: Score of a panel: mean or median.
    - certificate: Certificate of an audit; refuse any other judge.
    - judge: FOLDER (vLLM in this process), URL, URL#MODEL, @FILE of URLs, replies.jsonl; several: a panel.
    - judge_name: Name of the judge.
    - images: Show images to the judge, or not.
    - prompt_pack: Ask in another program's prompts, as its .toml files say.
    - published: Use the paper's conditions, protocols and judge settings.
    - score: Rating: expected, median or argmax.
    - no_reason: Ask for the rating only: much faster.
    - force_form: Ask in a form that the judge did not learn.
    - temperature: Sampling temperature; each row has its own seed.
    - recalibrate: Map ratings to people's scale, by the map of this certificate.
    - repeat: Ask for each verdict K times; the first counts.
    - seed: Seed for random orders and battles.
    - battles: Which of several models are compared.
    - reference_free: Compare models without a reference.
    - order: Order in which two answers are shown.
    - extract: Ask once more which verdict an unreadable reply comes to (direct, pairwise).
    - on_unparsed: Result of an unreadable comparison.
    - turn_context: Turns shown beside the judged one.
    - max_tokens: Longest reply, in tokens.
    """

    against: Annotated[list[Path] | None, data(metavar="FILE", show_default="the reference")] = None
    mapped: Mapped = None
    scale: OwnScale = None
    lang: OwnLanguage = None
    aggregate: Annotated[Aggregation, endpoint(metavar="HOW")] = "mean"
    certificate: Annotated[Path | None, endpoint(metavar="FILE")] = None
    judge: Annotated[list[str] | None, endpoint(metavar="JUDGE")] = None
    judge_name: Annotated[
        str | None, endpoint("--name", parser=replace_surrogates, metavar="NAME", show_default="the model's")
    ] = None
    images: Annotated[records.Showing | None, data(show_default="show, if it can")] = None
    prompt: Annotated[
        str | None,
        verdicts(metavar="FORM", help=f"{', '.join([*FORMS, EVERY_REASON_FIRST])}.", show_default="what it learned"),
    ] = None
    prompt_pack: Annotated[Path | None, verdicts(metavar="FOLDER")] = None
    published: Published = None
    protocol: Annotated[list[str] | None, verdicts(metavar="NAME", help=f"{', '.join(PROTOCOLS)}.")] = None
    score: Annotated[ScoreKind | None, verdicts(metavar="WHICH", show_default="argmax with --benchmark")] = None
    no_reason: Annotated[bool, verdicts("--no-reason")] = False
    force_form: Annotated[bool, verdicts("--force-form")] = False
    temperature: Annotated[float, rare(min=0)] = 0.0
    recalibrate: Annotated[Path | None, verdicts(metavar="FILE")] = None
    repeat: Annotated[int, verdicts(min=1, metavar="K")] = 1
    seed: Annotated[int, rare()] = 0
    battles: Annotated[records.Pairing | None, rare()] = None
    reference_free: Annotated[bool, rare("--reference-free")] = False
    order: Annotated[records.Order | None, rare()] = None
    judging: Annotated[list[str] | None, rare(help=f"Ablations of ConvBench's judge: {', '.join(ABLATIONS)}.")] = None
    extract: Annotated[bool, rare("--extract")] = False
    on_unparsed: Annotated[records.OnUnparsed | None, rare()] = None
    turn_context: Annotated[records.TurnContext | None, rare()] = None
    max_tokens: Annotated[int | None, limits(min=8, show_default=f"{TOKENS}; steps: {TOKENS_OF_STEPS}")] = None

    @property
    def answer_form(self) -> str:
        """The form for judging single answers: the one in --prompt, or the default."""
        return f"pointwise{REASON_FIRST}" if self.prompt == EVERY_REASON_FIRST else self.prompt or "pointwise"

    def decoding(self, forms: Iterable[str]) -> records.SamplingParams:
        """Return how verdicts in these forms are sampled.

        Raises UsageError if a form does not ask for a verdict, or if --no-reason is set and a form puts the reason
        first.
        """
        for name in forms:
            if not form_of(name).kind.is_verdict:
                raise UsageError(f"--prompt {name}: asks for an answer, not for a verdict; commit_first asks it first")
            if self.no_reason and puts_reason_first(name):
                raise UsageError(f"--no-reason: form {name!r} has the reason before the verdict")
        # Records leave out the default, which is recognized as an object.
        if not self.no_reason and not self.temperature:
            return records.GREEDY
        return records.SamplingParams(reason=not self.no_reason, temperature=self.temperature)


class Endpoint(Struct, frozen=True, kw_only=True):
    """Options for where replies come from and how they are requested, for every stage that asks a model
    (`takes_options`).

    `model` is the model to select on a server, unless the URL names one.

    - vllm_options: Options of vLLM in this process.
    - model: Model name on the server, or a checkpoint folder.
    - base_url: OpenAI-compatible server: URL, URL#MODEL; several as URL,URL or @FILE.
    - api_key: Key of the server.
    - data_root: Folder of images.
    - frames: Frames that show a video.
    - concurrency: Requests at a time.
    - retry_failed: Ask again for records that failed.
    - cache: SQLite file that caches replies.
    - budget: Stop after this many tokens: 2000000tokens.
    - prices: Prices as for critic score: print the cost.
    - max_image_pixels: Shrink larger images to this many pixels.
    - max_image_bytes: Refuse larger image files.
    - attempts: Tries of a request before it counts as failed.
    - timeout: Time limit of a try, in seconds.
    - shard: Do part K of N; critic merge joins the parts.
    - gpus: Run one engine on each of N GPUs, or on all.
    - engine: Run the model in actors of a Ray cluster.
    - ray_address: Address, or auto.  [RAY_ADDRESS]
    - replicas: Number of actors, each with its own GPUs.
    """

    vllm_options: Annotated[list[str] | None, typer.Argument(metavar="-- VLLM")] = None
    model: Annotated[str | None, endpoint(metavar="NAME", show_default="its first")] = None
    base_url: Annotated[str | None, endpoint(metavar="URL")] = None
    api_key: Annotated[str | None, endpoint(metavar="KEY", envvar="OPENAI_API_KEY")] = None
    data_root: Annotated[Path | None, data(metavar="FOLDER", show_default="the file's folder")] = None
    frames: Annotated[int, data(min=1, metavar="N")] = records.FRAMES
    concurrency: Annotated[int | None, limits(min=1, show_default=f"{CONNECTIONS}; in here the engine's own")] = None
    max_failed: MaxFailed = MAX_FAILED
    retry_failed: Annotated[bool, limits("--retry-failed")] = False
    cache: Annotated[Path | None, limits(metavar="FILE")] = None
    budget: Annotated[str | None, limits(metavar="N")] = None
    prices: Annotated[Path | None, limits(metavar="FILE")] = None
    max_image_pixels: Annotated[int | None, rare(min=1)] = None
    max_image_bytes: Annotated[int, rare(min=1)] = MAX_BYTES
    attempts: Annotated[int, rare(min=1)] = ATTEMPTS
    timeout: Annotated[float, rare(min=0.1)] = TIMEOUT
    shard: Annotated[str | None, cluster(metavar="K/N")] = None
    gpus: Annotated[str | None, cluster(metavar="N")] = None
    engine: Annotated[Literal["ray"] | None, cluster()] = None
    ray_address: Annotated[str | None, cluster(metavar="HOST:PORT")] = None
    replicas: Annotated[int, cluster(min=1)] = 1

    def run_options(self, out: Path, certificate: Path | None = None, recalibrate: Path | None = None) -> RunOptions:
        """Return the options for running a stage that writes `out`.

        `certificate`: certificate of the only judge that is accepted, or None.
        `recalibrate`: certificate with the map to apply to ratings, or None; it also replaces a missing `certificate`.

        Raises UsageError for an invalid --shard, if `recalibrate` has no map, or for unusable --prices.
        """
        return RunOptions(
            out=out,
            concurrency=self.concurrency,
            max_failed=self.max_failed,
            retry_failed=self.retry_failed,
            # A map is one judge's: only the judge of its certificate is accepted.
            certificate=certificate or recalibrate,
            recalibration=read_map(recalibrate) if recalibrate else None,
            shard=Shard.read(self.shard),
            prices=read_by_model("--prices", self.prices, Price),
        )

    def images(self, root: Path, names: Sequence[str], uris: Mapping[str, str] | None = None) -> Images:
        """Return a loader for the images under `root`, with the size limits of the options.

        `names` are checked for missing files. `uris` maps names of further images to data URIs. Raises UsageError if
        all files are missing.
        """
        pixels, size = self.max_image_pixels, self.max_image_bytes
        images = Images(root, max_bytes=size, resize_to=pixels, uris=uris, frames=self.frames)
        images.require(names)
        return images

    def shown(
        self, how: JudgeOptions, root: Path, judges: Sequence[Backend], names: Sequence[str] | None = None
    ) -> Images | None:
        """Return a loader for the images that judges see, or None if they see none.

        `how`: the options for judging. Without --images, images are shown if all judges are known to accept them. As in
        the papers (`how.published`), they are also shown to a judge that does not say.
        `root`: folder of the images.
        `judges`: the judges; if one sees no images, none does.
        `names`: names of the images, which are checked for missing files; None if they are not known yet.

        Raises UsageError if --images show is given but there are none or a judge accepts none, or if all files are
        missing.
        """
        wanted = how.images
        check((wanted != "show" or names != [], "--images show: there are no images"))
        if names == [] or wanted == "blind":
            return None
        # A panel is shown the same: one blind member makes all of it blind.
        for judge in judges:
            name, sees = judge.served.name, judge.sees()
            check((sees is not False or wanted is None, f"--images show: {name} takes no images"))
            if wanted is None and sees is None:
                sees = how.published is not None
                choice = "shown images, as in the paper; --images blind" if sees else "asked blind; --images show"
                notify(f"{name} does not say whether it sees: it is {choice}")
            # Images that are sent to a judge that cannot see would fail every request.
            if wanted is None and not sees:
                return None
        return self.images(root, names or ())

    def connect(self, where: str) -> Backend:
        """Return a backend for the server at the URL `where`, or a pool for several URLs.

        It uses the model behind a # in `where`, or else `model`, or else the server's first. Raises UsageError if a
        server lacks the model.
        """
        from critic.backends.openai import OpenAIBackend  # noqa: PLC0415 - as above
        from critic.backends.pool import Pool  # noqa: PLC0415 - as above

        check((self.engine is None, f"--engine {self.engine} runs a checkpoint folder itself: give no URL ({where})"))
        connections = self.concurrency or CONNECTIONS
        where, _, named = where.partition("#")

        def server(url: str, attempts: int = 1) -> OpenAIBackend:
            backend = OpenAIBackend(
                url, api_key=self.api_key, timeout=self.timeout, attempts=attempts, connections=connections
            )
            backend.choose(named or self.model)
            return backend

        if "," in where or where.startswith("@"):
            return Pool(urls(where), server, self.attempts, connections)
        return server(where, self.attempts)

    def open(self, option: str, values: Sequence[str] | None) -> list[Backend]:
        """Return a backend for each value of `option`; without values, return one for the server at `base_url`.

        Raises UsageError without values and `base_url`, or if options are set that have no effect.
        """
        # Options that nothing would heed are refused: the user expects them to do something.
        on_ray = self.replicas > 1 or self.ray_address is not None
        check((self.engine or not on_ray, "--replicas and --ray-address go with --engine ray"))
        check((not (values and self.base_url), f"give either {option} or --base-url; a URL is a {option}, too"))
        folders = values and not any("://" in value or value.startswith("@") for value in values)
        if folders and self.model:
            raise UsageError(f"--model {self.model}: chooses among a server's models; {option} names one")
        if values:
            backends: list[Backend] = [self._named(option, value) for value in values]
        elif self.base_url is not None:
            backends = [self.connect(self.base_url)]
        else:
            raise UsageError(f"give {option} FOLDER (vLLM in this process) or --base-url URL")
        runs_vllm = any(isinstance(layer, VllmBackend) for backend in backends for layer in walk_layers(backend))
        if self.vllm_options and not runs_vllm:
            words = " ".join(self.vllm_options)
            raise UsageError(f"{words}: options of vLLM need a {option} that is a checkpoint folder")
        # One budget for all of them, since they are paid for together.
        budget = None if self.budget is None else parse_budget(self.budget)
        backends = [Metered(backend, budget) for backend in backends]
        # The cache is outermost: what it holds costs no budget.
        if self.cache is not None:
            backends = [Cached(backend, self.cache, self.retry_failed) for backend in backends]
        return backends

    def open_one(self) -> Backend:
        """Return the backend that --model and --base-url select together. Without --base-url, --model is a folder, URL
        or file."""
        if self.model is not None and self.base_url is None:
            return replace(self, model=None).open("--model", [self.model])[0]
        return self.open("--model", [])[0]

    def _named(self, option: str, value: str) -> Backend:
        """Return a backend for one value of `option`.

        The value is a server (URL or URL#MODEL), several (URL,URL or @FILE), a checkpoint folder, or a file of replies.
        Raises UsageError for anything else.
        """
        if "://" in value or value.startswith("@"):
            return self.connect(value)
        # Actors run elsewhere, where a relative path leads to another folder.
        path, words = Path(value), list(self.vllm_options or ())
        if path.is_dir():
            return self._run(partial(VllmBackend, path.resolve() if self.engine else path, words), count_gpus(words))
        if path.is_file():
            return self._run(partial(from_file, path.resolve()), 0)
        expected = "expected a checkpoint folder, a server's URL, URL#MODEL, @FILE of URLs, or a file of replies"
        raise UsageError(f"{option} {value}: {expected}")

    def _run(self, make: Callable[[], Backend], gpus: int) -> Backend:
        """Build a backend with `make` in this process or, with --engine ray, in Ray actors with `gpus` GPUs each."""
        if self.engine is None:
            return make()
        from critic.backends.ray import RayBackend  # noqa: PLC0415 - as above

        return RayBackend(make, self.ray_address, self.replicas, gpus, self.attempts, self.timeout)
