"""The scorer `critic/judge` for inspect_ai, which rates each answer by a judge that `critic serve` serves.

    inspect score logs/run.eval --scorer critic/judge -S base_url=http://127.0.0.1:8000/v1

inspect_ai finds the scorer by its entry point (pyproject.toml), and imports this module when that name is used.
Requests and scores are the same as those of `critic judge`.
"""

import os
from pathlib import Path

import msgspec
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from critic.backends.openai import OpenAIBackend
from critic.certificate import Certificate
from critic.errors import UsageError
from critic.human_scored import build_unscored
from critic.images import Images
from critic.judging.forms import rates
from critic.judging.judge import build_served, plan_response
from critic.judging.prompt import prompt_hash


@scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator]
def judge(base_url: str = "http://127.0.0.1:8000/v1", api_key: str | None = None, prompt: str | None = None) -> Scorer:
    """Return a scorer that rates answers on 1..10, with the sample's target as the reference.

    Args:
        base_url: The server's address.
        api_key: Its API key; by default the environment variable OPENAI_API_KEY.
        prompt: A form of `critic judge --prompt`; by default the first rating form that the judge was trained on.

    The metadata of each score name the judge and the form. If the server publishes a certificate that covers this form,
    they also contain the certificate's line to quote. If a verdict fails, the sample gets no score but an explanation.

    Raises UsageError if no server answers, or if its judge cannot rate an answer in this form.
    """
    key = api_key or os.environ.get("OPENAI_API_KEY")
    backend = OpenAIBackend(base_url, api_key=key)
    served = backend.choose(None)
    form = prompt or next(filter(rates, served.forms), "pointwise")
    if not rates(form) or form not in (served.forms or [form]):
        raise UsageError(f"{served.name} rates no answer in the form {form}; it learned: {', '.join(served.forms)}")
    # Images of a sample are data URIs, or files below this folder.
    images = Images(Path.cwd()) if backend.sees() else None
    metadata = {"judge": served.name, "form": form}
    certificate = msgspec.convert(served.about.get("certificate"), Certificate | None)
    if certificate and prompt_hash(form, images is not None) in certificate.how.prompts:
        metadata |= {"certificate": certificate.line(), "certificate_sha256": served.about["certificate_sha256"]}

    async def score(state: TaskState, target: Target) -> Score:
        messages = [] if isinstance(state.input, str) else state.input
        cells = {"id": str(state.sample_id), "question": state.input_text, "response": state.output.completion}
        parts = [part for message in messages for part in message.content]
        pictures = [part.image for part in parts if getattr(part, "type", "") == "image"]
        answer = build_unscored({**cells, "reference": target.text or None, "images": pictures})
        # inspect_ai may run each eval in another event loop, and never closes a scorer: a session that is kept would
        # belong to a loop that has ended.
        async with OpenAIBackend(base_url, api_key=key) as server:
            server.served = served
            rater = build_served(server, form, images)
            judgment = await rater.verdict_on(rater.prepare(plan_response(form, answer)))
        if judgment.score is None:
            failure = f"{judgment.verdict.failure}: {judgment.detail or judgment.reply}"
            return Score.unscored(answer=answer.text, explanation=failure, metadata=metadata)
        return Score(value=judgment.score, answer=answer.text, explanation=judgment.reply, metadata=metadata)

    return score
