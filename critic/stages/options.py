"""Options that several stages take, declared once, and where the replies come from that they name."""

import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from msgspec import Struct
from msgspec.structs import asdict, replace

from critic import jsonl
from critic.backends import ATTEMPTS, CONNECTIONS, TIMEOUT, Backend
from critic.backends.address import normalize_url, redact_url
from critic.backends.middleware import Budget, Cached, Limited, walk_layers
from critic.backends.scripted import from_file
from critic.backends.vllm import VllmBackend, count_gpus, list_devices
from critic.cli import RARELY_NEEDED
from critic.errors import UsageError, one_line
from critic.images import MAX_BYTES, Images
from critic.judging.forms import ONE_SIDE, head_gives
from critic.records import Language, Showing
from critic.stages.run import RunOptions, Shard, Summarise

MAX_FAILED = 0.02
"""The share of failures above which a stage exits with 3."""

data, endpoint, limits, cluster, rare = (
    partial(typer.Option, rich_help_panel=title)
    for title in ("Data", "Endpoint", "Limits", "Several machines", RARELY_NEEDED)
)
"""An option, in its group of --help."""

ApiKey = Annotated[str | None, endpoint(metavar="KEY", envvar="OPENAI_API_KEY", help="Key of the server.")]
Temperature = Annotated[float, typer.Option(min=0, help="Sampling temperature.")]
Seed = Annotated[int, typer.Option(help="Seed of what is sampled.")]
MaxFailed = Annotated[float, limits(min=0, max=1, help="Exit with 3 if a larger share fails.")]
RetryFailed = Annotated[bool, limits("--retry-failed", help="Ask again for records that failed.")]
Concurrency = Annotated[
    int | None, limits(min=1, help="Requests at a time.", show_default=f"{CONNECTIONS}; in here the engine's own")
]

Mapped = Annotated[
    list[str] | None, data("--map", metavar="COLUMN=FIELD", help="Your column as a field: answer=response.")
]
OwnScale = Annotated[str | None, data("--scale", metavar="LOW:HIGH", help="Scale of people's scores.")]
OwnLanguage = Annotated[Language | None, data("--lang", help="Language of all rows.")]
DataRoot = Annotated[Path | None, data(metavar="FOLDER", help="Folder of images.", show_default="the file's folder")]


def root_of(rows: Path, questions: Path | None = None) -> Path:
    """Return the folder of images, unless said otherwise: of replies only, the one that their model was shown, which
    their sidecar names relative to itself."""
    recorded = jsonl.restore_places(rows).get("data_root") if questions is None else None
    root = Path(os.fsdecode(recorded.encode())) if isinstance(recorded, str) else None
    return root if root is not None and root.is_dir() else (questions or rows).parent


def spend(words: str | None) -> Budget | None:
    """What --budget says. Raises UsageError for anything else."""
    if words is None:
        return None
    number = words.removesuffix("tokens")
    check((number.isdecimal() and number != words, f"--budget {words}: expected a number of tokens: 2000000tokens"))
    return Budget(limit=int(number))


def max_tokens(least: int, default: str | bool = True) -> Any:
    return limits(min=least, help="Longest reply, in tokens.", show_default=default)


def check(*rules: tuple[object, str]) -> None:
    """Raises UsageError with the words of the first rule that does not hold."""
    for holds, problem in rules:
        if not holds:
            raise UsageError(problem)


def not_learned(judge: Backend, forms: Collection[str], option: str, forced: bool) -> str:
    """Of the forms that a judge is to be asked in those that it did not learn, where it says what it learned. Raises
    UsageError for these unless that is `forced`, and for what a scoring head cannot give."""
    for form in forms:
        compares = judge.served.tie_band is not None
        gives = f"compares two answers ({', '.join(ONE_SIDE)})" if compares else "gives one rating on 1..10"
        head = f"--{option} {form}: {judge.served.name} is a scoring head, which {gives}"
        check((not judge.served.is_classifier or head_gives(form, compares), head))
    learned = judge.served.forms
    strange = ", ".join(form for form in forms if learned and form not in learned)
    problem = f"{judge.endpoint} learned {', '.join(learned)}, and not {strange} (--{option})"
    check((forced or not strange, f"{problem}; ask as it learned, or all the same with --force-form"))
    return strange


def chosen(option: str, values: Iterable[str], choices: Collection[str]) -> list[Any]:
    """What an option names, each once. Raises UsageError for what is none of the `choices`."""
    for value in values:
        check((value in choices, f"--{option} {value}: unknown; choose {', '.join(choices)}"))
    return list(dict.fromkeys(values))


def urls(where: str) -> list[str]:
    """Return the servers of URL,URL or of @FILE: one a line, without blank lines and those that begin with #. Two that
    differ only in their credentials are one. Raises UsageError if there is none."""
    try:
        words = Path(where[1:]).read_text("utf-8").split("\n") if where.startswith("@") else where.split(",")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: no file of servers: {one_line(error)}") from None
    named = [normalize_url(word.strip()) for word in words if word.strip() and not word.strip().startswith("#")]
    check((named, f"{where}: names no server"))
    servers = dict[str, str]()
    for url in named:
        servers.setdefault(redact_url(url), url)
    return list(servers.values())


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where replies come from, and how they are asked for: the options of every stage that asks a model
    (`takes_endpoint`). `model` is the one to ask a server for, unless its URL names one."""

    vllm_options: Annotated[
        list[str] | None, typer.Argument(metavar="-- VLLM", help="Options of vLLM in this process.")
    ] = None
    model: Annotated[
        str | None,
        endpoint(metavar="NAME", help="Model name on the server, or a checkpoint folder.", show_default="its first"),
    ] = None
    base_url: Annotated[
        str | None, endpoint(metavar="URL", help="OpenAI-compatible server; several as URL,URL or @FILE.")
    ] = None
    api_key: ApiKey = None
    data_root: DataRoot = None
    concurrency: Concurrency = None
    max_failed: MaxFailed = MAX_FAILED
    retry_failed: RetryFailed = False
    cache: Annotated[Path | None, limits(metavar="FILE", help="SQLite file of replies, to ask nothing twice.")] = None
    budget: Annotated[str | None, limits(metavar="N", help="Stop after this many tokens: 2000000tokens.")] = None
    max_image_pixels: Annotated[int | None, rare(min=1, help="Shrink larger images to this many pixels.")] = None
    max_image_bytes: Annotated[int, rare(min=1, help="Refuse larger image files.")] = MAX_BYTES
    attempts: Annotated[int, rare(min=1, help="Tries of a request before it counts as failed.")] = ATTEMPTS
    timeout: Annotated[float, rare(min=0.1, help="Seconds that a try may take.")] = TIMEOUT
    shard: Annotated[str | None, cluster(metavar="K/N", help="Do part K of N; critic merge joins the parts.")] = None
    gpus: Annotated[str | None, cluster(metavar="N", help="Run one engine on each of N GPUs, or on all.")] = None
    engine: Annotated[Literal["ray"] | None, cluster(help="Run the model in actors of a Ray cluster.")] = None
    ray_address: Annotated[str | None, cluster(metavar="HOST:PORT", help="Cluster, or auto.  [RAY_ADDRESS]")] = None
    replicas: Annotated[int, cluster(min=1, help="Number of actors, each with its own GPUs.")] = 1

    def run_options(self, out: Path, certificate: Path | None = None) -> RunOptions:
        """How the stage is run that asks. Raises UsageError for a wrong --shard."""
        return RunOptions(
            out=out,
            concurrency=self.concurrency,
            max_failed=self.max_failed,
            retry_failed=self.retry_failed,
            certificate=certificate,
            shard=Shard.read(self.shard),
        )

    def run_on_gpus(
        self, command: Callable[..., int], given: Mapping[str, Any], sources: Sequence[str], summarise: Summarise
    ) -> int:
        """Run a command with its arguments `given` by name, one engine on each GPU; return the exit code.

        `sources` are the models, which must be checkpoint folders; `summarise` adds up the command's records.
        """
        from critic.stages.gpus import on_gpus  # noqa: PLC0415 - only where it is asked for

        options = {name: value for name, value in given.items() if name != "endpoint"}
        return on_gpus(command, {**options, **asdict(self)}, self.engines(sources), summarise)

    def engines(self, sources: Sequence[str]) -> list[str]:
        """The GPUs of each engine of --gpus. Raises UsageError where `sources` are none that run in here."""
        local = not self.base_url and all(Path(source).exists() for source in sources)
        check((local, f"--gpus {self.gpus}: needs a checkpoint folder that is there; servers have GPUs of their own"))
        alone = not (self.shard or self.engine or self.budget)
        check((alone, f"--gpus {self.gpus}: cannot be used with --shard, --engine or --budget"))
        return list_devices(str(self.gpus), max(1, count_gpus(self.vllm_options or [])))

    def images(self, root: Path, uris: Mapping[str, str] | None = None) -> Images:
        """The images below `root`, as the options say that they are sent."""
        return Images(root, max_bytes=self.max_image_bytes, resize_to=self.max_image_pixels, uris=uris)

    def shown(
        self, wanted: Showing | None, root: Path, judges: Sequence[Backend], names: Sequence[str] | None = None
    ) -> Images | None:
        """The images that judges are shown, None where they are not: where no `names` are given, where a judge does not
        see, or where it is not known to, and nobody `wanted` it; names that are None are known later. Raises UsageError
        where a judge cannot be shown them, and where no file is there."""
        check((wanted != "show" or names != [], "--images show: there are no images"))
        if names == [] or wanted == "blind":
            return None
        for judge in judges:
            name, sees = judge.served.name, judge.sees()
            check((sees is not False or wanted is None, f"--images show: {name} takes no images"))
            if wanted is None and not sees:
                if sees is None:
                    print(f"{name} does not say whether it sees: it is asked blind; --images show", file=sys.stderr)
                return None
        images = self.images(root)
        images.require(names or ())
        return images

    def connect(self, where: str, model: str | None) -> Backend:
        """The server at an URL, or the pool at several. Raises UsageError where one lacks the model."""
        from critic.backends.openai import OpenAIBackend  # noqa: PLC0415 - as above
        from critic.backends.pool import Pool  # noqa: PLC0415 - as above

        check((self.engine is None, f"--engine {self.engine} runs a checkpoint folder itself: give no URL ({where})"))
        connections = self.concurrency or CONNECTIONS

        def server(url: str, attempts: int = 1) -> OpenAIBackend:
            backend = OpenAIBackend(
                url, api_key=self.api_key, timeout=self.timeout, attempts=attempts, connections=connections
            )
            backend.choose(model)
            return backend

        if "," in where or where.startswith("@"):
            return Pool(urls(where), server, self.attempts, connections)
        return server(where, self.attempts)

    def open(self, option: str, values: Sequence[str] | None) -> list[Backend]:
        """What each value of `option` names; the server at `base_url` where there is no value. Raises UsageError where
        there is neither, and for options of vLLM that nothing takes."""
        on_ray = self.replicas > 1 or self.ray_address is not None
        check((self.engine or not on_ray, "--replicas and --ray-address go with --engine ray"))
        check((not (values and self.base_url), f"give either {option} or --base-url; a URL is a {option}, too"))
        folders = values and not any("://" in value or value.startswith("@") for value in values)
        check(
            (not (folders and self.model), f"--model {self.model}: chooses among a server's models; {option} names one")
        )
        if values:
            backends = [self._named(option, value) for value in values]
        elif self.base_url is not None:
            backends = [self.connect(self.base_url, self.model)]
        else:
            raise UsageError(f"give {option} FOLDER (vLLM in this process) or --base-url URL")
        runs_vllm = any(isinstance(layer, VllmBackend) for backend in backends for layer in walk_layers(backend))
        if self.vllm_options and not runs_vllm:
            words = " ".join(self.vllm_options)
            raise UsageError(f"{words}: options of vLLM need a {option} that is a checkpoint folder")
        budget = spend(self.budget)
        limited = backends if budget is None else [Limited(backend, budget) for backend in backends]
        if self.cache is None:
            return list(limited)
        return [Cached(backend, self.cache, self.retry_failed) for backend in limited]

    def open_one(self) -> Backend:
        """What `--model` and `--base-url` name together: without a URL, `model` is where the replies come from."""
        alone = self.model if self.base_url is None else None
        (backend,) = replace(self, model=None).open("--model", [alone]) if alone else self.open("--model", [])
        return backend

    def _named(self, option: str, value: str) -> Backend:
        """A server (URL, URL#MODEL), several (URL,URL or @FILE), a checkpoint folder, or a file of scripted replies."""
        url, _, named = value.partition("#")
        if "://" in value or value.startswith("@"):
            return self.connect(url, named or self.model)
        path, words = Path(value), list(self.vllm_options or ())
        if path.is_dir():
            return self._run(partial(VllmBackend, path.resolve() if self.engine else path, words), count_gpus(words))
        if path.is_file():
            return self._run(partial(from_file, path.resolve()), 0)
        expected = "expected a checkpoint folder, a server's URL, URL#MODEL, @FILE of URLs, or a file of replies"
        raise UsageError(f"{option} {value}: {expected}")

    def _run(self, make: Callable[[], Backend], gpus: int) -> Backend:
        """What `make` gives, in this process or in actors."""
        if self.engine is None:
            return make()
        from critic.backends.ray import RayBackend  # noqa: PLC0415 - as above

        return RayBackend(make, self.ray_address, self.replicas, gpus, self.attempts, self.timeout)


ONE_MODEL = ("model", "base_url", "api_key", "concurrency", "max_failed", "retry_failed")
"""The options of a stage that asks one model, in one process."""


def takes_endpoint(
    command: Callable[..., int], names: Collection[str] = Endpoint.__struct_fields__
) -> Callable[..., int]:
    """A stage's command whose parameter `endpoint` is filled from options of its own: fields of Endpoint."""
    own = inspect.signature(command, eval_str=True)

    @wraps(command)
    def called(*words: Any, **options: Any) -> int:
        fields = {name: options.pop(name) for name in names if name in options}
        return command(*words, endpoint=Endpoint(**fields), **options)

    parameters = [parameter for parameter in own.parameters.values() if parameter.name != "endpoint"]
    parameters += [option for option in inspect.signature(Endpoint).parameters.values() if option.name in names]
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # what Typer reads
    return called
