"""What the reader makes of generated judges' replies, many of them with a planted verdict.

python tests/bench/planted_verdicts.py              # 14,000 replies, half a minute
python tests/bench/planted_verdicts.py --replies 2000 --seed 1

Prints a table by group of verdict forms. `ratio`: planted verdicts that a reader which takes the last `key: value`
would read ÷ those that ours reads (at least one).
"""

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))
from planted_replies import GeneratedReply, generate, outcome

_LAST = re.compile(r"(?:Rating|Score|Verdict|Correct|评分|裁决|是否正确)\W*(\w+)", re.IGNORECASE)


def read_last(reply: GeneratedReply) -> str | None:
    """Return what follows the last key of a verdict, as scripts of many benchmarks do."""
    values = _LAST.findall(reply.text)
    return values[-1] if values else None


def main(replies: int = 14_000, seed: int = 0) -> None:
    began = time.process_time()
    groups, naive = Counter[tuple[str, str]](), 0
    for reply in generate(replies, seed):
        result, _ = outcome(reply)
        if result == "failure" and reply.frame == "ordinary" and reply.right:
            result = "needless"
        groups[reply.group, result] += 1
        naive += read_last(reply) in [*map(str, (reply.planted or {}).values())]
    results = ("right", "failure", "needless", "planted", "wrong")
    print("| group | " + " | ".join(results) + " |\n|---|" + "---|" * len(results))
    for group in ("known", "asked", "other", "none"):
        print(f"| {group} | " + " | ".join(str(groups[group, result]) for result in results) + " |")
    total = {result: sum(n for (_, key), n in groups.items() if key == result) for result in results}
    facts = {"replies": replies, **total, "seconds": round(time.process_time() - began, 1)}
    print(json.dumps({"name": "planted_verdicts", "ratio": naive / max(1, total["planted"]), **facts}))


if __name__ == "__main__":
    typer.run(main)
