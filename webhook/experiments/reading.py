"""Reads raw objects as typed models: what has the wrong type is a fault, and the rest is judged all the same."""

import copy
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from trialtap.objects import Model
from webhook.experiments.faults import Faults, nearest
from webhook.review import JSON

M = TypeVar("M", bound=Model)

_ROUNDS: Final = 4
"""Removing one wrong value may uncover another one beside it, as a list item does; never more often."""
_WORDS: Final = {
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "is_instance_of": "must be a list",
    "finite_number": "must be a finite number",
}


def read(kind: type[M], raw: JSON, faults: Faults) -> M:
    """Read `raw` strictly (a number is no string); a value of the wrong type is a fault and counts as absent.

    Fields that the model does not know but whose name is close to a known one are warned of.
    """
    remaining = raw
    for _ in range(_ROUNDS):
        try:
            model = kind.model_validate(remaining, strict=True)
        except ValidationError as error:
            remaining = _without(remaining, error, faults)
        else:
            _warn_of_strangers(model, "", faults)
            return model
    faults.invalid(kind.__name__.lower(), raw, "cannot be read at all")
    return kind()


def path_of(location: Sequence[str | int]) -> str:
    """`("spec", "parameters", 0, "name")` is `spec.parameters[0].name`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _without(raw: JSON, error: ValidationError, faults: Faults) -> JSON:
    """Tell of each value that the error names and take it out of a copy."""
    result = copy.deepcopy(raw)
    told: set[str] = set()
    for found in error.errors(include_url=False):
        location = tuple(part for part in found["loc"] if not _is_union_branch(part))
        path = path_of(location)
        if path in told:
            continue
        told.add(path)
        faults.invalid(path, found["input"], _WORDS.get(found["type"], found["msg"]))
        faults.unread(path)
        _remove(result, location)
    return result


def _is_union_branch(part: str | int) -> bool:
    """Pydantic names the branch of a union in the location, `port.int`; it is no field."""
    return part in {"int", "str"}


def _remove(document: Any, location: Sequence[str | int]) -> None:
    *above, last = location
    for part in above:
        document = document[part]
    if isinstance(document, list) and isinstance(last, int):
        # A hole would renumber what follows; an empty item keeps the paths of the others right.
        document[last] = {} if isinstance(document[last], dict) else ""
    elif isinstance(document, dict):
        document.pop(last, None)


def _warn_of_strangers(model: BaseModel, path: str, faults: Faults) -> None:
    known = [info.alias or name for name, info in type(model).model_fields.items()]
    for stranger in model.model_extra or {}:
        hint = nearest(stranger, known)
        if hint and path:
            faults.warn(f"{path}.{stranger}: unknown field, it has no effect{hint}")
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        here = f"{path}.{info.alias or name}".removeprefix(".")
        if isinstance(value, BaseModel):
            _warn_of_strangers(value, here, faults)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    _warn_of_strangers(item, f"{here}[{index}]", faults)
