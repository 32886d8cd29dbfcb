"""Which images a request may show the judge: how many, how large, and from where.

Data URIs; files below the folder of `--allowed-local-media-path`; from the network only what `--allowed-media-domains`
names. Each violation is a Refusal with status 400, before vLLM reads anything (of a missing file it makes a 500).
"""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec
from replies import Refusal

from critic.images import MAX_BYTES, MAX_PIXELS, ImageError, Images

MOST_IMAGES = 16
"""Images in one request, unless said otherwise."""

NO_HOST = "none.invalid"
"""A name that no host can have."""

ELSEWHERE = {"metadata", "tools", "functions", "response_format", "structured_outputs", "chat_template_kwargs"}
"""Fields of a request that show no images, whatever their keys are called."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` holds the files that may be named, `domains` are the hosts from which vLLM may fetch."""

    most: int = MOST_IMAGES
    max_bytes: int = MAX_BYTES
    max_pixels: int = MAX_PIXELS
    folder: str | None = None
    domains: list[str] = []

    def words(self) -> list[str]:
        """What vLLM is told of it: to no host at all it would take an empty list for every one."""
        folder = ["--allowed-local-media-path", self.folder] if self.folder else []
        return [*folder, "--allowed-media-domains", *(self.domains or [NO_HOST])]

    def environment(self) -> dict[str, str]:
        """The same limits for what vLLM fetches itself."""
        megabytes = max(1, -(-self.max_bytes // 1_000_000))
        return {
            "VLLM_MAX_IMAGE_PIXELS": str(self.max_pixels),
            "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": str(megabytes),
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        }


class Gate:
    """Holds requests to the rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        root = Path(rules.folder) if rules.folder else Path.cwd()
        self._images = Images(root, max_bytes=rules.max_bytes, max_pixels=rules.max_pixels)

    def check(self, request: Any) -> None:
        """Raises Refusal for the first image of a request, whatever its route, that the rules do not let through."""
        found = list(urls(request))
        if len(found) > self.rules.most:
            raise _refused("too_many_images", f"{len(found)} images; at most {self.rules.most} (--max-images)")
        for number, url in enumerate(found, 1):
            try:
                self._look(url)
            except ImageError as error:
                raise _refused(error.failure, f"image {number}: {error}") from None

    def _look(self, url: str) -> None:
        where = urlsplit(url if len(url) < 4096 else url[:4096])
        if where.scheme in ("http", "https"):
            if where.hostname not in self.rules.domains:
                why = "not fetched from the network; send data URIs, or name its host with --allowed-media-domains"
                raise ImageError("image_outside_root", f"{where.hostname}: {why}")
        elif where.scheme == "file":
            if self.rules.folder is None:
                raise ImageError("image_outside_root", "no files are read without --allowed-local-media-path")
            self._images.check(url2pathname(where.netloc + where.path))
        else:
            self._images.check("data URI", url)


def urls(request: Any) -> Iterator[str]:
    """Every address of an image, a sound or a film in a request, in order."""
    waiting: list[Any] = [request]
    if isinstance(request, dict):
        shown = request["images"] if isinstance(request.get("images"), list) else []
        others = {key: one for key, one in request.items() if key not in ELSEWHERE}
        waiting = [*(one for one in reversed(shown) if isinstance(one, str)), others]
    while waiting:  # not by recursion: what is nested deeper than that goes would not be looked at
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            waiting += [one for one in reversed(value) if isinstance(one, dict | list)]
        elif isinstance(value, dict):
            found = ((_address(key, one, value), one) for key, one in reversed(value.items()))
            waiting += [address or one for address, one in found if address or isinstance(one, dict | list)]


def _address(key: str, value: Any, part: dict[str, Any]) -> str | None:
    """What a field of a part shows: a text, an object's `url`, or Anthropic's `source`, of base64 as the data URI that
    vLLM makes of it."""
    if key == "source" and part.get("type") == "image" and isinstance(value, dict) and value.get("type") != "url":
        return f"data:{value.get('media_type', 'image/jpeg')};base64,{value.get('data', '')}"
    if key in ("image_url", "audio_url", "video_url") or (key == "source" and part.get("type") == "image"):
        address = value.get("url") if isinstance(value, dict) else value
        return address if isinstance(address, str) else None
    return None


def _refused(code: str, message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, code, message)
