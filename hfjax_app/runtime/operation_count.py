"""The arithmetic of a traced function: multiplications and additions of its products and convolutions.

Elementwise work is left out: on an accelerator it runs beside the products. XLA's own count, `cost_analysis`, has the
body of a loop once, such as that of attention in blocks.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn


def operations(function: Callable[..., Any], *args: Any) -> int:
    """The operations of one call of a function of JAX arrays, from shapes.

    Args:
        function: is traced.
        args: arrays or their shapes.
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*args).jaxpr)


def _of_jaxpr(jaxpr: Jaxpr) -> int:
    return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation: JaxprEqn) -> int:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        shape = _shape(equation.invars[0])
        return 2 * _size(equation) * math.prod(shape[int(axis)] for axis in contracted)
    if name == "conv_general_dilated":
        kernel, numbers = _shape(equation.invars[1]), parameters["dimension_numbers"]
        return 2 * _size(equation) * math.prod(kernel) // kernel[int(numbers.rhs_spec[0])]
    inner = [_of_jaxpr(found) for value in parameters.values() for found in _jaxprs(value)]
    if name == "cond":  # one branch runs; one for another platform may do the same work without products
        return max(inner, default=0)
    return int(parameters["length"]) * sum(inner) if name == "scan" else sum(inner)


def _size(equation: JaxprEqn) -> int:
    return math.prod(_shape(equation.outvars[0]))


def _shape(variable: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = variable.aval.shape
    return shape


def _jaxprs(value: Any) -> list[Jaxpr]:
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    return [found for each in value for found in _jaxprs(each)] if isinstance(value, tuple | list) else []
