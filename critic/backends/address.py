"""Parse a server's base URL, build the URLs of its routes, and print it without secrets."""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from critic.errors import SECRET_NAME

_DEPLOYMENT = re.compile(r"/deployments/([^/]+)$")
"""Matches the part of an Azure URL that names the deployed model."""

_OUTSIDE_V1 = {"/tokenize", "/classify", "/pooling", "/metrics"}
"""vLLM's own routes. They are relative to the root of the server, not to `/v1`."""


class Address(NamedTuple):
    """A server's address, split into parts.

    `api`: base URL without credentials, query and final slash; routes such as `/chat/completions` are appended to it.
    `query`: the query string of every request, or "".
    `user`: USER:PASSWORD, decoded, or None.
    `azure`: True for Azure, which takes the API key in the header `api-key`, and whose list of models does not show
        which ones are deployed.
    `deployment`: the model that the URL names, or None.
    """

    api: str
    query: str
    user: str | None
    azure: bool
    deployment: str | None

    @property
    def root(self) -> str:
        """The base URL without `/v1`, to which vLLM's own routes are appended."""
        return self.api.removesuffix("/v1")

    @property
    def secrets(self) -> list[str]:
        """The API keys in the URL's query, then its password ("" if there is none)."""
        keys = [value for name, value in parse_qsl(self.query) if SECRET_NAME.search(name)]
        return [*keys, (self.user or "").partition(":")[2]]

    def url(self, route: str) -> str:
        """Return the URL of a route, of OpenAI's API (`/models`) or of vLLM's own (`/tokenize`)."""
        base = self.root if route in _OUTSIDE_V1 else self.api
        return f"{base}{route}" + (f"?{self.query}" if self.query else "")


def normalize_url(url: str) -> str:
    """Return a base URL in the spelling that OpenAI's client expects.

    A final slash and `/chat/completions` are dropped, and `/v1` is added if there is no path. A text that is not a URL
    is returned unchanged.

    >>> normalize_url("https://open.bigmodel.cn/api/paas/v4/chat/completions")
    'https://open.bigmodel.cn/api/paas/v4'
    >>> normalize_url("http://127.0.0.1:8000/")
    'http://127.0.0.1:8000/v1'
    """
    if "://" not in url:
        return url
    scheme, host, path, query, _ = urlsplit(url.strip())
    path = path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return f"{scheme}://{host}{path or '/v1'}" + (f"?{query}" if query else "")


def parse(url: str) -> Address:
    """Split a base URL, in any spelling that `normalize_url` accepts, into its parts."""
    scheme, place, path, query, _ = urlsplit(normalize_url(url))
    user, _, host = place.rpartition("@")
    deployment = _DEPLOYMENT.search(path)
    # Behind a company's own host, Azure is recognised by the API version, which only Azure requires.
    return Address(
        api=f"{scheme}://{host}{path}",
        query=query,
        user=unquote(user) if user else None,
        azure="api-version=" in query or host.partition(":")[0].endswith(".azure.com"),
        deployment=unquote(deployment[1]) if deployment else None,
    )


def redact_url(url: str) -> str:
    """Return a URL that is safe to print: without user, password and keys in the query.

    A text that is not a URL is returned unchanged.

    >>> redact_url("https://me:pw@api.example/v1/?api-version=2&key=k1")
    'https://api.example/v1?api-version=2'
    """
    if "://" not in url:
        return url
    address = parse(url)
    public = [(name, value) for name, value in parse_qsl(address.query, True) if not SECRET_NAME.search(name)]
    return address.api + (f"?{urlencode(public)}" if public else "")
