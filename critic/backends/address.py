"""Addresses of servers: where requests go, and how an address is named without its secrets."""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from critic.errors import SECRET_NAME

_DEPLOYMENT = re.compile(r"/deployments/([^/]+)$")
"""Where Azure's URLs name what they serve."""


class Address(NamedTuple):
    """A server's address in parts. `api` is the base URL, without credentials, slash and query: `/chat/completions`
    follows it. `query` goes with every request. `user` is USER:PASSWORD, decoded. `azure`: keys are sent as `api-key`,
    and the list of models is not that of the deployments. `deployment` is the model that the URL itself names."""

    api: str
    query: str
    user: str | None
    azure: bool
    deployment: str | None

    @property
    def root(self) -> str:
        """The address without `/v1`, below which vLLM has routes of its own."""
        return self.api.removesuffix("/v1")

    @property
    def secrets(self) -> list[str]:
        """The password and the keys that the URL holds."""
        keys = [value for name, value in parse_qsl(self.query) if SECRET_NAME.search(name)]
        return [*keys, (self.user or "").partition(":")[2]]

    def url(self, route: str) -> str:
        """Return the URL of an OpenAI route, such as `/models`."""
        return self._with_query(f"{self.api}{route}")

    def beside(self, route: str) -> str:
        """Return the URL of one of vLLM's own routes, such as `/tokenize`."""
        return self._with_query(f"{self.root}{route}")

    def _with_query(self, url: str) -> str:
        return f"{url}?{self.query}" if self.query else url


def normalize_url(url: str) -> str:
    """Return the one spelling of a base URL: without slash or `/chat/completions` at its end, and with `/v1` if it has
    no path of its own, as OpenAI's client has it. What is no URL is returned as it is.

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
    """Read a base URL in any spelling."""
    scheme, place, path, query, _ = urlsplit(normalize_url(url))
    user, _, host = place.rpartition("@")
    deployment = _DEPLOYMENT.search(path)
    return Address(
        api=f"{scheme}://{host}{path}",
        query=query,
        user=unquote(user) if user else None,
        azure="api-version=" in query or host.partition(":")[0].endswith(".azure.com"),
        deployment=unquote(deployment[1]) if deployment else None,
    )


def redact_url(url: str) -> str:
    """Return the address as it is printed and kept: without user, password, and keys in the query. What is no URL is
    returned as it is.

    >>> redact_url("https://me:pw@api.example/v1/?api-version=2&key=k1")
    'https://api.example/v1?api-version=2'
    """
    if "://" not in url:
        return url
    address = parse(url)
    public = [(name, value) for name, value in parse_qsl(address.query, True) if not SECRET_NAME.search(name)]
    return address.api + (f"?{urlencode(public)}" if public else "")
