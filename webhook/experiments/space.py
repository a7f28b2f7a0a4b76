"""Rules of the search space: parameters, their values, and what the algorithm can do with them."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from trialtap.objects import ExperimentSpec, FeasibleSpace, NasConfig, Parameter
from webhook.experiments.faults import Faults

PARAMETER_TYPES: Final = ("double", "int", "discrete", "categorical")
DISTRIBUTIONS: Final = ("uniform", "logUniform", "normal", "logNormal")
_LOGARITHMIC: Final = {"logUniform", "logNormal"}

_UNIFORM_ONLY: Final = ("uniform", "logUniform")
ALGORITHM_DISTRIBUTIONS: Final[Mapping[str, Sequence[str]]] = {
    "bayesianoptimization": _UNIFORM_ONLY,
    "cmaes": _UNIFORM_ONLY,
    "grid": _UNIFORM_ONLY,
    "multivariate-tpe": _UNIFORM_ONLY,
}
"""What Katib's suggestion services draw from; algorithms that are not listed draw from all."""

_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


def check(spec: ExperimentSpec, faults: Faults) -> None:
    """Check parameters and nasConfig, of which there must be just one."""
    if spec.parameters and spec.nas_config:
        faults.forbidden("spec.nasConfig", "set either parameters or nasConfig, not both")
    elif not spec.parameters and not spec.nas_config:
        faults.required("spec.parameters", "list the parameters to search, or set nasConfig")
    algorithm = spec.algorithm.algorithm_name if spec.algorithm else ""
    _check_parameters(spec.parameters or (), "spec.parameters", algorithm, faults)
    if spec.nas_config:
        _check_nas(spec.nas_config, algorithm, faults)


def _check_nas(nas: NasConfig, algorithm: str, faults: Faults) -> None:
    path = "spec.nasConfig.operations"
    if not nas.operations:
        faults.required(path, "list the operations that a network may consist of")
    for index, operation in enumerate(nas.operations or ()):
        if not operation.operation_type:
            faults.required(f"{path}[{index}].operationType", "name the operation")
        _check_parameters(operation.parameters or (), f"{path}[{index}].parameters", algorithm, faults)


def _check_parameters(parameters: Sequence[Parameter], path: str, algorithm: str, faults: Faults) -> None:
    seen: set[str] = set()
    for index, parameter in enumerate(parameters):
        here = f"{path}[{index}]"
        if not parameter.name:
            faults.required(f"{here}.name", "name the parameter")
        elif parameter.name in seen:
            faults.duplicate(f"{here}.name", parameter.name, "another parameter has this name")
        seen.add(parameter.name)
        if parameter.parameter_type not in PARAMETER_TYPES:
            faults.unsupported(f"{here}.parameterType", parameter.parameter_type, PARAMETER_TYPES)
        if parameter.feasible_space is None or not _set_fields(parameter.feasible_space):
            faults.required(f"{here}.feasibleSpace", "say which values the parameter may take")
            continue
        _check_space(
            parameter.parameter_type, parameter.feasible_space, f"{here}.feasibleSpace", algorithm, faults
        )


def _set_fields(space: FeasibleSpace) -> bool:
    return bool(space.min or space.max or space.list or space.step)


def _check_space(kind: str, space: FeasibleSpace, path: str, algorithm: str, faults: Faults) -> None:
    if space.distribution:
        _check_distribution(space.distribution, f"{path}.distribution", algorithm, faults)
    if kind in {"double", "int"}:
        if space.list:
            faults.forbidden(
                f"{path}.list", f"a parameter of type {kind} has min and max; a list is for discrete"
            )
        _check_range(kind, space, path, algorithm, faults)
    elif kind in {"discrete", "categorical"}:
        for name in ("min", "max", "step"):
            if getattr(space, name):
                faults.forbidden(f"{path}.{name}", f"a parameter of type {kind} has a list only")
        _check_list(space.list or (), f"{path}.list", faults)


def _check_distribution(distribution: str, path: str, algorithm: str, faults: Faults) -> None:
    if distribution not in DISTRIBUTIONS:
        faults.unsupported(path, distribution, DISTRIBUTIONS)
        return
    able = ALGORITHM_DISTRIBUTIONS.get(algorithm, DISTRIBUTIONS)
    if distribution not in able:
        faults.invalid(path, distribution, f"algorithm {algorithm} draws from {' or '.join(able)} only")


def _check_list(values: Sequence[str], path: str, faults: Faults) -> None:
    if not values:
        faults.required(path, "list at least one value")
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            faults.duplicate(f"{path}[{index}]", value, "the value is in the list already")
        seen.add(value)


def _number(kind: str, text: str | None, path: str, faults: Faults, needed: str = "") -> float | None:
    """The number of a bound or step; what is none is a fault, and so is a missing one where `needed` says why."""
    if not text:
        if needed:
            faults.required(path, needed)
        return None
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        faults.invalid(path, text, "must be a number written as a string")
        return None
    if not math.isfinite(number):
        faults.invalid(path, text, "must be a finite number")
        return None
    if kind == "int" and not _WHOLE.fullmatch(text.strip()):
        faults.invalid(path, text, "must be a whole number, since the parameter is an int")
        return None
    return number


def _check_range(kind: str, space: FeasibleSpace, path: str, algorithm: str, faults: Faults) -> None:
    needed = f"a parameter of type {kind} needs it"
    least = _number(kind, space.min, f"{path}.min", faults, needed)
    most = _number(kind, space.max, f"{path}.max", faults, needed)
    grid = algorithm == "grid" and kind == "double"
    step = _number(
        kind, space.step, f"{path}.step", faults, "grid search needs it for a double" if grid else ""
    )
    if least is not None and most is not None and least >= most:
        faults.invalid(f"{path}.max", space.max, f"must be greater than min, which is {space.min}")
        most = None
    if least is not None and least <= 0 and space.distribution in _LOGARITHMIC:
        faults.invalid(
            f"{path}.min", space.min, f"must be greater than 0 for distribution {space.distribution}"
        )
    if step is not None and step <= 0:
        faults.invalid(f"{path}.step", space.step, "must be greater than 0")
    elif step is not None and least is not None and most is not None and step > most - least:
        faults.invalid(
            f"{path}.step", space.step, f"must not be larger than the range from {space.min} to {space.max}"
        )
