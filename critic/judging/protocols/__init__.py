"""The protocols: how benchmarks have a model's conversations judged. Each module of this folder defines one.

critic/judging/README.md says how to add a protocol.

>>> load("direct").scale
(1, 10)
>>> [name for name in PROTOCOLS if load(name).compares]
['pairwise']
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from msgspec import Struct

from critic.errors import UsageError, did_you_mean
from critic.records import TEN, ConversationTurn, JudgeConfig, Judgment, PromptInputs

PROTOCOLS = tuple(sorted(module.name for module in iter_modules(__path__)))


class Protocol(Struct, frozen=True, kw_only=True):
    """A way to judge conversations. The module of its name in this folder defines `PROTOCOL = Protocol(…)`.

    - `scale`: the lowest and the highest score.
    - `form`: base name of the form (critic.judging.forms) in which a turn is judged; None if the user chooses the form
      (`--prompt`). Options of `critic judge` add flags to the name.
    - `whole_form`: likewise for the whole conversation; None if only turns are judged.
    - `needs`: fields of ConversationTurn that a turn must have to be judged. If two models are compared without showing
      the reference, it is not needed.
    - `compares`: the verdict compares the model's answer with the reference or with another model's answer.
    - `show_turn`, `show_whole`: functions that return the prompt inputs for a turn and for the whole conversation of an
      Assignment (critic.judging.assignments). `show_whole` also takes the judgments of the turns.
    """

    scale: tuple[float, float]
    form: str | None = None
    whole_form: str | None = None
    needs: tuple[str, ...] = ("reference",)
    compares: bool = False
    show_turn: Callable[[Any, int, JudgeConfig], PromptInputs]
    show_whole: Callable[[Any, JudgeConfig, Sequence[Judgment]], PromptInputs] | None = None

    @property
    def rates(self) -> bool:
        """Return True if the protocol's verdicts are ratings on 1..10."""
        return self.scale == TEN

    def lacks(self, turn: ConversationTurn, judging: str = "standard", backed: bool = True) -> str | None:
        """Return the name of a required field that the turn lacks, or None. A turn that lacks one is not judged.

        Args:
            judging: The ablation (records.Ablation); "no_focus" also requires focus points.
            backed: False if two models are compared without the reference, which is then not required.

        An empty reference counts as present.
        """
        if judging == "no_focus" and turn.focus is None:
            return "focus points"
        required = (name for name in self.needs if backed or name != "reference")
        return next((name for name in required if getattr(turn, name) in (None, [])), None)


@cache
def load(name: str) -> Protocol:
    """Return the protocol called `name`. Raise UsageError if there is none."""
    if name not in PROTOCOLS:
        raise UsageError(f"unknown protocol {name!r}; {did_you_mean(name, PROTOCOLS)}choose {', '.join(PROTOCOLS)}")
    protocol: Protocol = import_module(f"{__name__}.{name}").PROTOCOL
    return protocol
