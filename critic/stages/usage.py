"""Tokens, seconds and failures of a file of replies."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from critic.records import ModelTurn
from critic.stages.run import RunSummary


def summary(records: Iterable[ModelTurn], out: Path) -> RunSummary:
    """What the records of a file of replies add up to; a generation that several records share counts once."""
    conditions = defaultdict[str, Counter[str]](Counter)
    failures, details, calls, turns = Counter[str](), dict[str, str](), dict[str, ModelTurn](), 0
    for line in records:
        turns += 1
        conditions[line.condition][{None: "answered", "not_run": "not_run"}.get(line.failure, "failed")] += 1
        if line.failure is not None:
            failures[line.failure] += 1
            if line.detail:
                details.setdefault(line.failure, line.detail)
        if line.call is not None and line.failure != "budget":  # which was not asked for
            calls.setdefault(line.call, line)
    facts = {
        "conditions": {name: dict(found) for name, found in sorted(conditions.items())},
        "failed": dict(failures),
        "turns": turns,
        **_of_calls(list(calls.values())),
    }
    failed = [
        f"{name}: {count} turns" + (f", first: {details[name]}" if name in details else "")
        for name, count in failures.most_common()
    ]
    lines = [*_lines(defaultdict(int, facts)), *failed, f"{out}: {turns} turns"]
    return RunSummary(count=turns, failures=failures, facts=facts, lines=lines)


def _of_calls(calls: Sequence[ModelTurn]) -> dict[str, Any]:
    counts, by_turn, resized = Counter[str](), defaultdict[int, Counter[str]](Counter), set[str]()
    for line in calls:
        counts.update(_took(line))
        resized |= {image.path for message in line.seen for image in message.images if image.resized}
        if line.attempts and _is_counted(line) and line.cached_tokens is not None:
            by_turn[line.turn].update(prompt=line.prompt_tokens or 0, cached=line.cached_tokens)
    return {
        "images_resized": len(resized),
        **{name: count for name, count in counts.items() if count},
        "tokens_by_turn": {str(turn): dict(found) for turn, found in sorted(by_turn.items())},
        "seconds_of_calls": round(sum(line.seconds for line in calls), 1),
    }


def _is_counted(line: ModelTurn) -> bool:
    """Whether its server counts tokens."""
    return line.prompt_tokens is not None and line.completion_tokens is not None


def _took(line: ModelTurn) -> dict[str, int]:
    """What a call adds to the counts: nothing but itself where its reply came from a cache."""
    if not line.attempts:
        return {"calls": 1, "calls_from_cache": 1}
    found = {
        "calls": 1,
        "calls_cut_at_max_tokens": int(line.finish == "length" and line.failure is None),
        "calls_shortened": int(line.dropped > 0),
        "exchanges_dropped": line.dropped,
        "images": sum(len(message.images) for message in line.seen),
    }
    if not _is_counted(line):
        return found | {"calls_without_token_counts": int(bool(line.seen))}
    cached = {"calls_without_cached_counts": 1} if line.cached_tokens is None else {"cached_tokens": line.cached_tokens}
    return found | {
        "prompt_tokens": line.prompt_tokens or 0,
        "completion_tokens": line.completion_tokens or 0,
        **cached,
    }


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """What is said of the facts. Those that are not there count nothing."""
    yield f"{'condition':<30}{'answered':>9}{'failed':>8}{'not run':>9}"
    for name, found in facts["conditions"].items():
        counts = [found.get(result, 0) for result in ("answered", "failed", "not_run")]
        yield "{:<30}{:>9}{:>8}{:>9}".format(name, *counts)
    yield f"{facts['turns']} turns by {facts['calls']} calls"
    shares = [f"turn {turn} {one['cached'] / one['prompt']:.0%}" for turn, one in facts["tokens_by_turn"].items()]
    known = f"{facts['cached_tokens']} cached ({', '.join(shares)} of the prompt)"
    cached = known if shares else "cached: not said by the server"
    yield f"tokens: {facts['prompt_tokens']} in, {facts['completion_tokens']} out, {cached}"
    for name, text in (
        ("calls_without_token_counts", "calls without token counts: they are in no sum of tokens"),
        ("calls_from_cache", "replies from the cache, which cost nothing"),
        ("calls_cut_at_max_tokens", "replies cut at --max-tokens"),
        ("calls_shortened", f"prompts shortened to fit ({facts['exchanges_dropped']} oldest exchanges left out)"),
        ("images_resized", "images made smaller to fit --max-image-pixels"),
    ):
        if facts[name]:
            yield f"{facts[name]} {text}"
