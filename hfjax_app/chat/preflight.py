"""Whether a checkpoint's architecture can run, from its config alone: nothing is downloaded, allocated or compiled."""

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from hfjax_app.chat.decoder import Decoder
from hfjax_app.errors import ModelUnavailable


def check(config: PreTrainedConfig, *, context: int = 512) -> None:
    """Trace the architecture without weights.

    Args:
        config: as AutoConfig.from_pretrained reads it.
        context: tokens a slot is to hold.

    Raises:
        ModelUnavailable: in one line, why it can't run.
    """
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelUnavailable(f"{config.model_type} is no causal language model of transformers")
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    Decoder(model_class, config, config.dtype or torch.float32, context=context, chunk=min(64, context))
