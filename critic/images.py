"""Images by path under a data root, or as data URIs. They are checked before they are sent, and come from nowhere else.

Pillow is imported only when an image is loaded.
"""

import base64
import hashlib
import io
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from critic.errors import UsageError, one_line, replace_surrogates
from critic.records import Conversation, ImageFailure, SentImage

MAX_BYTES = 20_000_000
"""Default size limit of an image file, in bytes."""

MAX_PIXELS = 64_000_000
"""Size limit of an image, in pixels, checked in its header before it is decoded."""

ORIENTATION = 0x0112
"""EXIF tag of a picture's orientation; 1 means upright."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats that vision-language servers accept."""


class ImageError(Exception):
    """An image cannot be sent to a model; `failure` is the short name of the reason."""

    tries = 1

    def __init__(self, failure: ImageFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Image(SentImage, frozen=True, kw_only=True):
    """An image ready to be sent: its bytes (`data`), upright, of the MIME type `kind`."""

    kind: str
    data: bytes

    @property
    def uri(self) -> str:
        """The image as a data URI."""
        return f"data:{self.kind};base64,{base64.b64encode(self.data).decode()}"


BY_HASH = "sha256:"
"""Prefix of the names of images that a benchmark's file contains."""


class Images:
    """Loads images from files under the folder `root` or from data URIs: `load` returns one by its name (`_load`).

    `max_bytes`: size limit of a file or data URI in bytes; a larger image is refused, as is one above MAX_PIXELS
        pixels.
    `resize_to`: most pixels of an image as sent; a larger one is shrunk with its proportions kept. None never shrinks.
    `shrunk`: format of a shrunk image, "png" (exact) or "jpeg" (small).
    `uris`: image name -> data URI, for images that a benchmark's file contains.

    Raises UsageError if Pillow or `root` is missing.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: int = MAX_BYTES,
        resize_to: int | None = None,
        shrunk: str = "png",
        uris: Mapping[str, str] | None = None,
    ) -> None:
        if not root.is_dir():
            raise UsageError(f"--data-root {root}: no such folder")
        # Pillow warns of sizes that are refused here by name.
        warnings.simplefilter("ignore", import_pillow().DecompressionBombWarning)
        self._root, self._max_bytes, self.resize_to = root.resolve(), max_bytes, resize_to
        self._shrunk = shrunk
        self.uris = dict(uris or {})
        # Neighbouring rows often share an image.
        self.load = lru_cache(16)(self._load)

    def facts(self) -> dict[str, Any]:
        """Return the entries for a sidecar: the image folder, and the limits on bytes and pixels."""
        return {"data_root": str(self._root), "max_bytes": self._max_bytes, "max_pixels": self.resize_to}

    def state(self, names: Iterable[str]) -> str:
        """Return a hash over the named images that changes when one of their files is added, removed or rewritten.

        Images given as data URIs never change it.
        """
        digest = hashlib.sha256()
        for name in sorted(names):
            if not name.startswith("data:") and name not in self.uris:
                try:
                    file = self._find_file(name).stat()
                    version = [file.st_size, file.st_mtime_ns]
                # A missing file, or a name that no file can have.
                except (OSError, ValueError):
                    version = []
                digest.update(f"{name}\0{version}\0".encode())
        return digest.hexdigest()

    def require(self, names: Iterable[str]) -> None:
        """Warn, before any request is made, if some of the named image files are missing.

        Raises UsageError if all of them are missing.
        """
        files = [name for name in dict.fromkeys(names) if not re.match(r"\w+:", name) and name not in self.uris]
        missing = [name for name in files if not os.path.isfile(self._find_file(name))]  # noqa: PTH113 - raises nothing
        if missing:
            first = self._root / replace_surrogates(missing[0])
            text = (
                f"{len(missing)} of {len(files)} images are not there, the first {first}; --data-root FOLDER says where"
            )
            if len(missing) == len(files):
                raise UsageError(text)
            print(f"warning: {text}", file=sys.stderr)

    def _find_file(self, name: str) -> Path:
        """Return the path of the image `name`. If no such file exists, read backslashes in the name as folder
        separators."""
        # Names are UTF-8, also if the locale is not.
        file = self._root / os.fsdecode(name.encode())
        return file if "\\" not in name or file.exists() else self._root / os.fsdecode(name.replace("\\", "/").encode())

    def _load(self, name: str) -> Image:
        """Return the image `name`, fully decoded, so that a truncated file is detected.

        `name` is a path under the root, a name in `uris`, or a data URI. Raises ImageError, naming the image, if it
        cannot be read or is refused.
        """
        try:
            data, kind, resized = self._check(self._read(name))
        except ImageError as error:
            shown = "data URI" if name.startswith("data:") else name
            raise ImageError(error.failure, f"{shown}: {error}") from None
        return Image(path=name, sha256=hashlib.sha256(data).hexdigest(), kind=kind, data=data, resized=resized)

    def _read(self, name: str) -> bytes:
        """Return the bytes of an image without decoding it; `name` is as in `_load`.

        Raises ImageError if it is missing, too large, a URL, or outside the root.
        """
        if name.startswith("data:") or name in self.uris:
            return _decode_uri(self.uris.get(name, name), self._max_bytes)
        if "://" in name:
            raise ImageError("image_outside_root", "URLs are not fetched; images come from the data root")
        try:
            path = self._find_file(name).resolve()
            if not path.is_relative_to(self._root):
                raise ImageError("image_outside_root", "leaves the data root")
            if not path.is_file():
                raise ImageError("image_missing", "no such file under the data root")
            _check_size(path.stat().st_size, self._max_bytes)
            return path.read_bytes()
        # A loop of links, a NUL in the name, no permission. A record is published, so the path stays out of it.
        except (OSError, RuntimeError, ValueError) as error:
            raise ImageError("image_missing", getattr(error, "strerror", None) or one_line(error)) from None

    def _check(self, data: bytes) -> tuple[bytes, str, bool]:
        """Decode an image. Return the bytes to send, their MIME type, and True if the image was shrunk."""
        from PIL import ImageOps  # noqa: PLC0415 - not part of a plain installation

        with decode_image(data) as image:
            if self.resize_to is not None and image.width * image.height > self.resize_to:
                small = _shrink(ImageOps.exif_transpose(image), self.resize_to)
                return _encode(small, self._shrunk), f"image/{self._shrunk}", True
            # Pillow calls a JPEG with several pictures MPO.
            kind = "jpeg" if image.format == "MPO" else image.format.lower()
            # Browsers, in which people rated it, heed the camera's orientation tag; not every server does.
            if image.getexif().get(ORIENTATION, 1) != 1:
                data = _encode(ImageOps.exif_transpose(image), kind)
            return data, f"image/{kind}", False


def import_pillow() -> Any:
    """Import Pillow's Image module. Raises UsageError if it is not installed."""
    try:
        from PIL import Image as module  # noqa: PLC0415 - not part of a plain installation
    except ImportError:
        raise UsageError(
            "images need Pillow: pip install pillow; without: infer --condition no_image, judge --images blind"
        ) from None
    return module


@contextmanager
def decode_image(data: bytes) -> Iterator[Any]:
    """Yield the bytes `data` decoded as a Pillow image; its format must be one of FORMATS.

    Raises ImageError if the header states more than MAX_PIXELS pixels, or if the data is truncated or not an image.
    Raises UsageError if Pillow is missing.
    """
    module = import_pillow()
    try:
        with module.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ImageError("image_too_large", f"{width} x {height} pixels; at most {MAX_PIXELS:,} in all")
            image.load()
            yield image
    except module.DecompressionBombError as error:
        raise ImageError("image_too_large", str(error)) from None
    except module.UnidentifiedImageError:
        raise ImageError("image_unreadable", f"no image of a known format ({', '.join(FORMATS)})") from None
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, OverflowError, MemoryError) as error:
        raise ImageError("image_unreadable", f"{type(error).__name__}: {error}") from None


def convert_to_8_bits(image: Any) -> Any:
    """Return a Pillow image as people see it on a screen.

    Scale 16-bit grey to 8 bits (Pillow's `convert` would turn it white), and put transparent images on white. Return
    any other image unchanged.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        import numpy as np  # noqa: PLC0415 - only such pictures need it

        return import_pillow().fromarray((np.clip(np.asarray(image, dtype=np.int64), 0, 65535) // 257).astype(np.uint8))
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    shown = image.convert("RGBA")
    return import_pillow().alpha_composite(import_pillow().new("RGBA", shown.size, "white"), shown).convert("RGB")


def name_images(conversations: Iterable[Conversation]) -> tuple[list[Conversation], dict[str, str]]:
    """Replace the data URIs in conversations by short names (BY_HASH + SHA-256).

    Return the new conversations, and the data URIs by name.
    """
    uris: dict[str, str] = {}

    def name(image: str) -> str:
        if not image.startswith("data:"):
            return image
        short = f"{BY_HASH}{hashlib.sha256(image.encode()).hexdigest()}"
        uris[short] = image
        return short

    named = []
    for conversation in conversations:
        turns = [replace(turn, images=list(map(name, turn.images))) for turn in conversation.turns]
        named.append(replace(conversation, turns=turns))
    return named, uris


def _encode(image: Any, kind: str) -> bytes:
    """Return a Pillow image encoded in the format `kind`, with little or no loss."""
    out = io.BytesIO()
    quality: dict[str, dict[str, Any]] = {"jpeg": {"quality": 95}, "webp": {"lossless": True}}
    image.save(out, kind.upper(), **quality.get(kind, {}))
    return out.getvalue()


def _shrink(image: Any, pixels: int) -> Any:
    """Return a Pillow image as RGB, shrunk to at most `pixels` pixels."""
    scale = math.sqrt(pixels / (image.width * image.height))
    width = min(max(1, int(image.width * scale)), pixels)
    height = min(max(1, int(image.height * scale)), pixels // width)
    return convert_to_8_bits(image).convert("RGB").resize((width, height))


def _decode_uri(uri: str, max_bytes: int) -> bytes:
    """Return the bytes in a base64 data URI. Raises ImageError if it is malformed or holds more than `max_bytes` bytes.

    >>> _decode_uri("data:image/png;base64,aGk=", max_bytes=10)
    b'hi'
    """
    head, comma, text = uri.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise ImageError("image_unreadable", "a data URI must read data:image/…;base64,…")
    # Estimated before decoding, so that a huge text is refused without a copy.
    _check_size(3 * (len(text) // 4 - 1), max_bytes)
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ImageError("image_unreadable", f"not base64: {error}") from None
    _check_size(len(data), max_bytes)
    return data


def _check_size(size: int, max_bytes: int) -> None:
    """Raise ImageError if `size` exceeds `max_bytes`."""
    if size > max_bytes:
        raise ImageError("image_too_large", f"{size:,} bytes; at most {max_bytes:,}")
