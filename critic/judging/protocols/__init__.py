"""The protocols by which a model's conversations are judged: each module of this folder is one, with all that is known
of it. critic/judging/README.md says how to add one.

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
    """A way to judge conversations, which the module of its name in this folder defines: `PROTOCOL = Protocol(…)`.

    - `scale`: the lowest and the highest score of a verdict.
    - `form`, `whole_form`: the forms (critic.judging.forms) in which a judge is asked about a turn and about the whole
      conversation, without their flags, which follow the options of `critic judge`. A protocol without a `form` takes
      the one that the user chose (`--prompt`); without a `whole_form` it judges turns only.
    - `needs`: the fields that a turn must have, or it is not judged. The reference is not needed where two models are
      compared without it.
    - `compares`: a verdict is on two answers, the model's and the reference's or another model's, in an order.
    - `show_turn`, `show_whole`: functions that return the material of a turn and of the whole conversation of an
      Assignment (critic.judging.assignments). `show_whole` takes the judgments of the turns as well.
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
        """Return whether a verdict is a rating on 1..10."""
        return self.scale == TEN

    def lacks(self, turn: ConversationTurn, judging: str = "standard", backed: bool = True) -> str | None:
        """Return the field that the judge needs and the turn lacks, or None. Such turns are skipped.

        The reference counts only if the judge is to see it (`backed`). An empty reference is one.
        """
        if judging == "no_focus" and turn.focus is None:
            return "focus points"
        required = (name for name in self.needs if backed or name != "reference")
        return next((name for name in required if getattr(turn, name) in (None, [])), None)


@cache
def load(name: str) -> Protocol:
    """Return the protocol of a name. Raises UsageError for an unknown one."""
    if name not in PROTOCOLS:
        choices = f"{did_you_mean(name, PROTOCOLS)}choose {', '.join(PROTOCOLS)}"
        raise UsageError(f"unknown protocol {name!r}; {choices}")
    protocol: Protocol = import_module(f"{__name__}.{name}").PROTOCOL
    return protocol
