"""Tokens, seconds and failures of a file of replies."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from critic.records import ModelTurn
from critic.stages.run import RunSummary


def summary(records: Iterable[ModelTurn], out: Path) -> RunSummary:
    """What the records of a file of replies add up to; a generation that several records share counts once."""
    conditions = defaultdict[str, Counter[str]](Counter)
    counts, failures, details, calls, resized = Counter[str](), Counter[str](), dict[str, str](), set[str](), set[str]()
    by_turn = defaultdict[int, Counter[str]](Counter)
    turns, seconds = 0, 0.0
    for line in records:
        turns += 1
        result = {None: "answered", "not_run": "not_run"}.get(line.failure, "failed")
        conditions[line.condition][result] += 1
        if line.failure is not None:
            failures[line.failure] += 1
            if line.detail:
                details.setdefault(line.failure, line.detail)
        if line.call is None or line.call in calls or line.failure == "budget":  # which was not asked for
            continue
        calls.add(line.call)
        seconds += line.seconds
        images = [image for message in line.seen for image in message.images]
        resized |= {image.path for image in images if image.resized}
        counts["calls"] += 1
        if not line.attempts:
            counts["calls_from_cache"] += 1
            continue
        counts["calls_cut_at_max_tokens"] += line.finish == "length" and line.failure is None
        counts["calls_shortened"] += line.dropped > 0
        counts["exchanges_dropped"] += line.dropped
        counts["images"] += len(images)
        if line.prompt_tokens is None or line.completion_tokens is None:
            counts["calls_without_token_counts"] += bool(line.seen)
            continue
        counts["prompt_tokens"] += line.prompt_tokens
        counts["completion_tokens"] += line.completion_tokens
        if line.cached_tokens is None:
            counts["calls_without_cached_counts"] += 1
            continue
        counts["cached_tokens"] += line.cached_tokens
        by_turn[line.turn].update(prompt=line.prompt_tokens, cached=line.cached_tokens)
    facts = {
        "conditions": {name: dict(found) for name, found in sorted(conditions.items())},
        "failed": dict(failures),
        "images_resized": len(resized),
        "turns": turns,
        **{name: count for name, count in counts.items() if count},
        "tokens_by_turn": {str(turn): dict(found) for turn, found in sorted(by_turn.items())},
        "seconds_of_calls": round(seconds, 1),
    }
    failed = [
        f"{name}: {count} turns" + (f", first: {details[name]}" if name in details else "")
        for name, count in failures.most_common()
    ]
    lines = [*_lines(defaultdict(int, facts)), *failed, f"{out}: {turns} turns"]
    return RunSummary(count=turns, failures=failures, facts=facts, lines=lines)


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
