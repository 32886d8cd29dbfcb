"""The totals of a file of replies or judgments: for its sidecar, and in sentences."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from critic.judging.answers import without_thoughts_in
from critic.records import Judgment, ModelTurn
from critic.stages.run import RunSummary, Spent, failed


def sum_replies(records: Iterable[ModelTurn], out: Path, before: Collection[str] = ()) -> RunSummary:
    """Return the totals of a file of replies.

    A generation that several records share is one call, and a turn for which nothing was sent is none. `before` are the
    calls of earlier runs.
    """
    conditions = defaultdict[str, Counter[str]](Counter)
    failures, details, calls, spent = Counter[str](), dict[str, str](), dict[str, ModelTurn](), Spent()
    for line in map(without_thoughts_in, records):
        conditions[line.condition][{None: "answered", "not_run": "not_run"}.get(line.failure, "failed")] += 1
        if line.failure is not None:
            failures[line.failure] += 1
            details.setdefault(line.failure, line.detail or "no more is known")
        # A record without budget was not sent.
        if line.call is not None and line.seen and line.failure != "budget":
            calls.setdefault(line.call, line)
    counts = Counter[str](calls=len(calls))
    for line in calls.values():
        spent.add(line)
        counts["calls_cut_at_max_tokens"] += line.finish == "length" and line.failure is None
        counts["images"] += sum(len(message.images) for message in line.seen)
        if line.thoughts is not None:
            counts["with_thoughts"] += 1
    turns = sum(tally.total() for tally in conditions.values())
    facts = {"conditions": {name: dict(tally) for name, tally in sorted(conditions.items())}, "turns": turns}
    lines = [f"{'condition':<30}{'answered':>9}{'failed':>8}{'not run':>9}"]
    for name, tally in sorted(conditions.items()):
        lines.append(f"{name:<30}{tally['answered']:>9}{tally['failed']:>8}{tally['not_run']:>9}")
    earlier = f", {count} of them in earlier runs" if (count := len(calls.keys() & before)) else ""
    lines += [f"{turns} turns by {len(calls)} calls{earlier}", *spent.lines()]
    if counts["calls_cut_at_max_tokens"]:
        lines.append(f"{counts['calls_cut_at_max_tokens']} replies cut at --max-tokens")
    if thinking := counts["with_thoughts"]:
        lines.append(f"{thinking} replies have thoughts: they are kept beside the reply, and shown to no later turn")
    lines += [f"{name}: {count} turns, first: {details[name]}" for name, count in failures.most_common()]
    facts |= {"failed": dict(failures), **counts, **spent.facts()}
    return RunSummary(count=turns, failures=failures, facts=facts, lines=[*lines, f"{out}: {turns} turns"])


def sum_judgments(records: Iterable[Judgment], out: Path, unit: str) -> RunSummary:
    """Sum up a file of judgments. What several judgments share was asked once, and its tokens count once."""
    failures, counts, spent = Counter[str](), Counter[str](), Spent()
    requests = set[tuple[str, str | None]]()
    count = 0
    for judgment in records:
        count += 1
        if judgment.failure is not None:
            failures[judgment.failure] += 1
        counts["unread_ties"] += judgment.unread
        counts["without_the_judgment_of_a_turn"] += judgment.unjudged > 0 and judgment.failure is None
        if judgment.protocol is None:
            spent.add(judgment)
        elif judgment.asked is None:
            counts["without_an_answer"] += 1
        elif (name := (judgment.conversation.id, judgment.asked)) not in requests:
            requests.add(name)
            for call in judgment.calls:
                spent.add(call)
    facts = {f"{unit}s": count, "failed": dict(failures), **counts, "shortened_prompts": dict(spent.shortened)}
    facts |= {"asked": len(requests)} if requests else {}
    lines = [f"{out}: {count} {unit}s, {failed(failures)}"]
    for reason, text in (
        ("without_the_judgment_of_a_turn", "conversations were judged without the judgment of a turn, which failed"),
        ("unread_ties", "verdicts could not be read and count as ties"),
        ("without_an_answer", "verdicts had no answer to judge, or no judgment of a turn to go by"),
    ):
        lines += [f"{counts[reason]} {text}"] if counts[reason] else []
    return RunSummary(count=count, failures=failures, facts=facts | spent.facts(), lines=[*lines, *spent.lines()])
