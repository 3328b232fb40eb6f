"""What may come with a message beside what it says: context for the model, and the shape that the turn's result must have.

A schema comes from outside, and so does what is held against it: neither may cost more than it is worth, and nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any, cast

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from orchestrator.errors import BadRequest

Context = str | Sequence[str] | Mapping[str, object]
LIMIT_BYTES = 64 * 1024
MOST_DEPTH = 48
"""How deep a schema may be nested."""
MOST_REFERENCES = 20_000
"""References that are followed for one result: schemas can be written that would take for ever."""
PROBLEMS_SHOWN = 20
OF_SCHEMAS = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
"""Keywords with a schema under each of their names."""
NO_SCHEMAS = frozenset({"const", "enum", "default", "examples", "dependentRequired"})
NOT_SUPPORTED = (
    *("patternProperties", "unevaluatedProperties", "unevaluatedItems"),
    *("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$anchor"),
)


class Misfit(Exception):
    """A value that does not fit its schema. The text says where, for the model."""


def texts(context: Context) -> tuple[str, ...]:
    """Context as texts: one, several, or an object as its JSON. Raises `BadRequest`."""
    given: object = context
    match given:
        case str():
            found: tuple[object, ...] = (given,)
        case Mapping():
            found = (_json("clientContext", given),)
        case list() | tuple():
            found = tuple(given)
        case _:
            found = ()
    good = tuple(text for text in found if isinstance(text, str) and text)
    if not good or len(good) < len(found):
        raise BadRequest(problem="clientContext must be a text, a list of texts that are not empty, or an object.")
    _limit("clientContext", sum(len(_bytes("clientContext", text)) for text in good))
    return good


def schema(given: Mapping[str, object]) -> str:
    """A JSON Schema as it is stored. Raises `BadRequest` for one that nothing could be held against."""
    if not isinstance(cast(object, given), Mapping):
        raise BadRequest(problem="outputSchema must be an object: a JSON Schema.")
    text = _json("outputSchema", given)
    _limit("outputSchema", len(_bytes("outputSchema", text)))
    try:
        _look(json.loads(text))
    except RecursionError as deep:
        raise BadRequest(problem=f"outputSchema is nested deeper than {MOST_DEPTH}.") from deep
    return text


def fit(wanted: Mapping[str, Any], value: object) -> None:
    """Hold a value against a schema. Raises `Misfit`."""
    _left.set(MOST_REFERENCES)
    try:
        validator = _checker()(wanted, registry=_nothing_else())
        problems = []
        for error in validator.iter_errors(value):
            where = ".".join(map(str, error.absolute_path)) or "the result"
            problems.append(f"{where}: {error.message[:500]}")
            if len(problems) == PROBLEMS_SHOWN:
                break
    except Exception as broken:
        # A schema that goes round in circles, a number that no processor has.
        raise Misfit(f"It could not be held against the schema: {type(broken).__name__}: {str(broken)[:200]}") from None
    if problems:
        raise Misfit("\n".join(problems))


# The door ---------------------------------------------------------------------------------------------------------------


def _json(name: str, given: object) -> str:
    try:
        return json.dumps(given, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as broken:
        raise BadRequest(problem=f"{name} is no JSON: {str(broken)[:200]}.") from broken


def _bytes(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as broken:
        raise BadRequest(problem=f"{name} holds half a character (a lone surrogate). Send whole ones.") from broken


def _limit(name: str, size: int) -> None:
    if size > LIMIT_BYTES:
        raise BadRequest(problem=f"{name} has {size} bytes; the limit is {LIMIT_BYTES}.")


def _look(wanted: Mapping[str, Any]) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema import SchemaError as Wrong
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    parts = list(_schemas(wanted, 0))
    for part in parts:
        _refuse_slow(part)
    try:
        Draft202012Validator.check_schema(wanted)
    except Wrong as wrong:
        where = ".".join(map(str, wrong.absolute_path)) or "the schema"
        raise BadRequest(problem=f"outputSchema is no JSON Schema: {where}: {wrong.message[:200]}") from None
    resolver = _nothing_else().resolver_with_root(DRAFT202012.create_resource(wanted))
    for place, part in enumerate(parts):
        for name in (*NOT_SUPPORTED, *(("$id",) if place else ())):
            if name in part:
                raise BadRequest(problem=f"outputSchema uses {name}, which is not supported here.")
        if "$ref" in part:
            if not str(part["$ref"]).startswith("#"):
                raise BadRequest(problem="outputSchema refers to something outside of it. Put it under $defs.")
            try:
                resolver.lookup(part["$ref"])
            except (Unresolvable, ValueError):  # the second for a place in a list that is no number
                raise BadRequest(problem=f"outputSchema has no {part['$ref'][:200]!r} to refer to.") from None


def _refuse_slow(part: Mapping[str, Any]) -> None:
    """Lists of which each must differ from all others are compared pair by pair, unless they are texts."""
    lists = [part.get("type"), part.get("required")]
    if isinstance(depends := part.get("dependentRequired"), dict):
        lists += depends.values()
    for found in lists:
        if isinstance(found, list) and not all(isinstance(one, str) for one in found):
            raise BadRequest(
                problem="outputSchema is no JSON Schema: type, required and dependentRequired are lists of texts."
            )


def _schemas(found: object, depth: int) -> Iterator[Mapping[str, Any]]:
    """The schema and all that are in it."""
    if depth > MOST_DEPTH:
        raise RecursionError
    if isinstance(found, list):
        for one in found:
            yield from _schemas(one, depth + 1)
    if not isinstance(found, dict):
        return
    yield found
    for name, value in found.items():
        if name in OF_SCHEMAS and isinstance(value, dict):
            for one in value.values():
                yield from _schemas(one, depth + 1)
        elif name not in NO_SCHEMAS:
            yield from _schemas(value, depth + 1)


# The check --------------------------------------------------------------------------------------------------------------

_left: ContextVar[int] = ContextVar("references left", default=MOST_REFERENCES)


@cache
def _nothing_else() -> Any:
    """What a schema may refer to beside itself: nothing, so that nothing is fetched."""
    from referencing import Registry

    registry: Any = Registry()
    return registry


@cache
def _checker() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema import ValidationError as Problem
    from jsonschema.validators import extend

    follow = Draft202012Validator.VALIDATORS["$ref"]

    def counted(validator: Any, reference: Any, instance: Any, part: Any) -> Iterator[Any]:
        _left.set(_left.get() - 1)
        if _left.get() < 0:
            raise RecursionError(f"more than {MOST_REFERENCES} references")
        yield from follow(validator, reference, instance, part)

    def pattern(_: Any, wanted: str, instance: Any, __: Any) -> Iterator[Any]:
        if isinstance(instance, str) and not _matches(wanted, instance):
            yield Problem(f"{instance[:200]!r} does not match {wanted[:200]!r}")

    return extend(Draft202012Validator, {"$ref": counted, "pattern": pattern})


def _matches(pattern: str, text: str) -> bool:
    """In time that grows with the text and no more. A pattern that this cannot do (looking ahead) is for the model only."""
    found = _pattern(pattern)
    if found is None:
        return True
    try:
        found.validate_python(text)
    except ValidationError:
        return False
    return True


@lru_cache(256)
def _pattern(pattern: str) -> SchemaValidator | None:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None
