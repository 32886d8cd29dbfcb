"""Images and videos by path under a data root, images also as data URIs. They are checked before they are sent, and
come from nowhere else.

Pillow is imported only when an image is loaded, PyAV only when a video is.
"""

import base64
import io
import math
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from msgspec.structs import replace

from critic.errors import UsageError, hash_value, located, notify, one_line, replace_surrogates
from critic.records import FRAMES, VIDEO, Conversation, ImageFailure, SentImage

T = TypeVar("T")

MAX_BYTES = 20_000_000
"""Default size limit of an image file, in bytes."""

MAX_PIXELS = 64_000_000
"""Size limit of an image, in pixels, checked in its header before it is decoded."""

ORIENTATION = 0x0112
"""EXIF tag of a picture's orientation; 1 means upright."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats that vision-language servers accept."""

CONTAINERS = "mov,matroska,avi,mpegts,mpeg,flv,ogg,asf,gif,mxf"
"""Formats of videos that are read, by FFmpeg's names.

FFmpeg itself would also take any text for a film, and would read the files and addresses that a playlist names.
"""

MARGIN = 2.0
"""Seconds before a frame at which decoding begins, since frames behind a key frame may be built on some before it."""

NO_FRAMES = "a video without frames that can be decoded; convert it to MP4, or leave the row out"
"""Error message for a file that is no video, or that holds only sound."""

NEEDS = "{}; without: infer --condition no_image, judge --images blind"
"""Error message if a library is not installed."""


class ImageError(Exception):
    """An image cannot be sent to a model; `failure` is the short name of the reason."""

    tries = 1

    def __init__(self, failure: ImageFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


def image_part(uri: str) -> dict[str, Any]:
    """Return the part of a message that shows the image with the URL or data URI `uri`."""
    return {"type": "image_url", "image_url": {"url": uri}}


class Image(SentImage, frozen=True, kw_only=True):
    """An image ready to be sent: its bytes (`data`), upright, of the MIME type `kind`.

    `time`: the time of a video's frame, such as "1.7 s"; "" for an image. `frames`: the frames of a video, which is
    itself its first one; empty for an image.
    """

    kind: str
    data: bytes
    time: str = ""
    frames: tuple["Image", ...] = ()

    @property
    def shown(self) -> tuple["Image", ...]:
        """The images that are sent: the frames of a video, or the image itself."""
        return self.frames or (self,)

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts of a message that show the image or video."""
        return put_times((image.time, image_part(image.uri)) for image in self.shown)

    @property
    def uri(self) -> str:
        """The image as a data URI."""
        return f"data:{self.kind};base64,{base64.b64encode(self.data).decode()}"


def put_times(shown: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the parts of a message that show images, each frame of a video behind its time.

    `shown`: the time ("" for an image) and the part of each.
    """
    pairs = (({"type": "text", "text": time}, part) for time, part in shown)
    return [part for pair in pairs for part in pair if part.get("text") != ""]


BY_HASH = "sha256:"
"""Prefix of the names of images that a benchmark's file contains."""


class Images:
    """Loads images and videos from files under the folder `root`, or images from data URIs: `load` returns one by its
    name.

    `max_bytes`: size limit of an image's file or data URI in bytes; a larger image is refused, as is one above
        MAX_PIXELS pixels.
    `resize_to`: most pixels of an image as sent; a larger one is shrunk with its proportions kept. None never shrinks.
    `shrunk`: format of a shrunk image, "png" (exact) or "jpeg" (small).
    `uris`: image name -> data URI, for images that a benchmark's file contains.
    `frames`: number of frames that show a video.

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
        frames: int = FRAMES,
    ) -> None:
        if not root.is_dir():
            raise UsageError(f"--data-root {root}: no such folder")
        # Pillow warns of sizes that are refused here by name.
        warnings.simplefilter("ignore", import_pillow().DecompressionBombWarning)
        self._root, self._max_bytes, self.resize_to = root.resolve(), max_bytes, resize_to
        self._shrunk, self.frames = shrunk, frames
        self.uris = dict(uris or {})
        # Neighbouring rows often share an image.
        self._cached, self._decoding = lru_cache(16)(self._load), threading.Lock()

    def facts(self) -> dict[str, Any]:
        """Return the entries for a sidecar: the image folder, the limits on bytes and pixels, and a video's frames."""
        limits = {"max_bytes": self._max_bytes, "max_pixels": self.resize_to, "frames": self.frames}
        return {"data_root": str(self._root), **limits}

    def state(self, names: Iterable[str]) -> str:
        """Return a hash over the named images that changes when one of their files is added, removed or rewritten.

        Images given as data URIs never change it. Raises UsageError if there are videos and no PyAV.
        """
        versions = dict[str, tuple[int, int]]()
        for name in sorted(names):
            # A missing file, or a name that no file can have, has no version.
            with suppress(OSError, ValueError):
                if not name.startswith("data:") and name not in self.uris:
                    file = self._find_file(name).stat()
                    versions[name] = file.st_size, file.st_mtime_ns
        return hash_value(repr(versions))

    def require(self, names: Iterable[str]) -> None:
        """Warn, before any request is made, if some of the named files are missing.

        Raises UsageError if all of them are missing, or if there are videos and no PyAV.
        """
        paths = {name: name.removeprefix(VIDEO) for name in names}
        files = [name for name, path in paths.items() if not re.match(r"\w+:", path) and name not in self.uris]
        missing = [name for name in files if not os.path.isfile(self._find_file(name))]  # noqa: PTH113 - raises nothing
        if missing:
            first = self._root / replace_surrogates(paths[missing[0]])
            text = f"images are not there, the first {first}; --data-root FOLDER says where"
            if len(missing) == len(files):
                raise UsageError(f"{len(missing)} of {len(files)} {text}")
            notify(f"warning: {len(missing)} of {len(files)} {text}")

    def _find_file(self, name: str) -> Path:
        """Return the path of the image or video `name`. If there is no such file, backslashes separate folders.

        Raises UsageError if it is a video and there is no PyAV.
        """
        if name.startswith(VIDEO):
            import_pyav()
        # Names are UTF-8, also if the locale is not.
        path = os.fsdecode(name.removeprefix(VIDEO).encode())
        is_there = "\\" not in path or (self._root / path).exists()
        return self._root / (path if is_there else path.replace("\\", "/"))

    def load(self, name: str) -> Image:
        """Return an image, or a video with its frames, fully decoded, so that a truncated file is detected.

        `name` is a path under the root (a video's behind VIDEO), a name in `uris`, or a data URI. Raises ImageError,
        naming the image, if it cannot be read or is refused.
        """
        # The answers to one video ask for it at once; only the first of them decodes it.
        with self._decoding if name.startswith(VIDEO) else nullcontext():
            return self._cached(name)

    def _load(self, name: str) -> Image:
        try:
            if name.startswith(VIDEO):
                return self._load_video(name)
            return _build(name, *self._check(self._read(name)))
        except ImageError as error:
            shown = "data URI" if name.startswith("data:") else name
            raise ImageError(error.failure, f"{shown}: {error}") from None

    def _load_video(self, name: str) -> Image:
        """Return a video with its frames, which are named as its parts (W3C Media Fragments: clip.mp4#t=1.7)."""

        # At once, since all frames of a long list would not fit into the memory as pixels.
        def encode(picture: Any) -> tuple[bytes, str, bool]:
            small, resized = _shrink(picture, self.resize_to)
            return _encode(small, "jpeg"), "image/jpeg", resized

        with self._open(name) as file:
            sampled = _sample_frames(file, self.frames, encode)
        frames = tuple(_build(f"{name}#t={time}", *sent, f"{time} s") for time, sent in sampled)
        return replace(frames[0], path=name, frames=frames)

    def _read(self, name: str) -> bytes:
        """Return the bytes of an image without decoding it; `name` is as in `load`.

        Raises ImageError as `_open` does, or if it is too large.
        """
        if name.startswith("data:") or name in self.uris:
            return _decode_uri(self.uris.get(name, name), self._max_bytes)
        with self._open(name) as file:
            _check_size(os.fstat(file.fileno()).st_size, self._max_bytes)
            return file.read()

    def _open(self, name: str) -> BinaryIO:
        """Open the file `name` under the root. Raises ImageError if it is missing, a URL, or outside the root."""
        if "://" in name:
            raise ImageError("image_outside_root", "URLs are not fetched; images come from the data root")
        try:
            path = self._find_file(name).resolve()
            if not path.is_relative_to(self._root):
                raise ImageError("image_outside_root", "leaves the data root")
            if not path.is_file():
                raise ImageError("image_missing", "no such file under the data root")
            return path.open("rb")
        # A loop of links, a NUL in the name, no permission. A record is published, so the path stays out of it.
        except (OSError, RuntimeError, ValueError) as error:
            raise ImageError("image_missing", getattr(error, "strerror", None) or one_line(error)) from None

    def _check(self, data: bytes) -> tuple[bytes, str, bool]:
        """Decode an image. Return the bytes to send, their MIME type, and True if the image was shrunk."""
        from PIL import ImageOps  # noqa: PLC0415 - not part of a plain installation

        with decode_image(data) as image:
            # Browsers, in which people rated it, heed the camera's orientation tag; not every server does.
            upright, resized = _shrink(ImageOps.exif_transpose(image), self.resize_to)
            # Pillow calls a JPEG with several pictures MPO.
            kind = self._shrunk if resized else "jpeg" if image.format == "MPO" else image.format.lower()
            if resized or image.getexif().get(ORIENTATION, 1) != 1:
                data = _encode(upright, kind)
            return data, f"image/{kind}", resized


def import_pillow() -> Any:
    """Import Pillow's Image module. Raises UsageError if it is not installed."""
    with located(NEEDS.format("images need Pillow: pip install pillow"), ImportError):
        from PIL import Image as module  # noqa: PLC0415 - not part of a plain installation
    return module


def import_pyav() -> Any:
    """Import PyAV. Raises UsageError if it is not installed."""
    with located(NEEDS.format("videos need PyAV: pip install av"), ImportError):
        import av  # noqa: PLC0415 - not part of a plain installation
    return av


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
    return put_on_white(image)


def put_on_white(image: Any) -> Any:
    """Return a Pillow image with transparent parts as RGB on white, and any other unchanged."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    shown = image.convert("RGBA")
    return import_pillow().alpha_composite(import_pillow().new("RGBA", shown.size, "white"), shown).convert("RGB")


def name_images(conversations: Iterable[Conversation]) -> tuple[list[Conversation], dict[str, str]]:
    """Replace the data URIs in conversations by short names (BY_HASH + SHA-256).

    Return the new conversations, and the data URIs by name.
    """
    conversations, short = [*conversations], dict[str, str]()
    for image in chain.from_iterable(turn.images for each in conversations for turn in each.turns):
        if image.startswith("data:"):
            short[image] = f"{BY_HASH}{hash_value(image)}"
    named = []
    for conversation in conversations:
        turns = [replace(turn, images=[short.get(name, name) for name in turn.images]) for turn in conversation.turns]
        named.append(replace(conversation, turns=turns))
    return named, {name: uri for uri, name in short.items()}


def _build(path: str, data: bytes, kind: str, resized: bool, time: str = "") -> Image:
    """Return an image with its hash; the arguments are fields of Image."""
    return Image(path=path, sha256=hash_value(data), kind=kind, data=data, resized=resized, time=time)


def _encode(image: Any, kind: str) -> bytes:
    """Return a Pillow image encoded in the format `kind`, with little or no loss."""
    out = io.BytesIO()
    quality: dict[str, dict[str, Any]] = {"jpeg": {"quality": 95}, "webp": {"lossless": True}}
    image.save(out, kind.upper(), **quality.get(kind, {}))
    return out.getvalue()


def _shrink(image: Any, pixels: int | None) -> tuple[Any, bool]:
    """Return a Pillow image as RGB, shrunk to at most `pixels` pixels, and True; or as it is, and False."""
    if pixels is None or image.width * image.height <= pixels:
        return image, False
    scale = math.sqrt(pixels / (image.width * image.height))
    width = min(max(1, int(image.width * scale)), pixels)
    height = min(max(1, int(image.height * scale)), pixels // width)
    return convert_to_8_bits(image).convert("RGB").resize((width, height)), True


@contextmanager
def _open_stream(file: BinaryIO) -> Iterator[tuple[Any, Any]]:
    """Yield a video's container and its first video stream. Raises ImageError if there is none, or FFmpeg fails."""
    av, options = import_pyav(), {"format_whitelist": CONTAINERS, "max_pixels": str(MAX_PIXELS)}
    file.seek(0)
    try:
        with av.open(file, options=options) as container:
            container.streams.video[0].thread_type = "AUTO"
            yield container, container.streams.video[0]
    except (av.FFmpegError, IndexError):
        raise ImageError("image_unreadable", NO_FRAMES) from None


def _sample_frames(file: BinaryIO, count: int, encode: Callable[[Any], T]) -> list[tuple[str, T]]:
    """Return at most `count` frames of a video, evenly spaced from its first to its last, each with its time.

    `encode`: turns a Pillow image into what is returned.

    A time is in seconds since the first frame, as text: "1.7", with more digits only if frames are closer. Images are
    upright. No frame comes twice, so a video of fewer frames gives all that it has. Raises ImageError if there is none.
    """
    # No duration in a header is trusted. Packets of some containers have only the time at which they are decoded.
    with _open_stream(file) as (container, stream):
        shown = (packet for packet in container.demux(stream) if packet.size and not packet.is_discard)
        stamps, unit = [packet.dts if packet.pts is None else packet.pts for packet in shown] or [0], stream.time_base
    first, last, frames = min(stamps), max(stamps), dict[int, T]()
    moments = [first + (last - first) * number / max(count - 1, 1) for number in range(count)]
    for stamp in sorted({min(stamps, key=lambda stamp: abs(stamp - moment)) for moment in moments}):
        frame = _find_frame(file, stamp, first, round(MARGIN / unit))
        if frame is not None:
            frames[frame.pts] = encode(frame.to_image().rotate(frame.rotation, expand=True))
    if not frames:
        raise ImageError("image_unreadable", NO_FRAMES)
    seconds = [float((place - min(frames)) * unit) for place in frames]
    digits = next(digits for digits in range(1, 20) if len({f"{each:.{digits}f}" for each in seconds}) == len(seconds))
    return [(f"{each:.{digits}f}", sent) for each, sent in zip(seconds, frames.values(), strict=True)]


def _find_frame(file: BinaryIO, stamp: int, first: int, margin: int) -> Any:
    """Return the frame with the time `stamp`, the next one if none has it, or None behind the last frame.

    `first`: the first frame's time. `margin`: how long before `stamp` decoding begins, since a frame needs those before
    it. All in units of the stream's time base.
    """
    # Where the place is not found, all frames before it are decoded.
    for start in (stamp - margin, first):
        with _open_stream(file) as (container, stream):
            if start > first:
                container.seek(start, stream=stream)
            frame = next((frame for frame in container.decode(stream) if (frame.pts or 0) >= stamp), None)
        if frame is not None and frame.pts == stamp:
            break
    return frame


def _decode_uri(uri: str, max_bytes: int) -> bytes:
    """Return the bytes in a base64 data URI. Raises ImageError if it is malformed or holds more than `max_bytes` bytes.

    >>> _decode_uri("data:image/png;base64,aGk=", max_bytes=10)
    b'hi'
    """
    head, comma, text = uri.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise ImageError("image_unreadable", "a data URI must read data:image/…;base64,…")
    # Counted before decoding, so that a huge text is refused without a copy.
    _check_size(3 * len(text) // 4 - text[-2:].count("="), max_bytes)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ImageError("image_unreadable", f"not base64: {error}") from None


def _check_size(size: int, max_bytes: int) -> None:
    """Raise ImageError if `size` exceeds `max_bytes`."""
    if size > max_bytes:
        raise ImageError("image_too_large", f"{size:,} bytes; at most {max_bytes:,}")
