"""A classifier's checkpoint: a model, or a LoRA adapter with a head of its own and the base that both change."""

import json
import os
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.lora import base_and_adapter
from hfjax_app.runtime.checkpoints.safetensors_reader import read
from hfjax_app.runtime.checkpoints.tokenizer_files import NoTokenizer, load
from hfjax_app.runtime.module import Weights


class ClassifierCheckpoint:
    """What a source holds.

    Args:
        source: a folder or a hub id. Of an adapter its file is read, which says how many labels there are.

    Raises:
        ModelUnavailable: there is no such source, it is another kind of adapter, or its base is not here.

    Attributes:
        sources: the adapter and its base, or the model alone.
    """

    def __init__(self, source: str | os.PathLike[str]):
        self._source = source
        self._base, self._adapter = base_and_adapter(source)
        self.sources = tuple(dict.fromkeys((source, self._base)))

    def model(self) -> PreTrainedModel:
        """The classifier without its weights, in float32.

        Raises:
            ModelUnavailable: as `empty_model`.
        """
        model = empty_model(AutoModelForSequenceClassification, self._base, torch.float32)
        if self._adapter is None:
            return model
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        usual = int(model.config.num_labels or 0)
        count, said = self._adapter.labels(shapes, usual), self._said_labels()
        if len(said) == count:
            labels = said
        elif count == usual:
            return model
        else:
            labels = [f"LABEL_{at}" for at in range(count)]
        return empty_model(AutoModelForSequenceClassification, self._base, torch.float32, labels=labels)

    def _said_labels(self) -> list[str]:
        """The labels in a configuration beside the adapter's; empty: there is none."""
        try:
            config = json.loads((fetch(self._source, weights=False) / "config.json").read_text(encoding="utf-8"))
            return [str(config["id2label"][str(at)]) for at in range(len(config["id2label"]))]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def tokenizer(self) -> Any:
        """The source's tokenizer, or else its base's.

        Raises:
            ModelUnavailable: as `load`.
        """
        try:
            return load(AutoTokenizer.from_pretrained, self._source)
        except NoTokenizer:
            if len(self.sources) == 1:
                raise
            return load(AutoTokenizer.from_pretrained, self._base)

    def weights(self, model: PreTrainedModel) -> Weights:
        """The weights of `model()`, with the adapter merged. Raises: as `read`."""
        return read(model, self._base, adapter=self._adapter)
