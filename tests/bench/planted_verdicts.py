"""What the reader makes of generated judges' replies, many of them with a planted verdict.

python tests/bench/planted_verdicts.py              # 14,000 replies, half a minute
python tests/bench/planted_verdicts.py --replies 2000 --seed 1 --show planted

Prints a table by group of verdict forms, and the forms and frames that are read wrongly most often. `ratio`: planted
verdicts that a reader which takes the last `key: value` would read ÷ those that ours reads (at least one).
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from planted_replies import GeneratedReply, generate, outcome

_LAST = re.compile(r"(?:Rating|Score|Verdict|Correct|评分|裁决|是否正确)\W*(\w+)", re.IGNORECASE)


def read_last(reply: GeneratedReply) -> str | None:
    """Return what follows the last key of a verdict, as scripts of many benchmarks do."""
    values = _LAST.findall(reply.text)
    return values[-1] if values else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replies", type=int, default=14_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", default="")
    parser.add_argument("--limit", type=int, default=30)
    options = parser.parse_args()
    began = time.process_time()
    groups, forms, frames, failures = (
        Counter[tuple[str, str]](),
        Counter[tuple[str, str, str]](),
        Counter[tuple[str, str]](),
        Counter[str](),
    )
    naive = shown = 0
    for reply in generate(options.replies, options.seed):
        result, failure = outcome(reply)
        if result == "failure" and reply.frame == "ordinary" and reply.right:
            result = "needless"
        groups[reply.group, result] += 1
        forms[reply.kind, reply.form, result] += 1
        frames[reply.frame, result] += 1
        failures[failure] += 1
        values = (reply.planted or {}).values()
        naive += read_last(reply) in [str(value) for value in values]
        if result == options.show and shown < options.limit:
            shown += 1
            print(f"--- {reply.kind} {reply.group} {reply.frame} {reply.right} {reply.planted}\n{reply.text}")
    results = ("right", "failure", "needless", "planted", "wrong")
    print("| group | " + " | ".join(results) + " |\n|---|" + "---|" * len(results))
    for group in ("known", "asked", "other", "none"):
        print(f"| {group} | " + " | ".join(str(groups[group, result]) for result in results) + " |")
    for title, counts in (("form", forms), ("frame", frames)):
        for result in ("needless", "planted", "wrong"):
            worst = Counter({key[:-1]: n for key, n in counts.items() if key[-1] == result}).most_common(12)
            print(title, result, worst)
    print(dict(failures))
    total = {result: sum(n for (_, key), n in groups.items() if key == result) for result in results}
    ordinary = sum(n for (frame, _), n in frames.items() if frame == "ordinary")
    print(
        json.dumps(
            {
                "name": "planted_verdicts",
                "ratio": naive / max(1, total["planted"]),
                "replies": options.replies,
                "ordinary": ordinary,
                **total,
                "seconds": round(time.process_time() - began, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
