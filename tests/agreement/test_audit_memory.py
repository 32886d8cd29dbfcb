"""What each row more takes while an audit computes: bytes of the process, between two sizes."""

import subprocess
import sys

PROGRAM = """
import sys
import numpy as np
from critic.counting.coded import Coded
from critic.counting.columns import Column
from eval_agreement import bias, calibration
from eval_agreement import agreement_interval
from eval_agreement.page.pictures import bland_altman
from eval_agreement.rows import JudgedRows

rows, few = int(sys.argv[1]), 20
random, number = np.random.default_rng(0), np.arange(rows, dtype=np.int32)
human = Coded.of(random.integers(1, 11, rows, dtype=np.int8))
judge = human.map(lambda scores: np.clip(scores + 1, 1, 10)).at(np.where(random.random(rows) < 0.01, -1, number))
length, system = Coded.of(random.integers(10, 900, rows, dtype=np.int16)), Column(map(str, (number % 20).tolist()))
group = number // 20
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak so far is forgotten
audited = JudgedRows(human, judge, group, resamples=few)
bias.severity(audited), bias.central_tendency(audited), bias.verbosity(audited, length)
bias.offsets("answerer", audited, system)
calibration.reliability(audited), calibration.recalibration(audited), calibration.conformal(audited)
agreement_interval(human, judge, group, few), bland_altman(audited.human, audited.judge)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak(rows: int) -> int:
    """In bytes. `ru_maxrss` would begin with the memory of the tests."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(rows)], capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout)


def test_a_row_more_takes_few_bytes() -> None:
    """A million rows by two judges are to be audited in 2 GB: here one judge's arrays, a tenth of that."""
    small, large = 200_000, 1_000_000
    assert (peak(large) - peak(small)) / (large - small) < 200
