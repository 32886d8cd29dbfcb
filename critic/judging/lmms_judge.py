"""The judge `critic` of lmms-eval: its tasks ask the judge that `critic serve` serves, whatever model they name.

    API_TYPE=critic OPENAI_API_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none lmms-eval eval --tasks mmvet …

lmms-eval has an interface for judges (`ProviderFactory.register_provider`), but entry points only for models. It calls
those when it starts, and `register` is one that adds no model. A program that imports lmms_eval.llm_judge before
lmms_eval.models calls `register` itself. lm-evaluation-harness has no interface for judges.
"""

import os
from dataclasses import replace
from pathlib import Path

from lmms_eval.llm_judge import ProviderFactory, Request, Response, ServerConfig
from lmms_eval.llm_judge.providers import OpenAIProvider


class CriticJudge(OpenAIProvider):  # type: ignore[misc]
    """The judge that is served at OPENAI_API_URL. It answers under its own name, which lmms-eval's logs keep."""

    def __init__(self, config: ServerConfig | None = None) -> None:
        """Find the judge's name.

        Raises UsageError if no server answers, or if the judge is not that of the certificate CRITIC_CERTIFICATE:
        lmms-eval would go on, and count a request that fails as a score of 0.
        """
        # lmms-eval imports this module whenever it starts, whichever judge is asked.
        from critic.backends.openai import OpenAIBackend  # noqa: PLC0415 - as above
        from critic.certificate import check_certificate  # noqa: PLC0415 - as above

        super().__init__(config)
        self.served = OpenAIBackend(self.base_url, api_key=self.api_key).choose(None)
        processors = {self.served.name: self.served.processor} if self.served.processor else {}
        if file := os.environ.get("CRITIC_CERTIFICATE"):
            check_certificate(Path(file), processors, {}, judge=self.served.name)

    def evaluate(self, request: Request) -> Response:
        """Return the judge's reply. Tasks name a model of OpenAI in `request.config`."""
        config = replace(request.config or self.config, model_name=self.served.name)
        return super().evaluate(replace(request, config=config))


def register() -> list[str]:
    """Make the judge known to lmms-eval as API_TYPE=critic, and return no models."""
    ProviderFactory.register_provider("critic", CriticJudge)
    return []
