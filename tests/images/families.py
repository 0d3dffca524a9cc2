"""Pipelines of the families of today with random weights, laid out as their repositories are: 32x32 pixels.

Each has the scheduler's configuration of a real repository. Text encoders that give several layers have as many.
"""

import atexit
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderDC,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    BriaPipeline,
    BriaTransformer2DModel,
    ChromaPipeline,
    ChromaTransformer2DModel,
    CogView4Pipeline,
    CogView4Transformer2DModel,
    DDPMScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
    FluxKontextPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
    HunyuanDiT2DModel,
    HunyuanDiTPipeline,
    Kandinsky5T2IPipeline,
    Kandinsky5Transformer3DModel,
    KolorsPipeline,
    Krea2Pipeline,
    Krea2Transformer2DModel,
    Lumina2Pipeline,
    Lumina2Transformer2DModel,
    OvisImagePipeline,
    OvisImageTransformer2DModel,
    PRXPipeline,
    PRXTransformer2DModel,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SanaPipeline,
    SanaSprintPipeline,
    SanaTransformer2DModel,
    SCMScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from diffusers.pipelines.kolors import ChatGLMModel, ChatGLMTokenizer
from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig
from sentencepiece import SentencePieceTrainer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    Gemma2Config,
    Gemma2Model,
    GemmaTokenizer,
    GlmConfig,
    GlmModel,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLProcessor,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3VLConfig,
    Qwen3VLModel,
    T5Config,
    T5EncoderModel,
    T5GemmaModuleConfig,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.t5gemma.modeling_t5gemma import T5GemmaEncoder

from hfjax_app.runtime.checkpoints.processor import of_pictures

from .pipelines import (
    LETTERS,
    WIDTH,
    amplified,
    aura_flow,
    clip,
    clip_tokenizer,
    finished,
    latent_consistency,
    t5_tokenizer,
    unet,
    vae,
)

DYNAMIC = {
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 1.15,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
    "shift": 3.0,
}
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen_tokenizer() -> Qwen2Tokenizer:
    """A token for each byte."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab = {token: i for i, token in enumerate([*special, *sorted(ByteLevel.alphabet())])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab, merges=[], pad_token=special[0], eos_token=special[2], additional_special_tokens=special[1:2]
    )
    tokenizer.chat_template = CHAT
    return tokenizer


def gemma_tokenizer() -> GemmaTokenizer:
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", *LETTERS, *LETTERS.upper(), *".,:->'()\n"]
    return GemmaTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], add_bos_token=True)


def small(layers: int = 2, **options: Any) -> dict[str, Any]:
    """The options of a small decoder."""
    return {
        "vocab_size": 300,
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 2048,
    } | options


def qwen3(layers: int) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(Qwen3Config(**small(layers), pad_token_id=0))


def gemma2() -> Gemma2Model:
    return Gemma2Model(Gemma2Config(**small(query_pre_attn_scalar=8, sliding_window=64), pad_token_id=0))


def t5(width: int = WIDTH) -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(vocab_size=4 + len(LETTERS), d_model=width, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    )


def kl(channels: int = 4, **options: Any) -> Any:
    return vae(latent_channels=channels, shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False, **options)


ROPE: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16, "axes_dims_rope": (4, 6, 6)}


def flux(
    *, guidance: bool = True, kind: type[DiffusionPipeline] = FluxPipeline, heads: Mapping[str, Any] = ROPE
) -> DiffusionPipeline:
    transformer = FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=guidance,
        **heads,
    )
    shift = DYNAMIC if guidance else {"use_dynamic_shifting": False, "shift": 1.0}
    return kind(
        tokenizer=clip_tokenizer(),
        tokenizer_2=t5_tokenizer(),
        text_encoder=clip(),
        text_encoder_2=t5(),
        transformer=transformer,
        vae=kl(),
        scheduler=FlowMatchEulerDiscreteScheduler(**shift),
    )


def flux_schnell() -> DiffusionPipeline:
    return flux(guidance=False)


def flux_kontext() -> DiffusionPipeline:
    return flux(kind=FluxKontextPipeline)


def chroma() -> ChromaPipeline:
    transformer = ChromaTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=WIDTH,
        approximator_num_channels=8,
        approximator_hidden_dim=16,
        approximator_layers=1,
        **ROPE,
    )
    return ChromaPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=t5(),
        transformer=transformer,
        vae=kl(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_beta_sigmas=True, shift=1.0),
    )


def flux_2_parts(width: int, *, guidance: bool) -> dict[str, Any]:
    transformer = Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=width,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance,
    )
    autoencoder = AutoencoderKLFlux2(
        block_out_channels=(16, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=8,
    )
    autoencoder.bn.running_mean.normal_(0, 0.3)
    autoencoder.bn.running_var.uniform_(0.5, 2)
    return {
        "transformer": transformer,
        "vae": autoencoder,
        "scheduler": FlowMatchEulerDiscreteScheduler(**DYNAMIC),
    }


def flux_2_klein(*, distilled: bool = True) -> Flux2KleinPipeline:
    return Flux2KleinPipeline(
        tokenizer=qwen_tokenizer(),
        text_encoder=qwen3(27),
        is_distilled=distilled,
        **flux_2_parts(3 * WIDTH, guidance=False),
    )


def flux_2_klein_base() -> Flux2KleinPipeline:
    return flux_2_klein(distilled=False)


VISION = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": WIDTH}
M_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6}


def qwen_2_5_vl() -> Qwen2_5_VLForConditionalGeneration:
    text = small(rope_parameters=M_ROPE)
    del text["head_dim"]
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=VISION))


def qwen_vae() -> AutoencoderKLQwenImage:
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[2.0, 1.5, 1.0, 0.5],
    )


def qwen_image() -> QwenImagePipeline:
    transformer = QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=1, joint_attention_dim=WIDTH, **ROPE
    )
    return QwenImagePipeline(
        tokenizer=qwen_tokenizer(),
        text_encoder=qwen_2_5_vl(),
        transformer=transformer,
        vae=qwen_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(
            **DYNAMIC | {"max_shift": 0.9, "max_image_seq_len": 8192, "shift": 1.0, "shift_terminal": 0.02},
            time_shift_type="exponential",
        ),
    )


def qwen_image_edit(kind: type[DiffusionPipeline] = QwenImageEditPipeline) -> DiffusionPipeline:
    """Its class reads each picture at 1,024 x 1,024 pixels, of which the text encoder sees few here."""
    marks = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"]
    tokenizer = qwen_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *marks]})
    ids = dict(zip(marks, tokenizer.convert_tokens_to_ids(marks), strict=True))
    text = small(rope_parameters=M_ROPE)
    del text["head_dim"]
    text_encoder = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=text,
            vision_config=VISION | {"depth": 2, "fullatt_block_indexes": [1]},
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
        )
    )
    images = Qwen2VLImageProcessorPil(max_pixels=28 * 28 * 24, min_pixels=28 * 28 * 4)
    usual = qwen_image()
    vae = AutoencoderKLQwenImage(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 1, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[2.0, 1.5, 1.0, 0.5],
    )
    return kind(
        tokenizer=tokenizer,
        processor=of_pictures(Qwen2VLProcessor, Path(), tokenizer, images),
        text_encoder=text_encoder,
        transformer=usual.transformer,
        vae=vae,
        scheduler=usual.scheduler,
    )


def qwen_image_edit_plus() -> DiffusionPipeline:
    return qwen_image_edit(QwenImageEditPlusPipeline)


def z_image() -> ZImagePipeline:
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=WIDTH,
        axes_dims=[4, 6, 6],
        axes_lens=[1024, 64, 64],
    )
    return ZImagePipeline(
        tokenizer=qwen_tokenizer(),
        text_encoder=qwen3(2),
        transformer=transformer,
        vae=kl(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=False, shift=3.0),
    )


def sana_parts(**options: Any) -> dict[str, Any]:
    transformer = SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=WIDTH,
        sample_size=32,
        **options,
    )
    autoencoder = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        upsample_block_type="interpolate",
        downsample_block_type="stride_conv",
        scaling_factor=0.41407,
    )
    return {
        "tokenizer": gemma_tokenizer(),
        "text_encoder": gemma2(),
        "transformer": transformer,
        "vae": autoencoder,
    }


def sana() -> SanaPipeline:
    scheduler = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, solver_order=2
    )
    return SanaPipeline(scheduler=scheduler, **sana_parts())


def sana_sprint() -> SanaSprintPipeline:
    return SanaSprintPipeline(
        scheduler=SCMScheduler(), **sana_parts(guidance_embeds=True, qk_norm="rms_norm_across_heads")
    )


def stable_diffusion_3_5() -> StableDiffusion3Pipeline:
    """Medium: its first layers attend twice."""
    transformer = SD3Transformer2DModel(
        sample_size=16,
        in_channels=16,
        out_channels=16,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=64,
        caption_projection_dim=32,
        pooled_projection_dim=48,
        pos_embed_max_size=24,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )
    return StableDiffusion3Pipeline(
        transformer=transformer,
        text_encoder=clip(CLIPTextModelWithProjection),
        text_encoder_2=clip(CLIPTextModelWithProjection),
        text_encoder_3=t5(64),
        tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(),
        tokenizer_3=t5_tokenizer(),
        vae=kl(16),  # its inpainting class takes no other number
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


def lumina_2() -> Lumina2Pipeline:
    transformer = Lumina2Transformer2DModel(
        sample_size=16,
        in_channels=4,
        hidden_size=32,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(4, 6, 6),
        axes_lens=(300, 64, 64),
        cap_feat_dim=WIDTH,
    )
    return Lumina2Pipeline(
        tokenizer=gemma_tokenizer(),
        text_encoder=gemma2(),
        transformer=transformer,
        vae=kl(blocks=4),  # its pipeline's own factor, whatever the autoencoder's is
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
    )


def flux_2() -> Flux2Pipeline:
    text = MistralConfig(**small(30))
    vision = PixtralVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16
    )
    encoder = Mistral3ForConditionalGeneration(Mistral3Config(text_config=text, vision_config=vision))
    return Flux2Pipeline(tokenizer=qwen_tokenizer(), text_encoder=encoder, **flux_2_parts(3 * WIDTH, guidance=True))


def ovis_image() -> OvisImagePipeline:
    transformer = OvisImageTransformer2DModel(
        in_channels=16, out_channels=16, num_layers=1, num_single_layers=1, joint_attention_dim=WIDTH, **ROPE
    )
    return OvisImagePipeline(
        tokenizer=qwen_tokenizer(),
        text_encoder=Qwen3Model(Qwen3Config(**small(2), pad_token_id=0)),
        transformer=transformer,
        vae=kl(),
        scheduler=FlowMatchEulerDiscreteScheduler(**DYNAMIC),
    )


def hunyuan_dit() -> HunyuanDiTPipeline:
    transformer = HunyuanDiT2DModel(
        sample_size=4,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=2,
        in_channels=4,
        hidden_size=16,
        cross_attention_dim=WIDTH,
        cross_attention_dim_t5=WIDTH,
        pooled_projection_dim=16,
        text_len=77,
        text_len_t5=256,
        activation_fn="gelu-approximate",
    )
    letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    bert = BertConfig(
        vocab_size=len(letters),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=77,
    )
    return HunyuanDiTPipeline(
        tokenizer=BertTokenizer(vocab={letter: i for i, letter in enumerate(letters)}),
        text_encoder=BertModel(bert),
        tokenizer_2=t5_tokenizer(),
        text_encoder_2=t5(),
        transformer=transformer,
        vae=vae(blocks=4),
        scheduler=DDPMScheduler(
            beta_start=0.00085,
            beta_end=0.03,
            beta_schedule="scaled_linear",
            prediction_type="v_prediction",
            steps_offset=1,
            clip_sample=False,
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def bria() -> BriaPipeline:
    transformer = BriaTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=None,
        guidance_embeds=False,
        rope_theta=10000,
        time_theta=10000,
        **ROPE,
    )
    return BriaPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=t5(),
        transformer=transformer,
        vae=kl(),
        scheduler=FlowMatchEulerDiscreteScheduler(**DYNAMIC),
    )


def krea_2() -> Krea2Pipeline:
    transformer = Krea2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        timestep_embed_dim=16,
        text_hidden_dim=WIDTH,
        num_text_layers=12,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=32,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 6, 6),
    )
    encoder = Qwen3VLModel(
        Qwen3VLConfig(
            text_config=small(35, rope_parameters=M_ROPE),
            vision_config=VISION | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        )
    )
    return Krea2Pipeline(
        tokenizer=qwen_tokenizer(),
        text_encoder=encoder,
        transformer=transformer,
        vae=qwen_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(
            **DYNAMIC | {"max_image_seq_len": 6400, "shift": 1.0}, time_shift_type="exponential"
        ),
    )


def prx() -> PRXPipeline:
    transformer = PRXTransformer2DModel(
        in_channels=4, context_in_dim=WIDTH, hidden_size=32, num_heads=2, depth=1, axes_dim=[8, 8]
    )
    encoder = T5GemmaEncoder(
        T5GemmaModuleConfig(**small(query_pre_attn_scalar=8, sliding_window=64), pad_token_id=0, dropout_rate=0.0)
    )
    tokenizer = gemma_tokenizer()
    tokenizer.model_max_length = 256
    return PRXPipeline(
        tokenizer=tokenizer,
        text_encoder=encoder,
        transformer=transformer,
        vae=kl(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


def cog_view_4() -> CogView4Pipeline:
    transformer = CogView4Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        text_embed_dim=WIDTH,
        time_embed_dim=16,
        condition_dim=8,
        rope_axes_dim=(32, 32),
    )
    return CogView4Pipeline(
        tokenizer=gemma_tokenizer(),
        text_encoder=GlmModel(GlmConfig(**small(3, pad_token_id=0))),
        transformer=transformer,
        vae=vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(
            **DYNAMIC | {"base_shift": 0.25, "max_shift": 0.75, "shift": 1.0}, time_shift_type="linear"
        ),
    )


def chat_glm_tokenizer() -> ChatGLMTokenizer:
    """A token for each letter; its class reads a file."""
    opened, file = tempfile.mkstemp(suffix=".model")
    atexit.register(os.unlink, file)
    with os.fdopen(opened, "wb") as model:
        SentencePieceTrainer.train(
            sentence_iterator=iter([LETTERS]), model_writer=model, model_type="char", vocab_size=30, minloglevel=2
        )
    return ChatGLMTokenizer(file)


def kolors() -> KolorsPipeline:
    encoder = ChatGLMModel(
        ChatGLMConfig(
            num_layers=2,
            padded_vocab_size=64,
            hidden_size=WIDTH,
            ffn_hidden_size=64,
            kv_channels=8,
            num_attention_heads=4,
            seq_length=256,
            multi_query_attention=True,
            multi_query_group_num=2,
            add_qkv_bias=True,
            apply_residual_connection_post_layernorm=False,
            original_rope=True,
        )
    )
    for name, parameter in encoder.named_parameters():  # its class leaves them empty
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.1)
    return KolorsPipeline(
        tokenizer=chat_glm_tokenizer(),
        text_encoder=encoder,
        unet=unet(
            encoder_hid_dim=WIDTH,
            encoder_hid_dim_type="text_proj",
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=WIDTH + 6 * 8,
        ),
        vae=vae(),
        scheduler=EulerDiscreteScheduler(
            beta_schedule="scaled_linear",
            beta_start=0.00085,
            beta_end=0.014,
            num_train_timesteps=1100,
            steps_offset=1,
            timestep_spacing="leading",
        ),
    )


def kandinsky_5() -> Kandinsky5T2IPipeline:
    """Its repository has a processor, of which a prompt needs the tokenizer alone."""
    transformer = Kandinsky5Transformer3DModel(
        in_visual_dim=4,
        in_text_dim=WIDTH,
        in_text_dim2=WIDTH,
        time_dim=16,
        out_visual_dim=4,
        model_dim=32,
        ff_dim=32,
        num_text_blocks=1,
        num_visual_blocks=1,
        axes_dims=(4, 6, 6),
    )
    clip_config = clip().config
    clip_config.max_position_embeddings = 77
    return Kandinsky5T2IPipeline(
        tokenizer=qwen_tokenizer(),
        text_encoder=qwen_2_5_vl(),
        tokenizer_2=clip_tokenizer(77),
        text_encoder_2=CLIPTextModel(clip_config),
        transformer=transformer,
        vae=kl(blocks=4),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


FAMILIES: dict[str, Callable[[], DiffusionPipeline]] = {
    "Flux.1 dev": flux,
    "Flux.1 schnell": flux_schnell,
    "Flux.1 Kontext": flux_kontext,
    "Flux.2 dev": flux_2,
    "Flux.2 klein": flux_2_klein,
    "Flux.2 klein base": flux_2_klein_base,
    "Qwen-Image": qwen_image,
    "Z-Image": z_image,
    "Sana": sana,
    "Sana Sprint": sana_sprint,
    "Stable Diffusion 3.5": stable_diffusion_3_5,
    "Chroma": chroma,
    "Lumina 2": lumina_2,
    "AuraFlow": aura_flow,
    "Ovis-Image": ovis_image,
    "HunyuanDiT": hunyuan_dit,
    "Bria": bria,
    "LCM": latent_consistency,
    "Krea 2": krea_2,
    "PRX": prx,
    "CogView 4": cog_view_4,
    "Kolors": kolors,
    "Kandinsky 5": kandinsky_5,
}


# Whose classes draw nothing without a picture, which they read at 1,024 x 1,024 pixels, whatever its size.
EDITORS: dict[str, Callable[[], DiffusionPipeline]] = {
    "Qwen-Image-Edit": qwen_image_edit,
    "Qwen-Image-Edit Plus": qwen_image_edit_plus,
}


def family(name: str) -> Any:
    """A pipeline of a family, on which prompts and steps make a visible difference."""
    torch.manual_seed(0)
    pipeline: Any = (FAMILIES | EDITORS)[name]()
    for part in pipeline.components.values():
        if name in EDITORS and part is pipeline.vae:
            # torch's own float32 is off by 9e-4 where doubled matrices read a million pixels
            part.decoder.conv_out.weight.data.mul_(2)
        elif isinstance(part, torch.nn.Module):
            randomised(part)
    return finished(pipeline)


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """Matrices doubled, and no zeros: some layers begin as zero, so that the network would give nothing."""
    amplified(module)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1 and not parameter.any():
                parameter.normal_(0, 0.05)
    return module
