"""A verdict to request: its sample, its form, and the inputs of its prompt."""

from msgspec import Struct
from msgspec.structs import replace

from critic.judging.forms import JudgeRequest
from critic.records import Failure, Judgment, PromptInputs, Sample


class PlannedVerdict(Struct, frozen=True, kw_only=True):
    """A verdict to request from a judge in the form called `form`.

    - `judging`, `unjudged`: as in Judgment.
    - `problem`: failure and explanatory sentence if there is nothing to judge (`material` is then None), else None.
    - `material`: the inputs of the prompt. In a comparison the model's side is first.
    - `requests`: one per presentation order once a judge has prepared it; none if there is nothing to judge.
    - `prompt_hash`, `asked`: as in Judgment, also set then. Verdicts on one conversation with the same `asked` have
      identical prompts, which are sent once.
    """

    sample: Sample
    form: str
    protocol: str | None = None
    judging: str = "standard"
    unjudged: int = 0
    problem: tuple[Failure, str] | None = None
    material: PromptInputs | None = None
    requests: list[JudgeRequest] = []
    prompt_hash: str = ""
    asked: str | None = None

    def of(self, judgment: Judgment) -> Judgment:
        """Return `judgment`, made for this planned verdict or another one with the same prompt, as that of this one."""
        names = ("sample", "protocol", "judging", "unjudged", "prompt_hash", "asked")
        return replace(judgment, prompt=self.form, **{name: getattr(self, name) for name in names})
