"""One compiled denoising step of one picture: a pass of the pipeline's loop, the scheduler's sum and the mask.

The step is one program. Where there are several devices, they share the rows of a guidance pair and the tokens of each,
or the network: `runtime/mesh.py`. On one CPU device each row of a call with two is a call of its own, both in
parallel, and a second program does the rest: a network that computes two rows in one call leaves half a core idle.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as torch_pytree
from torchax import interop

from hfjax_app.images.networks import fresh
from hfjax_app.images.noise import step_noise
from hfjax_app.images.pipeline_call import Form, PipelineCall
from hfjax_app.images.prompt_conditioning import MASK, STATES, Conditioning, shapes_of
from hfjax_app.images.stand_ins import Ended, traced
from hfjax_app.runtime.held_weights import PackedArguments
from hfjax_app.runtime.mesh import ROWS, replicated
from hfjax_app.runtime.mesh import split as split_over
from hfjax_app.runtime.module import Shapes, Weights, pure_function
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.programs import Program, Programs
from hfjax_app.runtime.seams.diffusers import with_lengths_as_data
from hfjax_app.runtime.seams.torchax import torch_dtype
from hfjax_app.runtime.transforms import packs_arguments
from hfjax_app.runtime.warm_up import ProgramSpec, run_on_zeros

_FOR_PREDICTION = ("timestep", "input_scale")


class Network:
    """A denoiser as its pipeline calls it in one pass of its loop, a pure function of JAX arrays.

    Args:
        module: the network, adapted to the layout of the weights.
        weights: its weights on the device, or for planned programs their shapes.
        dtype: of its computation.
        call: the pipeline's call.
        programs: their devices share the rows, and their bundle keeps shapes.
        apart: names of weights that LoRAs change.

    Attributes:
        weights: as given, or with all 1-D parameters packed into one argument, see `runtime/held_weights.py`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        weights: Weights | Shapes,
        dtype: Any,
        call: PipelineCall,
        programs: Programs,
        apart: Collection[str] = (),
    ):
        self._mesh, self._bundle = programs.mesh, programs.bundle
        self._arguments = PackedArguments(weights, packs=packs_arguments(programs.mesh), apart=apart)
        self.weights = self._arguments.weights
        self._module, self._dtype, self._call = module, torch_dtype(dtype), call
        # The shapes of a row's result and of the sample that it was for.
        self._row: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def output(self, weights: Weights, form: Form, latents: jax.Array, arrays: Any, numbers: Any) -> jax.Array:
        """What the scheduler is given in one pass, float32, of the latents' shape.

        Args:
            weights: of `weights`' shapes.
            form: of the pipeline's call.
            latents: float32, the scheduler's sample.
            arrays: the conditioning, `Conditioning.arrays`.
            numbers: the step's timestep and input_scale, and the guidance.
        """

        def run(module: Any, latents: Any, arrays: Any, numbers: Any) -> Any:
            def network(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = self._prepared((args, _masked(kwargs, form)), form.rows)
                return self._results(module(*args, **kwargs))

            return self._call.iteration(network, form, latents, numbers, arrays)

        return self._traced(run, weights, latents, arrays, numbers)

    def row(self, weights: Weights, form: Form, latents: jax.Array, arrays: Any, numbers: Any) -> jax.Array:
        """The network's output for one of the rows of its call, float32 [1, ...].

        Args:
            numbers: with the row's number, "row", besides those of `output`.
        """

        def run(module: Any, latents: Any, arrays: Any, numbers: Any) -> Any:
            def part(leaf: Any) -> Any:
                is_row = isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (form.rows,)
                return torch.index_select(leaf, 0, numbers["row"].reshape(1)) if is_row else leaf

            def network(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = torch_pytree.tree_map(part, (args, kwargs))
                args, kwargs = self._prepared((args, _masked(kwargs, form)), form.rows)
                raise Ended(self._results(module(*args, **kwargs))[0])

            return self._call.iteration(network, form, latents, numbers, arrays)

        return self._traced(run, weights, latents, arrays, numbers)

    def shape_of_row(self, name: str, row: Callable[..., jax.Array], arguments: tuple[Any, ...]) -> Any:
        """The shape of `row`'s result in the program of this name.

        It is traced once, unless an earlier process kept it; at other sizes the sides of the sample are others.
        """
        bundle, sample = self._bundle, arguments[1].shape
        if self._row is None:
            known = None if bundle is None else bundle.facts.get(name)
            self._row = tuple(known or jax.eval_shape(row, *arguments).shape), sample
            if bundle is not None and known is None:
                bundle.keep_facts(bundle.facts | {name: list(self._row[0])})
        result, before = self._row
        sides = (now if side == then else side for side, then, now in zip(result, before, sample, strict=True))
        return jax.ShapeDtypeStruct(tuple(sides), jnp.float32)

    def guided(self, form: Form, latents: jax.Array, outputs: jax.Array, arrays: Any, numbers: Any) -> jax.Array:
        """What the scheduler is given, from the network's output for all rows."""

        def run(module: Any, latents: Any, outputs: Any, arrays: Any, numbers: Any) -> Any:
            return self._call.iteration(lambda *_, **__: (outputs,), form, latents, numbers, arrays)

        result: jax.Array = pure_function(torch.nn.Module(), run)({}, latents, outputs, arrays, numbers)
        return result.astype(jnp.float32)

    def _traced(self, run: Any, weights: Weights, *args: Any) -> jax.Array:
        result: jax.Array = pure_function(with_lengths_as_data(fresh(self._module)), run)(
            self._arguments.unpack(weights), *args
        )
        return result.astype(jnp.float32)

    def _prepared(self, arguments: Any, rows: int) -> Any:
        """A call's arguments as diffusers passes them: floating-point numbers in the networks' dtype.

        Times and guidance scales, which have no more than one dimension, stay float32.
        """

        def prepared(leaf: Any) -> Any:
            leaf = traced(leaf)
            if not isinstance(leaf, torch.Tensor) or leaf.ndim < 2:
                return leaf
            leaf = leaf.to(self._dtype) if leaf.is_floating_point() else leaf
            return self._placed(leaf, split=True) if leaf.shape[0] == rows else leaf

        return torch_pytree.tree_map(prepared, arguments)

    def _results(self, results: Any) -> Any:
        def whole(leaf: Any) -> Any:
            return self._placed(leaf, split=False).to(torch.float32) if isinstance(leaf, torch.Tensor) else leaf

        return torch_pytree.tree_map(whole, results)

    def _placed(self, tensor: torch.Tensor, *, split: bool) -> torch.Tensor:
        """The tensor with its rows split over the mesh, or whole on each device."""
        if (mesh := self._mesh) is None:
            return tensor
        place = split_over(mesh, tuple(tensor.shape), 0, ROWS) if split else replicated(mesh)
        placed: torch.Tensor = interop.call_jax(jax.lax.with_sharding_constraint, tensor, place)
        return placed


class Denoiser:
    """A network's step for pictures of one size, with guidance or without it. Its programs (`specs`) must have joined.
    Thread-safe.

    Args:
        name: of the program, or the prefix of both programs' names.
        mesh: the devices of the programs; None: one device.
        network: the denoiser.
        conditioning: an example with the shapes to compile for.
        state, fixed, numbers: shapes of the arguments of `__call__`.
        calls: runs the calls of the rows; where it runs that many in parallel, the network is compiled for one row.
    """

    def __init__(
        self,
        name: str,
        mesh: jax.sharding.Mesh | None,
        network: Network,
        conditioning: Conditioning,
        state: Any,
        fixed: Any,
        numbers: Any,
        calls: Calls,
    ):
        form = conditioning.form
        self._rows, self._calls = form.rows, calls
        self._by_rows = 1 < form.rows <= calls.at_once  # whether each row is a call of its own
        self._predict: Program | None = None
        self._step: Program | None = None
        self.specs: list[ProgramSpec]
        arrays = shapes_of(conditioning.arrays)
        if not self._by_rows:

            def denoise(weights: Weights, state: Any, arrays: Any, fixed: Any, numbers: Any) -> tuple[Any, jax.Array]:
                guided = _with_guidance(numbers, fixed["guidance"])
                output = network.output(weights, form, state["latents"], arrays, guided)
                return _scheduled_step(state, output, fixed, numbers)

            place = None if mesh is None else replicated(mesh)
            arguments = (network.weights, state, arrays, fixed, numbers)
            join = partial(self._join, "_step", arguments)
            spec = ProgramSpec(name=name, function=denoise, args=arguments, join=join, donate=(1,), shardings=place)
            self.specs = [spec]
            return

        # jax keeps its trace, which finds out the shape of the result and makes the program
        @partial(jax.jit, inline=True)
        def predict_row(weights: Weights, latents: jax.Array, arrays: Any, numbers: Any) -> jax.Array:
            return network.row(weights, form, latents, arrays, numbers)

        def follow(state: Any, outputs: list[jax.Array], arrays: Any, fixed: Any, numbers: Any) -> Any:
            guided = _with_guidance(numbers, fixed["guidance"])
            output = network.guided(form, state["latents"], jnp.concatenate(outputs), arrays, guided)
            return _scheduled_step(state, output, fixed, numbers)

        row_numbers = _for_row(numbers, fixed["guidance"], jax.ShapeDtypeStruct((), jnp.int32))
        row_arguments = (network.weights, state["latents"], arrays, row_numbers)
        outputs = [network.shape_of_row(f"{name}_row", predict_row, row_arguments)] * form.rows
        rest = (state, outputs, arrays, fixed, numbers)
        self.specs = [
            ProgramSpec(
                name=f"{name}_row",
                function=predict_row,
                args=row_arguments,
                join=partial(self._join, "_predict", row_arguments),
            ),
            ProgramSpec(
                name=f"{name}_follow",
                function=follow,
                args=rest,
                join=partial(self._join, "_step", rest),
                donate=(0,),
            ),
        ]

    def _join(self, attribute: str, arguments: tuple[Any, ...], program: Program) -> None:
        run_on_zeros(program, arguments)
        setattr(self, attribute, program)

    @property
    def is_ready(self) -> bool:
        """Whether all its programs have joined."""
        return self._step is not None and (self._predict is not None or not self._by_rows)

    def __call__(self, state: Any, conditioning: Conditioning, fixed: Any, numbers: Any) -> tuple[Any, jax.Array]:
        """One step: (next state, predicted clean latents). `state` is donated.

        Args:
            state: latents, memory and history.
            conditioning: with the network's weights for this picture.
            fixed: constant for a picture: noise, image (its latents), mask (1 where to draw), key, guidance.
            numbers: the schedule's, of this step.
        """
        result: tuple[Any, jax.Array]
        assert self._step is not None, "its programs have joined"
        weights, arrays = conditioning.weights, conditioning.arrays
        if (program := self._predict) is None:
            result = self._step(weights, state, arrays, fixed, numbers)
            return result

        def predict(row: int) -> Any:  # does not block: jax on CPU runs one thread's calls in order
            numbers_of_row = _for_row(numbers, fixed["guidance"], np.int32(row))
            return program(weights, state["latents"], arrays, numbers_of_row)

        outputs = self._calls.together(predict, range(self._rows))
        result = self._step(state, outputs, arrays, fixed, numbers)
        return result

    def texts(self) -> list[str]:
        """The programs as XLA's text."""
        return [program.as_text() for program in (self._predict, self._step) if program is not None]


def _masked(arguments: dict[str, Any], form: Form) -> dict[str, Any]:
    """A denoiser's arguments with a mask of a long prompt's states in the place of the NaN that pads them."""
    if not form.is_long:
        return arguments
    states = arguments[STATES]
    mask = torch.logical_not(torch.isnan(states[..., 0])).to(torch.float32)
    return arguments | {STATES: torch.nan_to_num(states), MASK: mask}


def _with_guidance(numbers: Any, guidance: Any) -> Any:
    """The numbers that the model's output depends on."""
    return {name: numbers[name] for name in _FOR_PREDICTION} | {"guidance": guidance}


def _for_row(numbers: Any, guidance: Any, row: Any) -> Any:
    return _with_guidance(numbers, guidance) | {"row": row}


def _scheduled_step(state: Any, output: jax.Array, fixed: Any, numbers: Any) -> tuple[Any, jax.Array]:
    """The scheduler's weighted sum, as in diffusers.

    state["history"]: [depth - 1, (sample, output), *sample_shape], the newest pair first. Where the mask is 0, the
    result is the picture's own latents, as noisy as the rest.
    """
    latents = state["latents"]
    pairs = jnp.concatenate([jnp.stack([latents, output])[None], state["history"]])
    extras = jnp.stack([state["memory"], step_noise(fixed["key"], numbers["step"], latents.shape)])

    # Products and sums, not dots: accelerators round the operands of a dot to bfloat16.
    def weighted(which: int) -> jax.Array:
        shape = (Ellipsis, which, *[None] * latents.ndim)
        of_pairs: jax.Array = numbers["coefficients"][shape] * pairs
        of_extras: jax.Array = numbers["extras"][shape] * extras
        return of_pairs.sum((0, 1)) + of_extras.sum(0)

    following, clean, memory = (weighted(which) for which in range(3))
    noised = numbers["noising"][0] * fixed["image"] + numbers["noising"][1] * fixed["noise"]
    following = jnp.where(fixed["mask"] == 1, following, noised)
    return {"latents": following, "memory": memory, "history": pairs[:-1]}, clean
