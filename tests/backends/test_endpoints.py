"""Servers of other makers: refused fields, addresses, waits, names in replies, and no secret printed or kept."""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Done, Scripted, Servers, assert_one_line_error, completion, human_rows, read_jsonl, run

from critic import jsonl
from critic.backends import Reply, Request, refusals
from critic.backends.openai import OpenAIBackend
from critic.errors import Refused

RATED = '{"Rating":7,"Reason":"x"}'
CONVERSATIONS = ROOT / "data/samples/convbench/ConvBench.csv"


Answer = tuple[int, dict[str, str], bytes]


def answer_with(status: int, body: Any) -> Answer:
    return status, {}, json.dumps(body).encode()


def error(status: int, message: str, **more: Any) -> Answer:
    return answer_with(status, {"error": {"message": message, **more}})


def judge(server: Scripted, out: Path, *words: object, count: int = 3, url: str = "", code: int | None = None) -> Done:
    rows, how = human_rows(out.parent, count), ("--score", "argmax", "--concurrency", "1")
    return run("critic", "judge", rows, "--out", out, "--judge", url or server.url, *how, *words, code=code)


def chat(server: Scripted, count: int = 1, **request: Any) -> list[Reply]:
    """Return the replies to one request, sent several times."""

    async def replies() -> list[Reply]:
        async with OpenAIBackend(server.url) as backend:
            backend.choose(None)
            prompt = Request(messages=[{"role": "user", "content": "How warm?"}], max_tokens=9, **request)
            return [await backend.chat(prompt) for _ in range(count)]

    return asyncio.run(replies())


FIELDS = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "seed": "seed",
    "response_format": "response_format",
    "logprobs": "top_logprobs",
}
"""A field, and the key that refusals may name it by."""

WAYS: dict[str, Callable[[str], Answer]] = {
    "OpenAI": lambda name: error(400, f"Unsupported parameter: '{name}' is not supported with this model.", param=name),
    "OpenAI's value": lambda name: error(400, "Only the default value is supported.", param=name, code="unsupported"),
    "Azure": lambda name: error(400, f"Unrecognized request argument supplied: {name}"),
    "Google": lambda name: answer_with(
        400, [{"error": {"code": 400, "message": f'Unknown name "{name}": Cannot find field.'}}]
    ),
    "Google's field": lambda name: error(
        400, "Request contains an invalid argument.", details=[{"fieldViolations": [{"field": name}]}]
    ),
    "Anthropic": lambda name: error(400, f"{name}: Extra inputs are not permitted", type="invalid_request_error"),
    "Mistral": lambda name: answer_with(
        422, {"detail": [{"loc": ["body", name], "msg": "Extra inputs are not permitted", "input": 1}]}
    ),
    "Zhipu": lambda name: error(400, f"参数{name}不支持", code="1210"),
    "DashScope": lambda name: error(400, f"<400> InternalError.Algo.InvalidParameter: The {name} is not supported."),
    "Volcengine": lambda name: error(400, f"The parameter `{name}` specified in the request is not valid.", param=name),
    "in a 200": lambda name: error(200, f"{name} is not supported", type="invalid_request_error"),
    "forbidden": lambda name: error(403, f"You are not allowed to request {name} from this model"),
}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_field_refused_by_name_is_left_out_for_good(scripted: Servers, way: str, name: str, capsys: Any) -> None:
    key = FIELDS[name]
    server = scripted(lambda body: WAYS[way](key) if key in body else {**completion(RATED), "model": "m"})
    chat(server, count=3, temperature=0.5, seed=3, schema={"type": "object"}, top_logprobs=5)
    first, *later = server.requests
    assert len(later) == 3 and key in first, "once for the rest of the run"
    replaced = {"max_completion_tokens"} if name == "max_tokens" else set()
    left_out = {key, *({"logprobs"} if name == "logprobs" else ())}
    assert all(body.keys() == first.keys() - left_out | replaced for body in later)
    assert all(body.get("max_completion_tokens", 9) == 9 for body in later)
    stderr = capsys.readouterr().err
    assert stderr.count(f"takes no {name}; {refusals.OPTIONAL[name][1]}") == stderr.count("\n") == 1
    assert way == "Mistral" or "{" not in stderr, "the server's words, not its JSON"


def test_a_server_that_takes_no_limit_at_all(scripted: Servers) -> None:
    def answer(body: dict[str, Any]) -> Any:
        named = next((name for name in ("max_tokens", "max_completion_tokens") if name in body), None)
        return error(400, f"Unknown parameter: {named}") if named else completion(RATED)

    server = scripted(answer)
    assert chat(server)[0].text == RATED and "max_completion_tokens" in server.requests[1]


@pytest.mark.parametrize("param", ["messages", "messages[0].content", "model"])
def test_what_is_needed_is_never_left_out(scripted: Servers, param: str) -> None:
    server = scripted(lambda body: error(400, "temperature, seed: no such thing here", param=param))
    with pytest.raises(Refused, match="no such thing"):
        chat(server, seed=3)
    assert len(server.requests) == 1


def test_a_field_beside_the_one_that_is_refused_is_sent_again(scripted: Servers, capsys: Any) -> None:
    """The same message names it first, but it was not refused."""
    words = "With max_tokens and response_format this model takes no temperature"
    server = scripted(lambda body: error(400, words) if "temperature" in body else completion(RATED))
    chat(server, count=2, schema={"type": "object"})
    assert {"max_tokens", "response_format"} <= server.requests[-1].keys()
    assert capsys.readouterr().err.count("takes no temperature; ") == 1


def test_a_judge_without_limit_and_temperature_says_so_in_the_sidecar(tmp_path: Path, scripted: Servers) -> None:
    """GPT-5 and the o-series refuse both."""

    def answer(body: dict[str, Any]) -> Any:
        if "max_tokens" in body:
            use = "Use 'max_completion_tokens' instead."
            return error(400, f"Unsupported parameter: 'max_tokens' is not supported. {use}", param="max_tokens")
        if body.get("temperature", 1) != 1:
            return error(400, "'temperature' does not support 0 with this model.", param="temperature")
        return completion(RATED)

    server, out = scripted(answer), tmp_path / "out.jsonl"
    judge(server, out, code=0)
    assert len(server.requests) == 5
    assert [line["score"] for line in read_jsonl(out)] == [7.0] * 3
    assert jsonl.facts(out)["server_lacks"] == ["max_tokens", "temperature"]
    replies = tmp_path / "replies.jsonl"
    words = ["--benchmark", "convbench", "--condition", "no_image", "--limit", 1, "--base-url", server.url]
    assert run("critic", "infer", CONVERSATIONS, "--out", replies, *words).returncode == 0
    assert jsonl.facts(replies)["server_lacks"] == ["max_tokens", "temperature"]


def test_without_log_probabilities_a_named_score_stops(tmp_path: Path, scripted: Servers) -> None:
    refuse = WAYS["Google"]("logprobs")
    server = scripted(lambda body: refuse if "logprobs" in body else completion(RATED))
    done = judge(server, tmp_path / "out.jsonl", "--score", "expected")
    assert_one_line_error(done, "no log probabilities", "--score expected")


@pytest.mark.parametrize("prefix", ["/api/paas/v4", "/api/v3", "/v1beta/openai", "/compatible-mode/v1", "/v1"])
@pytest.mark.parametrize("end", ["", "/", "/chat/completions", "/chat/completions/"])
def test_a_base_url_with_a_path_of_its_own(tmp_path: Path, scripted: Servers, prefix: str, end: str) -> None:
    server, out = scripted(lambda body: completion(RATED), prefix=prefix), tmp_path / "out.jsonl"
    url = server.url.removesuffix("/v1")
    judge(server, out, url=f"{url}{prefix}{end}", count=1, code=0)
    assert [path for path, _ in server.seen] == [f"{prefix}/models", f"{prefix}/chat/completions"]
    judge(server, tmp_path / "pooled.jsonl", url=f"{url}{prefix}{end},{url}{prefix}", count=1, code=0)
    assert jsonl.facts(tmp_path / "pooled.jsonl")["server"] == f"{url}{prefix}"


def test_an_azure_deployment_is_named_by_its_url(tmp_path: Path, scripted: Servers) -> None:
    prefix, out = "/openai/deployments/gpt-4o", tmp_path / "out.jsonl"
    server = scripted(lambda body: completion(RATED), prefix=prefix, listed=404)
    url = server.url.removesuffix("/v1") + f"{prefix}/chat/completions?api-version=2024-10-21"
    judge(server, out, "--api-key", "azure-key-1", url=url, count=1, code=0)
    ((path, headers),) = server.seen
    assert path == f"{prefix}/chat/completions?api-version=2024-10-21"
    assert headers["api-key"] == "azure-key-1" and "authorization" not in headers
    assert server.requests[0]["model"] == "gpt-4o" and jsonl.facts(out)["judge"] == "gpt-4o"


@pytest.mark.parametrize("status", [404, 405, 501, 401, 403])
def test_a_named_model_needs_no_list(tmp_path: Path, scripted: Servers, status: int) -> None:
    server, out = scripted(lambda body: completion(RATED), listed=status), tmp_path / "out.jsonl"
    judge(server, out, "--api-key", "some-key", url=f"{server.url}#glm-4.6", count=1, code=0)
    assert server.requests[0]["model"] == "glm-4.6"
    unnamed = judge(server, tmp_path / "unnamed.jsonl", "--api-key", "some-key", count=1)
    assert_one_line_error(unnamed, "--api-key" if status in (401, 403) else "URL#MODEL")


def test_google_s_names_are_taken_without_their_folder(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(lambda body: completion(RATED))
    server.told = {"id": "models/gemini-2.5-flash"}
    assert judge(server, tmp_path / "out.jsonl", url=f"{server.url}#gemini-2.5-flash", count=1).returncode == 0
    assert server.requests[0]["model"] == "gemini-2.5-flash"


def test_a_wrong_address_or_key_that_only_a_completion_shows_stops_the_run(tmp_path: Path, scripted: Servers) -> None:
    lost = scripted(lambda body: completion(RATED), prefix="/api/v3")
    done = judge(lost, tmp_path / "lost.jsonl", url=f"{lost.url}/wrong#m")
    assert_one_line_error(done, "/v1/wrong/chat/completions", "HTTP 404")
    assert len(lost.seen) == 2
    locked = scripted(lambda body: error(401, "Incorrect API key provided"), listed=404)
    assert_one_line_error(judge(locked, tmp_path / "locked.jsonl", url=f"{locked.url}#m"), "--api-key")
    assert len(locked.requests) == 1


def test_without_the_server_s_clock_a_date_is_held_against_ours() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert refusals.read_retry_after({"Retry-After": date}) == pytest.approx(29.5, abs=1)


@pytest.mark.parametrize("spelling", ["date", "ms", "Google"])
def test_a_limit_that_ends_later_loses_no_row(tmp_path: Path, scripted: Servers, spelling: str) -> None:
    end, times = time.time() + 3, list[float]()

    def answer(body: dict[str, Any]) -> Any:
        times.append(time.time())
        left = end - time.time()
        if left <= 0:
            return completion(RATED)
        date = format_datetime(datetime.fromtimestamp(time.time() + left + 1, UTC), usegmt=True)
        wish = {"Retry-After": date} if spelling == "date" else {"retry-after-ms": str(left * 1000)}
        message: dict[str, Any] = {"error": {"code": 429, "message": "Rate limit reached"}}
        if spelling == "Google":
            wish, message["error"]["details"] = {}, [{"@type": "RetryInfo", "retryDelay": f"{left + 0.1:.2f}s"}]
        return 429, wish, json.dumps([message]).encode()

    server = scripted(answer)
    judge(server, tmp_path / "out.jsonl", "--attempts", "2", count=1, code=0)
    assert len(times) == 2 and times[1] >= end


EMPTY = {
    "OpenAI": error(429, "You exceeded your current quota, please check your plan", code="insufficient_quota"),
    "OpenAI's limit": error(400, "Billing hard limit has been reached", code="billing_hard_limit_reached"),
    "OpenAI's account": error(429, "Your account is not active", code="billing_not_active"),
    "Anthropic": error(400, "Your credit balance is too low to access the API.", type="invalid_request_error"),
    "DeepSeek": error(402, "Insufficient Balance"),
    "OpenRouter": error(402, "This request requires more credits", code=402),
    "Zhipu": error(429, "余额不足或无可用资源包,请充值。", code="1113"),
    "Zhipu's code": error(429, "recharge", code="1113"),
    "DashScope": error(400, "Access denied, please make sure your account is in good standing.", code="Arrearage"),
    "Volcengine": error(403, "The account has an overdue balance.", code="AccountOverdueError"),
    "Moonshot": error(429, "Your account is suspended", type="exceeded_current_quota_error"),
    "Baidu": error(403, "账户已欠费"),
    "in a 200": error(200, "insufficient_quota"),
    "MiniMax": answer_with(
        200, {"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}
    ),
}


@pytest.mark.parametrize("who", EMPTY)
def test_an_empty_account_stops_the_run_in_one_line(tmp_path: Path, scripted: Servers, who: str) -> None:
    """Judgments are kept, and the same command continues."""
    empty = False

    def answer(body: dict[str, Any]) -> Any:
        return EMPTY[who] if empty and len(server.requests) > 2 else completion(RATED)

    server, out, empty = scripted(answer), tmp_path / "out.jsonl", True
    done = judge(server, out, count=5)
    assert_one_line_error(done, "no credit", "same command")
    assert len(server.requests) == 3 and len(read_jsonl(out)) == 2, "nobody waited for it"
    empty = False
    assert judge(server, out, count=5).returncode == 0
    assert len(server.requests) == 6 and [line["score"] for line in read_jsonl(out)] == [7.0] * 5


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (error(429, "You exceeded your current quota, please check your plan and billing details."), "server_error"),
        (error(429, "Rate limit reached: requested 1113 tokens"), "server_error"),
        (error(400, "cannot read: I see 2 apples. insufficient balance"), "refused"),
    ],
)
def test_what_is_no_empty_account(tmp_path: Path, scripted: Servers, answer: Any, failure: str) -> None:
    """Google sends the first message also for a limit per minute. The last one repeats the request."""
    rows = human_rows(tmp_path, 1, response="I see 2 apples. insufficient balance")
    out, words = tmp_path / "out.jsonl", ["--base-url", scripted(lambda body: answer).url, "--attempts", "1"]
    done = run("critic", "judge", rows, "--out", out, "--score", "argmax", *words)
    assert done.returncode == 3 and read_jsonl(out)[0]["verdict"]["failure"] == failure


def test_an_empty_account_is_left_out_and_where_all_are_the_run_ends(tmp_path: Path, scripted: Servers) -> None:
    empty, full = scripted(lambda body: EMPTY["DeepSeek"]), scripted(lambda body: completion(RATED))
    done = judge(full, out := tmp_path / "out.jsonl", url=f"{empty.url},{full.url}", count=6)
    assert done.returncode == 0 and len(read_jsonl(out)) == 6 and len(empty.requests) == 1, done.stderr
    assert done.stderr.count("is left out") == 1
    other = scripted(lambda body: EMPTY["Zhipu"])
    done = judge(empty, tmp_path / "none.jsonl", url=f"{empty.url},{other.url}", count=6)
    assert_one_line_error(done, "no credit")


SECRETS = ("pa55word", "k3y-of-query", "sk-proj-0123456789abcdef")


def with_secrets(url: str) -> str:
    """Return the URL with a user, a password and a key in its query."""
    return f"{url.replace('://', '://me:pa55word@')}?key=k3y-of-query"


def all_that_is_kept(folder: Path) -> str:
    return "\n".join(path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file())


def test_passwords_and_keys_are_sent_and_neither_printed_nor_kept(tmp_path: Path, scripted: Servers) -> None:
    """The server may repeat them in its errors."""

    def answer(body: dict[str, Any]) -> Any:
        message = (
            f"Incorrect key sk-proj-0123456789abcdef at {with_secrets(server.url)} (Bearer {SECRETS[2]}): {SECRETS}"
        )
        if "apples lie on table 1" in str(body["messages"]):
            return error(400, message)
        return error(400, f"no seed, response_format: {message}") if "response_format" in body else completion(RATED)

    server, out = scripted(answer), tmp_path / "out.jsonl"
    done = judge(server, out, "--api-key", SECRETS[2], "--max-failed", "1", url=with_secrets(server.url))
    assert done.returncode == 0 and "takes no response_format" in done.stderr, done.stderr
    assert server.seen[0][1]["authorization"] == f"Basic {b64encode(b'me:pa55word').decode()}"
    assert {path.partition("?")[2] for path, _ in server.seen} == {"key=k3y-of-query"}
    kept = all_that_is_kept(tmp_path) + done.stdout + done.stderr
    assert not [secret for secret in SECRETS if secret in kept] and "Incorrect key ***" in kept
    assert jsonl.facts(out)["server"] == server.url.removesuffix("/v1")
    judge(server, out, "--max-failed", "1", count=4, url=server.url, code=0)  # the same endpoint


@pytest.mark.parametrize("spelled", ["one", "several", "no server", "no URL", "no key", "an engine"])
def test_what_goes_wrong_is_said_without_secrets(tmp_path: Path, scripted: Servers, spelled: str) -> None:
    closed, locked = scripted(lambda body: None), scripted(lambda body: completion(RATED), listed=401)
    url = with_secrets(closed.url)
    urls = {
        "one": url,
        "several": f"{url},{url.replace('127.0.0.1', 'localhost')}",
        "no server": with_secrets("http://127.0.0.1:80O0/v1"),
        "no URL": with_secrets("ftp://127.0.0.1/v1"),
        "no key": with_secrets(locked.url),
        "an engine": url,
    }
    closed.server.server_close()
    words = ("--engine", "ray") if spelled == "an engine" else ()
    done = judge(closed, tmp_path / "out.jsonl", *words, url=urls[spelled])
    assert_one_line_error(done)
    assert not [secret for secret in SECRETS if secret in done.stderr], done.stderr
