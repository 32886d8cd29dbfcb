"""Tokens and failures of a file of replies."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

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
    counts = Counter[str]()
    for line in calls.values():
        counts.update(_took(line))
    facts = {
        "conditions": {name: dict(found) for name, found in sorted(conditions.items())},
        "failed": dict(failures),
        "turns": turns,
        **{name: count for name, count in counts.items() if count},
    }
    failed = [
        f"{name}: {count} turns" + (f", first: {details[name]}" if name in details else "")
        for name, count in failures.most_common()
    ]
    lines = [*_lines(conditions, turns, counts), *failed, f"{out}: {turns} turns"]
    return RunSummary(count=turns, failures=failures, facts=facts, lines=lines)


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
    if line.prompt_tokens is None or line.completion_tokens is None:
        return found | {"calls_without_token_counts": int(bool(line.seen))}
    found |= {"prompt_tokens": line.prompt_tokens, "completion_tokens": line.completion_tokens}
    return found if line.cached_tokens is None else found | {"cached_tokens": line.cached_tokens}


def _lines(conditions: Mapping[str, Counter[str]], turns: int, counts: Counter[str]) -> Iterator[str]:
    """What is said of the counts."""
    yield f"{'condition':<30}{'answered':>9}{'failed':>8}{'not run':>9}"
    for name, found in sorted(conditions.items()):
        yield f"{name:<30}{found['answered']:>9}{found['failed']:>8}{found['not_run']:>9}"
    yield f"{turns} turns by {counts['calls']} calls"
    cached = f"{counts['cached_tokens']} cached" if "cached_tokens" in counts else "cached: not said by the server"
    yield f"tokens: {counts['prompt_tokens']} in, {counts['completion_tokens']} out, {cached}"
    for name, text in (
        ("calls_without_token_counts", "calls without token counts: they are in no sum of tokens"),
        ("calls_from_cache", "replies from the cache, which cost nothing"),
        ("calls_cut_at_max_tokens", "replies cut at --max-tokens"),
        ("calls_shortened", f"prompts shortened to fit ({counts['exchanges_dropped']} oldest exchanges left out)"),
    ):
        if counts[name]:
            yield f"{counts[name]} {text}"
