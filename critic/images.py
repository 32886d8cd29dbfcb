"""Load the images and videos of prompts and check them before they are sent.

They come from files under a folder (the data root), images also from data URIs. URLs are never fetched. Pillow is
imported only when an image is loaded, PyAV only when a video is.
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
"""Limit on the pixels (width times height) of an image, checked in the header before the image is decoded."""

ORIENTATION = 0x0112
"""EXIF tag of an image's orientation; 1 means upright."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Image formats, by Pillow's names, that servers of vision-language models accept."""

CONTAINERS = "mov,matroska,avi,mpegts,mpeg,flv,ogg,asf,gif,mxf"
"""Video formats that are accepted, by FFmpeg's names.

Without this list, FFmpeg would also read any text as a film, and the files and URLs that a playlist names.
"""

MARGIN = 2.0
"""How many seconds before a frame decoding begins. Frames after a key frame may depend on frames before it."""

NO_FRAMES = "a video without frames that can be decoded; convert it to MP4, or leave the row out"
"""Error message for a file that is not a video, or that contains only sound."""

NEEDS = "{}; without: infer --condition no_image, judge --images blind"
"""Error message if a library is not installed."""


class ImageError(Exception):
    """An image that cannot be sent to a model. `failure` is the short name of the reason."""

    tries = 1

    def __init__(self, failure: ImageFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


def image_part(uri: str) -> dict[str, Any]:
    """Return the message part that shows the image with the URL or data URI `uri`."""
    return {"type": "image_url", "image_url": {"url": uri}}


class Image(SentImage, frozen=True, kw_only=True):
    """An image or video, ready to be sent. Images are upright.

    `data`, `kind`: the bytes of the image and their MIME type; of a video, those of its first frame.
    `time`: the time of a video's frame, such as "1.7 s"; "" for an image.
    `frames`: the frames of a video; () for an image.
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
        """The message parts that show the image, or the frames of the video with their times."""
        return put_times((image.time, image_part(image.uri)) for image in self.shown)

    @property
    def uri(self) -> str:
        """The image as a data URI."""
        return f"data:{self.kind};base64,{base64.b64encode(self.data).decode()}"


def put_times(shown: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the message parts for images and frames of videos, with a text part for the time before each frame.

    `shown`: pairs of a time ("" for an image) and the message part that shows the image or frame.
    """
    pairs = (({"type": "text", "text": time}, part) for time, part in shown)
    return [part for pair in pairs for part in pair if part.get("text") != ""]


BY_HASH = "sha256:"
"""Prefix of the names that are given to images in data URIs (`name_images`)."""


class Images:
    """A loader of images and videos: `load` returns one by its name.

    `root`: the folder with the files (data root).
    `max_bytes`: size limit of an image's file, or of the bytes in its data URI. Larger images are refused, and so are
        images above MAX_PIXELS pixels.
    `resize_to`: most pixels (width times height) of an image as it is sent. A larger image is shrunk, with its
        proportions kept. None never shrinks.
    `shrunk`: format of a shrunk image, "png" (exact) or "jpeg" (small).
    `uris`: image name -> data URI, for images that a benchmark's file contains.
    `frames`: most frames that show a video.

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
        # `decode_image` refuses large images itself, so Pillow's warning is not needed.
        warnings.simplefilter("ignore", import_pillow().DecompressionBombWarning)
        self._root, self._max_bytes, self.resize_to = root.resolve(), max_bytes, resize_to
        self._shrunk, self.frames = shrunk, frames
        self.uris = dict(uris or {})
        # Neighbouring rows often share an image.
        self._cached, self._decoding = lru_cache(16)(self._load), threading.Lock()

    def facts(self) -> dict[str, Any]:
        """Return the settings to record in a sidecar: image folder, limits on bytes and pixels, frames of a video."""
        limits = {"max_bytes": self._max_bytes, "max_pixels": self.resize_to, "frames": self.frames}
        return {"data_root": str(self._root), **limits}

    def state(self, names: Iterable[str]) -> str:
        """Return a hash that changes when the file of a named image or video is added, removed or rewritten.

        Images in data URIs do not affect it. Raises UsageError if there are videos and PyAV is missing.
        """
        versions = dict[str, tuple[int, int]]()
        for name in sorted(names):
            # A missing file, or a name that no file can have, is left out.
            with suppress(OSError, ValueError):
                if not name.startswith("data:") and name not in self.uris:
                    file = self._find_file(name).stat()
                    versions[name] = file.st_size, file.st_mtime_ns
        return hash_value(repr(versions))

    def require(self, names: Iterable[str]) -> None:
        """Print a warning if files of the named images and videos are missing. Call this before the first request.

        Raises UsageError if all files are missing, or if there are videos and PyAV is missing.
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
        """Return the path of the image or video `name` under the root.

        If there is no file of that name, backslashes in it count as separators of folders. Raises UsageError if it is a
        video and PyAV is missing.
        """
        if name.startswith(VIDEO):
            import_pyav()
        # Names are UTF-8, also if the locale is not.
        path = os.fsdecode(name.removeprefix(VIDEO).encode())
        is_there = "\\" not in path or (self._root / path).exists()
        return self._root / (path if is_there else path.replace("\\", "/"))

    def load(self, name: str) -> Image:
        """Load an image, or a video with its frames. It is fully decoded, so a truncated file is detected.

        `name`: a path under the root (for a video, with the prefix VIDEO), a name in `uris`, or a data URI. Raises
        ImageError, naming the image, if it cannot be read or is refused.
        """
        # Several answers about one video may be judged at once; only the first decodes it.
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
        """Load a video with its frames. A frame is named by its time (W3C Media Fragments: clip.mp4#t=1.7)."""

        # Each frame is encoded at once, since all frames as pixels may not fit into memory.
        def encode(picture: Any) -> tuple[bytes, str, bool]:
            small, resized = _shrink(picture, self.resize_to)
            return _encode(small, "jpeg"), "image/jpeg", resized

        with self._open(name) as file:
            sampled = _sample_frames(file, self.frames, encode)
        frames = tuple(_build(f"{name}#t={time}", *sent, f"{time} s") for time, sent in sampled)
        return replace(frames[0], path=name, frames=frames)

    def _read(self, name: str) -> bytes:
        """Return the bytes of an image, not yet decoded. `name`: as in `load`.

        Raises ImageError as `_open` does, or if the image has too many bytes.
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
        # A loop of links, a NUL in the name, no permission. Records are published, so the message has no path.
        except (OSError, RuntimeError, ValueError) as error:
            raise ImageError("image_missing", getattr(error, "strerror", None) or one_line(error)) from None

    def _check(self, data: bytes) -> tuple[bytes, str, bool]:
        """Decode the image `data`. Return the bytes to send, their MIME type, and True if the image was shrunk."""
        from PIL import ImageOps  # noqa: PLC0415 - not part of a plain installation

        with decode_image(data) as image:
            # Browsers, in which people rated it, apply the camera's orientation tag; not every server does.
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
    """Decode the bytes `data` and yield them as a Pillow image.

    Raises ImageError if the header states more than MAX_PIXELS pixels, or if the data is truncated or not an image in
    one of the FORMATS. Raises UsageError if Pillow is missing.
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
    """Return a Pillow image as it looks on a screen.

    16-bit grey is scaled to 8 bits (Pillow's `convert` would turn it white), and transparent images are put on white.
    Other images are returned unchanged.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        import numpy as np  # noqa: PLC0415 - only such pictures need it

        return import_pillow().fromarray((np.clip(np.asarray(image, dtype=np.int64), 0, 65535) // 257).astype(np.uint8))
    return put_on_white(image)


def put_on_white(image: Any) -> Any:
    """Return a transparent Pillow image as RGB on white. Other images are returned unchanged."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    shown = image.convert("RGBA")
    return import_pillow().alpha_composite(import_pillow().new("RGBA", shown.size, "white"), shown).convert("RGB")


def name_images(conversations: Iterable[Conversation]) -> tuple[list[Conversation], dict[str, str]]:
    """Replace the data URIs of images in conversations by short names (BY_HASH and the URI's SHA-256).

    Return the new conversations, and name -> data URI.
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
    """Build an Image with the hash of its bytes. The arguments are fields of Image."""
    return Image(path=path, sha256=hash_value(data), kind=kind, data=data, resized=resized, time=time)


def _encode(image: Any, kind: str) -> bytes:
    """Return a Pillow image encoded in the format `kind`, with little or no loss."""
    out = io.BytesIO()
    quality: dict[str, dict[str, Any]] = {"jpeg": {"quality": 95}, "webp": {"lossless": True}}
    image.save(out, kind.upper(), **quality.get(kind, {}))
    return out.getvalue()


def _shrink(image: Any, pixels: int | None) -> tuple[Any, bool]:
    """Return a Pillow image shrunk to at most `pixels` pixels, as RGB, and True.

    Return it unchanged, and False, if it is small enough or `pixels` is None.
    """
    if pixels is None or image.width * image.height <= pixels:
        return image, False
    scale = math.sqrt(pixels / (image.width * image.height))
    width = min(max(1, int(image.width * scale)), pixels)
    height = min(max(1, int(image.height * scale)), pixels // width)
    return convert_to_8_bits(image).convert("RGB").resize((width, height)), True


@contextmanager
def _open_stream(file: BinaryIO) -> Iterator[tuple[Any, Any]]:
    """Open a video and yield its container and its first video stream.

    Raises ImageError if there is no such stream, or if FFmpeg fails.
    """
    av, options = import_pyav(), {"format_whitelist": CONTAINERS, "max_pixels": str(MAX_PIXELS)}
    file.seek(0)
    try:
        with av.open(file, options=options) as container:
            container.streams.video[0].thread_type = "AUTO"
            yield container, container.streams.video[0]
    except (av.FFmpegError, IndexError):
        raise ImageError("image_unreadable", NO_FRAMES) from None


def _sample_frames(file: BinaryIO, count: int, encode: Callable[[Any], T]) -> list[tuple[str, T]]:
    """Return at most `count` frames of a video, evenly spaced from the first to the last, as pairs (time, frame).

    The time is a text, in seconds since the first frame: "1.7", with more digits only if frames are closer. The frame
    is what `encode` returns for it, given as an upright Pillow image. No frame is returned twice; of a video with fewer
    frames, all are returned. Raises ImageError if there is no frame.
    """
    # Durations in headers are not reliable. Packets of some containers only have the time at which they are decoded.
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
    """Return the frame of a video at the time `stamp`, or the first one after it, or None if there is none.

    All times are in units of the stream's time base.

    Args:
        first: The time of the first frame.
        margin: How long before `stamp` decoding begins, since a frame depends on frames before it.
    """
    # If seeking does not find exactly this frame, decode from the first frame on.
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
    # The size is computed before decoding, so that a huge text is refused without a copy.
    _check_size(3 * len(text) // 4 - text[-2:].count("="), max_bytes)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ImageError("image_unreadable", f"not base64: {error}") from None


def _check_size(size: int, max_bytes: int) -> None:
    """Raise ImageError if `size` exceeds `max_bytes`."""
    if size > max_bytes:
        raise ImageError("image_too_large", f"{size:,} bytes; at most {max_bytes:,}")
