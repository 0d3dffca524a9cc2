"""A classifier's compiled programs: from token ids of one padded shape to probabilities.

Does not tokenize texts.
"""

from typing import Any

import numpy as np
import torch

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.module import Shapes, Weights, pure_function
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.runtime.programs import Program, Programs
from hfjax_app.sentiment.encoding import Encoder, Lengths
from hfjax_app.sentiment.explanation import Explainer
from hfjax_app.sentiment.priority_semaphore import PrioritySemaphore

# Tokens of a batch, padding included. More bring nothing on a CPU; fewer leave an accelerator idle.
CPU_TOKENS, DEVICE_TOKENS = 512, 16_384
FEWEST_ROWS = 4  # a smaller batch is no faster than its texts one by one
# The fixed cost of a call, in tokens that take the same time: measured on a CPU; elsewhere any batch beats two calls.
CPU_CALL, DEVICE_CALL = 48, DEVICE_TOKENS


def checked_labels(model: Any) -> tuple[list[str], bool]:
    """A classifier's labels, and whether several may apply to a text, by the rule of transformers' own pipeline.

    Raises:
        ModelUnavailable: the model is a regression model, it reads positions that are padding here, or two labels have
            the same name.
    """
    config = model.config
    if config.problem_type == "regression":
        raise ModelUnavailable(
            f"{type(model).__name__} is a regression model: its output is not the probability of a label"
        )
    summaries = {module.summary_type for module in model.modules() if hasattr(module, "summary_type")} - {"first"}
    if summaries:  # transformers' SequenceSummary doesn't look at the mask
        raise ModelUnavailable(
            f"{type(model).__name__} classifies a text by a summary of kind {summaries.pop()!r}, which includes the "
            "padding on the text's right"
        )
    labels = [str(config.id2label[index]) for index in range(config.num_labels)]
    if len(set(labels)) < len(labels):
        raise ModelUnavailable(f"{type(model).__name__}: two labels have the same name: {', '.join(labels)}")
    return labels, config.problem_type == "multi_label_classification" or config.num_labels == 1


class ClassifierPrograms:
    """Programs for each padded length, of one row and of a batch, all compiled here.

    Args:
        model: a torch sequence classifier; it is not changed.
        encoder: tokenizes texts; `Lengths` is enough for planned programs.
        weights: the model's, or for planned programs their shapes.
        programs: compiles.
        semaphore: limits device calls.
        calls: runs programs in parallel.
        on_cpu: whether the device is a CPU, for which batches are small.
        explains: whether to compile the programs of explanations too.

    Attributes:
        of_shape: (rows, length) -> the program from weights, ids and mask (int32 of that shape) to probabilities
            (float32 [rows, labels]).
        batch: length -> rows of its batch; 1 where a batch would be no faster.
        call: the fixed cost of a call, in tokens.
        explainer: None without `explains`.
    """

    def __init__(
        self,
        model: Any,
        encoder: Encoder | Lengths,
        weights: Weights | Shapes,
        programs: Programs,
        semaphore: PrioritySemaphore,
        calls: Calls,
        *,
        on_cpu: bool,
        explains: bool,
    ):
        _, multi_label = checked_labels(model)

        def probabilities(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits
            return logits.float().sigmoid() if multi_label else logits.float().softmax(-1)

        function = pure_function(model, probabilities)
        tokens = CPU_TOKENS if on_cpu else DEVICE_TOKENS
        rows = {length: tokens // length for length in encoder.lengths}
        self.batch = {length: count if count >= FEWEST_ROWS else 1 for length, count in rows.items()}
        self.call = CPU_CALL if on_cpu else DEVICE_CALL
        self.of_shape: dict[tuple[int, int], Program] = {}
        with programs.together():
            for length, batch in self.batch.items():
                for count in sorted({1, batch}):
                    ids = np.zeros((count, length), np.int32)
                    self.of_shape[count, length] = programs.compile(
                        f"classify_{count}x{length}", function, weights, ids, np.ones_like(ids)
                    )
            self.explainer = Explainer(model, encoder, weights, semaphore, calls, programs) if explains else None
        if self.explainer is not None and not programs.planned:
            self.explainer.run_once()
