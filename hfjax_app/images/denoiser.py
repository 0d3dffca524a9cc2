"""One compiled denoising step of one picture: the network's prediction, guidance, the scheduler's sum and the mask.

The step is one program. Where there are several devices, two of them share the rows of a guidance pair. On one CPU
device each row is a call of its own, both in parallel, and a second program does the rest: a network that computes two
rows in one call leaves half a core idle. Does not cover prompts and pixels.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

from hfjax_app.images.noise import step_noise
from hfjax_app.images.prompt_conditioning import Conditioning, PromptReader, shapes_of
from hfjax_app.runtime.mesh import replicated, split
from hfjax_app.runtime.module import Shapes, Weights, pure_function
from hfjax_app.runtime.packed_arguments import PackedArguments
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.program import Program
from hfjax_app.runtime.transforms import packs_arguments
from hfjax_app.runtime.warm_up import ProgramSpec, run_on_zeros

_FOR_PREDICTION = ("timestep", "input_scale")


class Network:
    """A denoiser as a pure function of JAX arrays.

    Args:
        module: the network, adapted to the layout of the weights.
        weights: its weights on the device, or for planned programs their shapes.
        dtype: of its computation.
        reader: calls the network as its pipeline does.
        mesh: the devices that share the rows, one axis; None: one device.

    Attributes:
        weights: as given, or with all 1-D parameters packed into one argument, see `runtime/packed_arguments.py`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        weights: Weights | Shapes,
        dtype: Any,
        reader: PromptReader,
        mesh: jax.sharding.Mesh | None,
    ):
        self._arguments, self._mesh = PackedArguments(weights, packs=packs_arguments(mesh)), mesh
        self.weights = self._arguments.weights
        self._module, self._dtype, self._reader = module, dtype, reader

    def predict(
        self, weights: Weights, latents: jax.Array, arrays: Any, numbers: Any, form: tuple[int, bool]
    ) -> jax.Array:
        """The network's output, float32, of the latents' shape [n, channels, height, width].

        Args:
            weights: of `weights`' shapes.
            latents: float32, one row or all.
            arrays: their conditioning, `Conditioning.arrays`.
            numbers: the step's timestep and input_scale.
            form: `Conditioning.form`.
        """

        def call(model: Any, latents: Any, timestep: Any, arrays: Any) -> Any:
            return self._reader.call(model, form, latents, timestep, arrays)

        conditioning = [self._prepared(array, len(latents)) for array in arrays]
        inputs = self._sharded((latents * numbers["input_scale"]).astype(self._dtype))
        weights = self._arguments.unpack(weights)
        outputs = pure_function(self._module, call)(weights, inputs, numbers["timestep"], conditioning)
        outputs = self._sharded(outputs[:, : latents.shape[1]])  # without learned variance
        return self._replicated(outputs).astype(jnp.float32)

    def _prepared(self, array: jax.Array | None, rows: int) -> jax.Array | None:
        """A conditioning array as diffusers passes it: floating-point numbers in the networks' dtype."""
        if array is None:
            return None
        if jnp.issubdtype(array.dtype, jnp.floating):
            array = array.astype(self._dtype)
        return self._sharded(array) if array.shape[:1] == (rows,) else array

    def _sharded(self, array: jax.Array) -> jax.Array:
        """The array with its rows split over the mesh."""
        mesh = self._mesh
        return array if mesh is None else jax.lax.with_sharding_constraint(array, split(mesh, array.shape, 0))

    def _replicated(self, array: jax.Array) -> jax.Array:
        mesh = self._mesh
        return array if mesh is None else jax.lax.with_sharding_constraint(array, replicated(mesh))


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
        self._weights, self._rows, self._calls = network.weights, conditioning.rows, calls
        self._by_rows = False  # whether each row is a call of its own
        self._predict: Program | None = None
        self._step: Program | None = None
        self.specs: list[ProgramSpec]
        if not 1 < self._rows <= calls.at_once:

            def denoise(weights: Weights, state: Any, arrays: Any, fixed: Any, numbers: Any) -> tuple[Any, jax.Array]:
                latents = jnp.concatenate([state["latents"]] * conditioning.rows)
                outputs = network.predict(weights, latents, arrays, numbers, conditioning.form)
                return _guided_step(state, outputs, fixed, numbers)

            place = None if mesh is None else replicated(mesh)
            arguments = (network.weights, state, shapes_of(conditioning.arrays), fixed, numbers)
            join = partial(self._join, "_step", arguments)
            spec = ProgramSpec(name=name, function=denoise, args=arguments, join=join, donate=(1,), shardings=place)
            self.specs = [spec]
            return

        def predict_row(weights: Weights, latents: jax.Array, arrays: Any, numbers: Any) -> jax.Array:
            return network.predict(weights, latents, arrays, numbers, conditioning.form)

        def follow(state: Any, outputs: list[jax.Array], fixed: Any, numbers: Any) -> tuple[Any, jax.Array]:
            return _guided_step(state, jnp.concatenate(outputs), fixed, numbers)

        [row, *_] = self._by_row(conditioning.arrays)
        row_arguments = (network.weights, state["latents"], shapes_of(row), _for_prediction(numbers))
        outputs = [state["latents"]] * self._rows
        rest = (state, outputs, fixed, numbers)
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
        self._by_rows = True

    def _join(self, attribute: str, arguments: tuple[Any, ...], program: Program) -> None:
        run_on_zeros(program, arguments)
        setattr(self, attribute, program)

    @property
    def is_ready(self) -> bool:
        """Whether all its programs have joined."""
        return self._step is not None and (self._predict is not None or not self._by_rows)

    def arranged(self, arrays: Any) -> Any:
        """`Conditioning.arrays` (NumPy) in the form that `__call__` takes: for all rows together, or a list by row."""
        return self._by_row(arrays) if self._by_rows else arrays

    def __call__(self, state: Any, arrays: Any, fixed: Any, numbers: Any) -> tuple[Any, jax.Array]:
        """One step: (next state, predicted clean latents). `state` is donated.

        Args:
            state: latents, memory and history.
            arrays: the conditioning, `arranged`.
            fixed: constant for a picture: noise, image (its latents), mask (1 where to draw), key, guidance.
            numbers: the schedule's, of this step.
        """
        result: tuple[Any, jax.Array]
        assert self._step is not None, "its programs have joined"
        if (program := self._predict) is None:
            result = self._step(self._weights, state, arrays, fixed, numbers)
            return result

        def predict(row: Any) -> Any:  # does not block: jax on CPU runs one thread's calls in order
            return program(self._weights, state["latents"], row, _for_prediction(numbers))

        result = self._step(state, self._calls.together(predict, arrays), fixed, numbers)
        return result

    def texts(self) -> list[str]:
        """The programs as XLA's text."""
        return [program.as_text() for program in (self._predict, self._step) if program is not None]

    def _by_row(self, arrays: Any) -> list[Any]:
        """The conditioning of each row."""

        def part(array: Any, row: int) -> Any:
            return array[row : row + 1] if array is not None and array.shape[:1] == (self._rows,) else array

        return [[part(array, row) for array in arrays] for row in range(self._rows)]


def _for_prediction(numbers: Any) -> Any:
    """The numbers that the network's prediction depends on."""
    return {name: numbers[name] for name in _FOR_PREDICTION}


def _guided_step(state: Any, outputs: jax.Array, fixed: Any, numbers: Any) -> tuple[Any, jax.Array]:
    """Classifier-free guidance (arXiv:2207.12598), then the scheduler's weighted sum, both as in diffusers.

    state["history"]: [depth - 1, (sample, output), *latent_shape], the newest pair first. Where the mask is 0, the
    result is the picture's own latents, as noisy as the rest.
    """
    latents = state["latents"]
    output = outputs if len(outputs) == 1 else outputs[:1] + fixed["guidance"] * (outputs[1:] - outputs[:1])
    pairs = jnp.concatenate([jnp.stack([latents, output])[None], state["history"]])
    extras = jnp.stack([state["memory"], step_noise(fixed["key"], numbers["step"], latents.shape)])

    # Products and sums, not dots: accelerators round the operands of a dot to bfloat16.
    def weighted(which: int) -> jax.Array:
        shape = (Ellipsis, which, None, None, None, None)
        of_pairs: jax.Array = numbers["coefficients"][shape] * pairs
        of_extras: jax.Array = numbers["extras"][shape] * extras
        return of_pairs.sum((0, 1)) + of_extras.sum(0)

    following, clean, memory = (weighted(which) for which in range(3))
    noised = numbers["noising"][0] * fixed["image"] + numbers["noising"][1] * fixed["noise"]
    following = jnp.where(fixed["mask"] == 1, following, noised)
    return {"latents": following, "memory": memory, "history": pairs[:-1]}, clean
