"""Documents: YAML and JSON files that are read into frozen dataclasses and checked against them.

A dataclass that derives from `Document` is the schema of a file, or of a mapping in a file.
pydantic checks the values against the types of its fields, strictly: a text is no number, and an
unknown field is an error. Every error names file, line and field and says what the field must be.
Checks that concern several fields raise a `FieldError`.

pydantic and PyYAML are imported when the first file is read: most programs that import this package
read none.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar

from pmemlab.quantities import MAX_SECONDS
from pmemlab.whole_file import read_whole

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, ValidationInfo
    from pydantic_core import CoreSchema
    from yaml import Node

__all__ = [
    "YAML_SUFFIXES",
    "AbsolutePath",
    "AnyNumber",
    "AtLeast0",
    "Count",
    "Document",
    "FieldError",
    "File",
    "From",
    "MaybeEmpty",
    "Mib",
    "Must",
    "Nodes",
    "Number",
    "OneOrMore",
    "Parsed",
    "Positive",
    "Size",
    "Text",
    "Texts",
    "check_bytes",
    "check_characters",
    "content_of",
    "parse_size",
    "size_of_option",
]

YAML_SUFFIXES: Final = (".yaml", ".yml")

T = TypeVar("T")
_MAX: Final = 1e30  # larger than any real quantity; products of the largest floats are infinite
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class FieldError(ValueError):
    """An error in a document. field: its place below the checked value, as in "tiers[2].read"."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem)
        self.field = field


def parse_size(text: object) -> int:
    """Returns the bytes of "512M", "1G", "4096" or 4096 (binary units). Raises FieldError."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    match = re.fullmatch(r"([1-9][0-9]*)([KMGT]?)", text) if isinstance(text, str) else None
    if match is None:
        raise FieldError(f"{text!r} is no size: give bytes, or a number with K, M, G or T")
    return int(match[1]) * _UNITS[match[2]]


def size_of_option(option: str, text: object, error_type: type[Exception]) -> int | None:
    """Returns the bytes of an option's value as `parse_size` reads them; None if it wasn't given.

    Raises `error_type`, which names the option.
    """
    try:
        return None if text is None else parse_size(text)
    except FieldError as problem:
        raise error_type(f"{option}: {problem}") from None


def check_characters(text: str, content: object) -> None:
    """Raises FieldError for half a character (a lone surrogate), which no file can hold.

    text: the JSON that `content` was read from; a surrogate is an escape in it.
    """
    if not re.search(r"\\ud[89a-f]", text, re.IGNORECASE):
        return
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        raise FieldError(f"has half a character, {half}: write both halves, or none") from None


def check_bytes(size: float, field: str = "") -> None:
    """Raises FieldError for less than a byte, and for more than a computer can address."""
    if not 1 <= size < 1 << 63:
        raise FieldError(f"must come to 1 byte or more and less than 8 EiB, not to {size:g}", field)


@dataclass(frozen=True)
class Must:
    """A check of a field that its type leaves open, with a text that says what the field must be.

    items_too: each wrong item of a list gets its own error; otherwise the list gets one error.
    """

    what: str
    holds: Callable[[Any], object] = lambda _: True
    items_too: bool = False

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import ValidationError, core_schema

        inner = handler(source)
        if inner["type"] == "tuple":
            inner = {**inner, "strict": False}  # files have lists

        def check(value: Any, validate: Callable[[Any], Any]) -> Any:
            if inner["type"] == "tuple" and not isinstance(value, list):
                raise FieldError(f"must be {self.what}, not {value!r}")
            try:
                checked = validate(value)
            except ValidationError:
                if self.items_too:
                    raise
                raise FieldError(f"must be {self.what}, not {value!r}") from None
            if not self.holds(checked):
                raise FieldError(f"must be {self.what}, not {value!r}")
            return checked

        return core_schema.no_info_wrap_validator_function(check, inner)


@dataclass(frozen=True)
class Parsed:
    """Replaces a field's value with the result of a function, which may raise `FieldError`.

    with_context: the function also gets the reader's context, whose "path" is the file's.
    """

    function: Callable[..., Any]
    with_context: bool = False

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        if not self.with_context:
            return core_schema.no_info_plain_validator_function(self.function)
        return core_schema.with_info_plain_validator_function(
            lambda value, info: self.function(value, info.context)
        )


@dataclass(frozen=True)
class From:
    """Checks a field as a `kind`, and then replaces it with the result of a function."""

    kind: Any
    function: Callable[[Any], Any]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(
            self.function, handler.generate_schema(self.kind)
        )


def _one_line(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise FieldError(f"must be text, not {value!r}")
    return " ".join(value.split())


def _checked(document: Document) -> Document:
    document.check()
    return document


def _whole_mebibytes(value: object) -> int:
    size = parse_size(value)
    if size % _UNITS["M"]:
        raise FieldError(f"{value!r} is no whole number of mebibytes; give one, as 512M")
    return size


Text = Annotated[str, Parsed(_one_line)]
"""A text on one line that is not empty."""
MaybeEmpty = Annotated[str, Must("text")]
Texts = Annotated[tuple[str, ...], Must("a list of texts")]
Count = Annotated[int, Must("a whole number above 0", lambda value: value > 0)]
Number = Annotated[
    float, Must(f"a number or null, {_MAX:g} at most", lambda value: abs(value) <= _MAX)
]
Positive = Annotated[
    float, Must(f"a number above 0, {_MAX:g} at most", lambda value: 0 < value <= _MAX)
]
Seconds = Annotated[
    float,
    Must("a number of seconds above 0, a week at most", lambda value: 0 < value <= MAX_SECONDS),
]
AtLeast0 = Annotated[
    float, Must(f"a number of at least 0, {_MAX:g} at most", lambda value: 0 <= value <= _MAX)
]
Size = Annotated[int, Parsed(parse_size)]
Mib = Annotated[int, Parsed(_whole_mebibytes)]
"""Bytes in whole mebibytes."""
AbsolutePath = Annotated[
    str, Must("an absolute path in the machine", lambda value: value.startswith("/"))
]
Nodes = Annotated[
    tuple[int, ...],
    Must("a list of node numbers", lambda nodes: all(node >= 0 for node in nodes)),
]
AnyNumber = Annotated[tuple[T, ...], Must("a list of mappings", items_too=True)]
OneOrMore = Annotated[tuple[T, ...], Must("a list of one mapping or more", len, items_too=True)]


class Document:
    """The base of dataclasses that files are read into. A null field counts as left out.

    aliases: field -> its name in files, if the two differ.
    context: fields that the reader gives instead of the file.
    extra: further fields of the file: fields that another program reads, and fields of `context`
        that the file may override.
    open: ignore unknown fields of the file, which are errors otherwise.
    """

    __pydantic_config__: ClassVar[dict[str, Any]]
    _extra: ClassVar[tuple[str, ...]]
    _context: ClassVar[tuple[str, ...]]
    _open: ClassVar[bool]

    def __init_subclass__(
        cls,
        aliases: Mapping[str, str] | None = None,
        extra: tuple[str, ...] = (),
        context: tuple[str, ...] = (),
        open: bool = False,
    ) -> None:
        names = aliases or {}
        cls.__pydantic_config__ = {
            "strict": True,
            "allow_inf_nan": False,
            "alias_generator": lambda name: names.get(name, name),
        }
        cls._extra, cls._context, cls._open = extra, context, open

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        name_of = source.__pydantic_config__["alias_generator"]
        known = [
            name_of(field.name)
            for field in dataclasses.fields(source)
            if field.name not in source._context
        ]
        known = [*source._extra, *known]

        def fields_of(value: Any, info: ValidationInfo[Any]) -> dict[str, Any]:
            if value is None:
                raise FieldError("is empty, and must be a mapping of fields")
            if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
                raise FieldError(f"must be a mapping of fields, not {value!r}")
            for name in value:
                if name not in known and not source._open:
                    raise FieldError(f"is no field here; there are {', '.join(known)}", name)
            given = {name: value[name] for name in known if value.get(name) is not None}
            return {name_of(name): info.context[name] for name in source._context} | given

        # A file has mappings where a strict dataclass takes only instances. pydantic finds a schema
        # made before by its reference, which must therefore name the whole schema with both checks.
        inner: dict[str, Any] = {**handler(source), "strict": False}
        ref = inner.pop("ref")
        checked = core_schema.no_info_after_validator_function(_checked, inner)
        return core_schema.with_info_before_validator_function(fields_of, checked, ref=ref)

    def check(self) -> None:
        """Raises `FieldError` if fields contradict one another."""


def content_of(document: Document) -> dict[str, Any]:
    """Returns the content of a file from which this document could be read, without defaults.

    The caller must replace fields whose type a `Parsed` function has changed.
    """
    name_of = document.__pydantic_config__["alias_generator"]
    content: dict[str, Any] = {}
    for field in dataclasses.fields(document):  # type: ignore[arg-type]
        value = getattr(document, field.name)
        make_default = field.default_factory
        default = field.default if make_default is dataclasses.MISSING else make_default()
        if value != default:
            content[name_of(field.name)] = _plain(value)
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, Document):
        return content_of(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


@dataclass(frozen=True)
class File:
    """The content of a file, and the line of each field by a name such as "tiers[2].read"."""

    path: Path
    content: Any
    error_type: Callable[[str], Exception]
    lines: Mapping[str, int]

    @staticmethod
    def from_yaml(path: Path, error_type: Callable[[str], Exception]) -> File:
        """Reads YAML. Raises `error_type` if the file is not YAML, or if a field is there twice."""
        import yaml

        text = _text_of(path, error_type)
        lines: dict[str, int] = {}
        try:
            loader = _yaml_loader()(text)
            node = loader.get_single_node()
            if node is not None:
                _number_lines(node, "", lines, set())
            content = None if node is None else loader.construct_document(node)
        except FieldError as problem:
            raise error_type(f"{path}:{lines[problem.field]}: {problem.field}: {problem}") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark else ""
            raise error_type(f"{path}{line}: not YAML: {error.problem}") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())  # a reader's error has two lines
            raise error_type(f"{path}: not YAML: {reason}") from error
        return File(path, content, error_type, lines)

    @staticmethod
    def from_json(path: Path, error_type: Callable[[str], Exception]) -> File:
        """Reads JSON. Raises `error_type` if the file is not JSON, or if a field is there twice."""
        return File.from_json_text(path, _text_of(path, error_type), error_type)

    @staticmethod
    def from_json_text(path: Path, text: str, error_type: Callable[[str], Exception]) -> File:
        """Reads JSON from a text as `from_json` does. path: the name of the text in errors."""
        try:
            content = json.loads(text, object_pairs_hook=_without_duplicate_names)
            check_characters(text, content)
        except json.JSONDecodeError as error:
            raise error_type(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:  # such as too long a number
            raise error_type(f"{path}: not JSON: {error}") from error
        return File(path, content, error_type, {})

    def error(self, field: str, problem: str) -> Exception:
        """Returns the error to raise for a field."""
        at = field
        while at not in self.lines and at:  # falls back to its mapping or list
            at = at[: max(at.rfind("."), at.rfind("["), 0)]
        line = f":{self.lines[at]}" if at in self.lines else ""
        return self.error_type(f"{self.path}{line}: {field or 'the file'}: {problem}")

    def filled_from(self, base: Mapping[str, Any]) -> File:
        """Returns this file plus the fields of `base` that it lacks. Its field `like` names the
        base.

        Errors in fields of `base` are reported on the line of `like`.
        """
        own = {name: value for name, value in self.content.items() if name != "like"}
        lines = {**dict.fromkeys(base, self.lines["like"]), **self.lines}
        return dataclasses.replace(self, content={**base, **own}, lines=lines)

    def read(self, kind: type[T], context: Mapping[str, object] | None = None) -> T:
        """Returns the content as a `kind`. Raises `error_type`, with a line for each wrong field.

        context: values that the file does not hold.
        """
        from pydantic import ValidationError

        try:
            value: T = _validator(kind)(  # type: ignore[arg-type]
                self.content, context={"path": self.path, **(context or {})}
            )
        except ValidationError as error:
            errors = [self.error(*self._problem(each)) for each in error.errors(include_url=False)]
            raise self.error_type("\n".join(map(str, errors))) from None
        return value

    def _problem(self, error: Mapping[str, Any]) -> tuple[str, str]:
        """Returns the field and the problem of one of pydantic's errors."""
        problem = error.get("ctx", {}).get("error")
        parts = [*error["loc"]]
        field = _name_of(self.content, parts)
        if error["type"] == "missing":
            return field, "is missing"
        if not isinstance(problem, ValueError):
            message = error["msg"].replace("Input should be", "must be")
            return field, f"{message}, not {error['input']!r}"
        below = problem.field if isinstance(problem, FieldError) else ""
        dot = "." if field and below and not below.startswith("[") else ""
        return f"{field}{dot}{below}", str(problem)


@cache
def _validator(kind: Any) -> Callable[..., Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_python


def _name_of(content: Any, parts: list[Any]) -> str:
    """Returns a place in a document as "tiers[2].read"."""
    name = ""
    for part in parts:
        if part == "[key]":  # pydantic's marker of a wrong key
            break
        if isinstance(content, list):
            name, content = f"{name}[{part}]", content[part]
        else:
            name = f"{name}.{part}" if name else str(part)
            content = content.get(part) if isinstance(content, dict) else None
    return name


@cache
def _yaml_loader() -> Any:
    """Returns PyYAML's safe loader, but with YAML 1.2's rules for scalars: 2e9 is a number, which
    PyYAML takes for text, and 2026-02-09 is text, which PyYAML takes for a date.
    """
    import yaml

    # PyYAML's parser in C, if it was built: the one in Python takes 12 times as long.
    loader: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
    loader.yaml_implicit_resolvers = {
        first: [each for each in resolvers if not each[0].endswith(":timestamp")]
        for first, resolvers in loader.yaml_implicit_resolvers.items()
    }
    number = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
    loader.add_implicit_resolver("tag:yaml.org,2002:float", number, [*"-+0123456789"])
    return loader


def _number_lines(node: Node, name: str, lines: dict[str, int], seen: set[int]) -> None:
    """Records the line of each field. Raises `FieldError` if a field is there twice."""
    from yaml import MappingNode, SequenceNode

    lines.setdefault(name, node.start_mark.line + 1)
    if id(node) in seen:  # an alias: its fields stand where its anchor is
        return
    seen.add(id(node))
    if isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            _number_lines(item, f"{name}[{index}]", lines, seen)
    elif isinstance(node, MappingNode):
        own: dict[Hashable, int] = {}
        for key, value in node.value:
            field = f"{name}.{key.value}" if name else str(key.value)
            line = key.start_mark.line + 1
            if (key.tag, str(key.value)) in own:
                first, lines[field] = own[key.tag, str(key.value)], line
                raise FieldError(f"is there twice, first on line {first}; leave one out", field)
            own[key.tag, str(key.value)] = line
            lines[field] = line
            _number_lines(value, field, lines, seen)


def _without_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FieldError(f"{twice} is there twice; leave one out")
    return content


def _text_of(path: Path, error_type: Callable[[str], Exception]) -> str:
    try:
        return read_whole(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise error_type(f"{path}: can't be read: {error}") from error
