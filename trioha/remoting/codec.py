"""Frames of the remoting protocol: bytes to commands and back (docs/protocol/remoting.md#frame).

| bytes | meaning |
|---|---|
| 4 | length: bytes after this field = 4 + header + body |
| 1 | header serialization: 0 JSON, 1 ROCKETMQ binary |
| 3 | header bytes, unsigned |
| header | |
| rest | body |

Binary header: `code:i16, language:i8, version:i16, opaque:i32, flag:i32, remarkLen:i32, remark, extLen:i32,
ext`, where ext repeats `keyLen:i16, key, valueLen:i32, value`. All numbers are big-endian, all texts UTF-8.

`FrameDecoder` buffers the bytes that it is fed and cuts one command at a time. It checks the length of a
frame as soon as its four bytes are there, before it buffers the rest.
"""

from __future__ import annotations

from functools import partial
from json import JSONDecoder
from json.encoder import encode_basestring_ascii
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, and `error` is too common a name
from typing import Final

from attrs import frozen

from trioha.errors import LocalProtocolError, RemoteProtocolError
from trioha.numbers import I32, parse_int
from trioha.remoting import compiled_pulls, compiled_sends
from trioha.remoting.codes import LanguageCode
from trioha.remoting.command import RemotingCommand, SerializeType
from trioha.remoting.fastjson import as_text, parse_json, shown
from trioha.remoting.pull_forms import FORM_BYTES_MAX, FoundPull, PullForms
from trioha.store.messages import COLUMNS, EncodedSends

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""RocketMQ's own limit for a whole frame, its length field included."""
HEADER_BYTES_MAX: Final = 1024 * 1024
"""Far more than RocketMQ's headers; parsing a larger one would delay all other connections."""
EXT_FIELDS_MAX: Final = 256
"""RocketMQ's requests have fewer than 30. Each needs far more memory than its bytes in the frame."""

_LENGTH = Struct(">I")
_HEAD = Struct(">II")
_BINARY_HEAD = Struct(">hbhiii")
_I16 = Struct(">h")
_I32 = Struct(">i")

_I32_MAX = I32.high
_HEADER_BYTES_FIELD_MAX = 0xFFFFFF
_TLS_HANDSHAKE = 0x16
_CUT_BYTES_MAX = 128 * 1024
"""Bytes of commands that were already returned which are kept before the rest of their block."""

_raw_decode = JSONDecoder(strict=False).raw_decode
_languages_by_name = {language.name: language for language in LanguageCode}
_languages_by_byte = {int(language): language for language in LanguageCode}
_language_names = {language: language.name for language in LanguageCode}


def encode(command: RemotingCommand, *, opaque: int | None = None) -> bytes:
    """The frame of `command`; `opaque` replaces the command's own.

    Raises LocalProtocolError for what the format cannot hold.
    """
    return encode_head(command, opaque=opaque) + command.whole_body


def encode_head(command: RemotingCommand, *, opaque: int | None = None) -> bytes:
    """The frame of `command` without its body, to send a large body without a copy.

    Raises LocalProtocolError for what the format cannot hold.
    """
    number = command.opaque if opaque is None else opaque
    body_bytes = command.body_bytes if command.slices else len(command.body)
    if command.serialize_type is SerializeType.JSON:
        header = _encode_json_header(command, number)
        type_word = 0
    else:
        header = _encode_binary_header(command, number)
        type_word = 1 << 24
    header_bytes = len(header)
    length = 4 + header_bytes + body_bytes
    if header_bytes > _HEADER_BYTES_FIELD_MAX or length > _I32_MAX:
        raise LocalProtocolError(
            f"command {command.code} is too large for a frame: header {header_bytes} bytes, "
            f"body {body_bytes} bytes"
        )
    return _HEAD.pack(length, type_word | header_bytes) + header


def _encode_json_header(command: RemotingCommand, opaque: int) -> bytes:
    # Built by hand, in Java's alphabetical key order: 2.7 us with the frame around it for the response to a
    # send, where json.dumps of the same dict alone takes 3.7 us.
    # ASCII with escapes keeps lone surrogates harmless.
    quote = encode_basestring_ascii
    ext = command.ext_fields
    try:
        fields = (
            '"extFields":{' + ",".join([f"{quote(key)}:{quote(value)}" for key, value in ext.items()]) + "},"
            if ext
            else ""
        )
        remark = "" if command.remark is None else f'"remark":{quote(command.remark)},'
    except TypeError as error:
        raise LocalProtocolError(
            f"command {command.code}: ext fields and remark must be strings: {error}"
        ) from error
    return (
        f'{{"code":{command.code:d},{fields}"flag":{command.flag:d},'
        f'"language":"{_language_names[command.language]}","opaque":{opaque:d},{remark}'
        f'"serializeTypeCurrentRPC":"JSON","version":{command.version:d}}}'
    ).encode()


def _encode_binary_header(command: RemotingCommand, opaque: int) -> bytes:
    # Lone surrogates, which UTF-8 cannot encode, become question marks, as in Java.
    parts: list[bytes] = []
    try:
        for key, value in command.ext_fields.items():
            raw_key = key.encode("utf-8", "replace")
            raw_value = value.encode("utf-8", "replace")
            parts += (_I16.pack(len(raw_key)), raw_key, _I32.pack(len(raw_value)), raw_value)
        ext = b"".join(parts)
        remark = b"" if command.remark is None else command.remark.encode("utf-8", "replace")
        head = _BINARY_HEAD.pack(
            command.code, command.language, command.version, opaque, command.flag, len(remark)
        )
    except (StructError, AttributeError) as error:
        raise LocalProtocolError(f"command {command.code} does not fit the binary header: {error}") from error
    return b"".join((head, remark, _I32.pack(len(ext)), ext))


@frozen
class SendRun:
    """Sends that came together, of which nothing but a record of its own is to be made for each."""

    sends: EncodedSends
    data: bytes
    """The block that has the bodies. It may be far longer than the run: waiting answers must not keep it."""
    frame_bytes: int
    """Of all frames."""
    header_bytes: int
    """Of all headers."""


def opaques_of(sends: EncodedSends) -> list[int]:
    """The opaque of each send of a run."""
    return [column[0] for column in COLUMNS.iter_unpack(sends.columns)]


class FrameDecoder:
    """Cuts a stream of bytes into commands.

    `feed` only buffers; `next_command` decodes. After a RemoteProtocolError the position in the stream is
    lost: every further call raises it again.
    """

    __slots__ = (
        "_at",
        "_data",
        "_error",
        "_forms",
        "_found",
        "_frame_bytes_max",
        "_header_bytes_max",
        "_rest",
        "_wanted_bytes",
        "frame_bytes",
        "header_bytes",
    )

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        forms: PullForms | None = None,
    ) -> None:
        """`forms` are those of pulls that were read before, if they are to be read that way."""
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._forms = forms
        self._found: FoundPull | None = None
        """The pull that `pull` has found and nothing has taken."""
        self._data = b""
        """The current block; commands before `_at` were returned."""
        self._at = 0
        self._rest = bytearray()
        """Bytes after `_data`, joined to it when they complete a frame, so that each is copied once."""
        self._wanted_bytes = 4
        """Bytes to buffer before the next step: a length field, then a whole frame."""
        self._error: RemoteProtocolError | None = None
        self.frame_bytes = 0
        """Size of the frame of the last command."""
        self.header_bytes = 0
        """Size of its header."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes fed and not yet returned as commands."""
        return len(self._data) - self._at + len(self._rest)

    @property
    def is_empty(self) -> bool:
        """Whether no bytes are buffered, and none were refused."""
        return self._at == len(self._data) and not self._rest and self._error is None

    @property
    def wanted_bytes(self) -> int:
        """Size of the unfinished frame if its length field is complete, else that of the length field."""
        return self._wanted_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Buffer received bytes, cut anywhere."""
        if self._at == len(self._data) and not self._rest:
            self._data = bytes(data)
            self._at = 0
        else:
            self._rest += data

    def sends(self, sends_max: int, *, shared: bytes) -> SendRun | None:
        """The run of at most `sends_max` common sends that comes next; None if another frame is next.

        Either all of its sends are one-way or none is. `shared` are properties that follow those of each
        send. `skip` takes the run out of the buffer; without it `next_command` gives its sends.
        """
        if self._wanted_bytes != 4 or self._at == len(self._data):
            return None
        found = compiled_sends.read_sends(
            self._data, self._at, sends_max, self._frame_bytes_max, self._header_bytes_max, shared
        )
        if not found.count:
            return None
        return SendRun(
            EncodedSends(
                found.topic.decode("ascii"),
                found.columns,
                found.properties,
                found.count,
                found.body_bytes,
                found.body_bytes_max,
                found.properties_bytes_max,
                found.queue_ids,
                found.is_oneway,
            ),
            self._data,
            found.next_at - self._at,
            found.header_bytes,
        )

    def skip(self, run: SendRun) -> None:
        """Take the run that `sends` gave last out of the buffer."""
        self._pass(self._at + run.frame_bytes)

    def pull(self) -> FoundPull | None:
        """The pull of a known form that comes next; None if another frame is next, or none is whole.

        `skip_pull` takes it out of the buffer; without it `next_command` gives it.
        """
        if self._forms is None or self._wanted_bytes != 4 or self._at == len(self._data):
            return None
        pull = compiled_pulls.read_pull_at(
            self._data, self._at, self._frame_bytes_max, min(self._header_bytes_max, FORM_BYTES_MAX)
        )
        form = None if pull is None else self._forms.find(pull.form)
        if pull is None or form is None:
            return None
        self._found = found = FoundPull(form, pull, 8 + pull.header_bytes)
        return found

    def skip_pull(self, found: FoundPull) -> None:
        """Take the pull that `pull` gave last out of the buffer."""
        self._found = None
        self._pass(self._at + found.frame_bytes)

    def next_command(self) -> RemotingCommand | None:
        """The next whole command, or None until more is fed.

        Raises RemoteProtocolError for anything that is not a frame within the limits.
        """
        if self._error is not None:
            raise self._error
        if (found := self._found) is not None:
            self.skip_pull(found)
            self.frame_bytes = found.frame_bytes
            self.header_bytes = found.pull.header_bytes
            return found.command()
        try:
            return self._next()
        except RemoteProtocolError as error:
            self._error = error
            self.clear()
            raise

    def clear(self) -> None:
        """Drop the buffered bytes, to free their memory: the stream is over."""
        self._data, self._at = b"", 0
        self._rest = bytearray()

    def _next(self) -> RemotingCommand | None:
        if len(self._data) - self._at < self._wanted_bytes and not self._join():
            return None
        if self._wanted_bytes == 4:
            (length,) = _LENGTH.unpack_from(self._data, self._at)
            self._check_length(length)
            self._wanted_bytes = 4 + length
            if len(self._data) - self._at < self._wanted_bytes and not self._join():
                return None
        data, start = self._data, self._at
        end = start + self._wanted_bytes
        type_word = _HEAD.unpack_from(data, start)[1]
        header_end = start + 8 + (type_word & 0xFFFFFF)
        if header_end > end:
            raise RemoteProtocolError(
                f"header of {type_word & 0xFFFFFF} bytes does not fit its frame of {self._wanted_bytes} bytes"
            )
        if header_end - start - 8 > self._header_bytes_max:
            raise RemoteProtocolError(
                f"header of {type_word & 0xFFFFFF} bytes; at most {self._header_bytes_max} are taken"
            )
        header = data[start + 8 : header_end]
        body = data[header_end:end]
        self._pass(end)
        self._wanted_bytes = 4
        self.frame_bytes = end - start
        self.header_bytes = header_end - start - 8
        serialization = type_word >> 24
        if serialization == 0:
            if self._forms is not None and not body and len(header) <= FORM_BYTES_MAX:
                return _decode_short_header(header, self._forms)
            return _decode_json_header(header, body)
        if serialization == 1:
            return _decode_binary_header(header, body)
        raise RemoteProtocolError(f"unknown header serialization {serialization}; 0 is JSON, 1 is ROCKETMQ")

    def _pass(self, end: int) -> None:
        """Commands before `end` were returned."""
        data = self._data
        if end == len(data):
            # Freed now: a connection may be silent for long after a large frame.
            self._data, self._at = b"", 0
        elif end > _CUT_BYTES_MAX:
            self._data, self._at = data[end:], 0
        else:
            self._at = end

    def _check_length(self, length: int) -> None:
        if 4 <= length <= self._frame_bytes_max - 4:
            return
        if self._data[self._at] == _TLS_HANDSHAKE:
            raise RemoteProtocolError("the peer starts TLS, which is not spoken here")
        if length < 4:
            raise RemoteProtocolError(f"frame length {length} is below the smallest, 4")
        raise RemoteProtocolError(
            f"frame length {length} is beyond the limit of {self._frame_bytes_max} bytes"
        )

    def _join(self) -> bool:
        """Join the buffered bytes to one block, if that has at least the wanted size."""
        if not self._rest or self.buffered_bytes < self._wanted_bytes:
            return False
        self._data = b"".join((memoryview(self._data)[self._at :], self._rest))
        self._at = 0
        self._rest = bytearray()
        return True


def _decode_short_header(header: bytes, forms: PullForms) -> RemotingCommand:
    """A command without a body, by its form if it is a pull."""
    pull = compiled_pulls.read_pull(header)
    form = None if pull is None else forms.find(pull.form)
    if pull is not None and form is not None:
        return form.command_of(pull)
    command = _decode_json_header(header, b"")
    if pull is not None:
        forms.keep(pull, command, partial(_decode_json_header, body=b""))
    return command


def _decode_json_header(raw: bytes, body: bytes) -> RemotingCommand:
    text = raw.decode("utf-8", "replace").strip()
    header: object
    is_standard = True
    try:
        header, end = _raw_decode(text)
    except (ValueError, RecursionError):
        is_standard = False
        header = parse_json(text)
    else:
        if end != len(text):
            raise RemoteProtocolError(f"header goes on behind its JSON object: {text[end : end + 20]!r}")
    if type(header) is not dict:
        raise RemoteProtocolError(f"header is not a JSON object: {shown(text)}")
    get = header.get
    code, opaque, flag, version = get("code"), get("opaque"), get("flag"), get("version")
    if not (
        type(code) is type(opaque) is type(flag) is type(version) is int
        and -_I32_MAX <= code <= _I32_MAX
        and -_I32_MAX <= opaque <= _I32_MAX
        and 0 <= flag <= _I32_MAX
        and 0 <= version <= _I32_MAX
    ):
        # The rare case: check each by itself.
        code = _header_int(code, "code")
        opaque = _header_int(opaque, "opaque")
        flag = _header_int(0 if flag is None else flag, "flag")
        version = _header_int(0 if version is None else version, "version")
    remark = get("remark")
    if remark is not None and type(remark) is not str:
        remark = as_text(remark)
    ext = get("extFields")
    if ext is None:
        ext = {}
    elif type(ext) is not dict:
        raise RemoteProtocolError(f"extFields is not a JSON object: {shown(ext)}")
    elif len(ext) > EXT_FIELDS_MAX:
        raise RemoteProtocolError(f"{len(ext)} ext fields; at most {EXT_FIELDS_MAX} are accepted")
    elif not is_standard:
        # In fastjson's dialect a key may be an object.
        ext = _ext_fields(ext)
    else:
        for value in ext.values():
            if type(value) is not str:
                ext = _ext_fields(ext)
                break
    language = get("language")
    return RemotingCommand(
        code,
        opaque,
        flag,
        remark,
        ext,
        body,
        _languages_by_name.get(language, LanguageCode.OTHER) if type(language) is str else LanguageCode.OTHER,
        version,
        SerializeType.JSON,
    )


def _header_int(value: object, name: str) -> int:
    """A 32-bit number or, as for fastjson, a string of its digits."""
    try:
        return parse_int(value, I32)
    except ValueError:
        raise RemoteProtocolError(f"header field {name} is not a 32-bit number: {shown(value)}") from None


def _ext_fields(fields: dict[object, object]) -> dict[str, str]:
    """Ext fields with values other than strings, as Java reads them: as text, without nulls."""
    return {as_text(key): as_text(value) for key, value in fields.items() if value is not None}


def _decode_binary_header(raw: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(raw)
        at = _BINARY_HEAD.size
        remark, at = _text(raw, at, remark_bytes)
        (ext_bytes,) = _I32.unpack_from(raw, at)
        at += 4
        ext_end = at + ext_bytes
        if not at <= ext_end <= len(raw):
            raise RemoteProtocolError(f"binary header: ext fields of {ext_bytes} bytes do not fit the header")
        ext: dict[str, str] = {}
        while at < ext_end:
            (key_bytes,) = _I16.unpack_from(raw, at)
            key, at = _text(raw, at + 2, key_bytes)
            (value_bytes,) = _I32.unpack_from(raw, at)
            value, at = _text(raw, at + 4, value_bytes)
            if key and value:
                ext[key] = value
    except StructError as error:
        raise RemoteProtocolError(f"binary header of {len(raw)} bytes is cut short") from error
    if len(ext) > EXT_FIELDS_MAX:
        raise RemoteProtocolError(f"{len(ext)} ext fields; at most {EXT_FIELDS_MAX} are accepted")
    if at != ext_end:
        raise RemoteProtocolError("binary header: the last ext field reaches beyond the ext fields")
    return RemotingCommand(
        code,
        opaque,
        flag,
        remark or None,
        ext,
        body,
        _languages_by_byte.get(language, LanguageCode.OTHER),
        version,
        SerializeType.ROCKETMQ,
    )


def _text(raw: bytes, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if not at <= end <= len(raw):
        raise RemoteProtocolError(f"binary header: a text of {length} bytes does not fit the header")
    return raw[at:end].decode("utf-8", "replace"), end
