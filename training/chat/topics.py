"""What the models know: a few dozen topics around this demo, each with short answers to what, why, how, who and "stands for".

The questions are in questions.py.
"""

# ruff: noqa: E501 (patterns and word lists read best on one line)

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Names a user may type; answers by kind of question (patterns of phrasing.py). `weight`: how often it is asked about."""

    names: tuple[str, ...]
    what: tuple[str, ...]
    why: tuple[str, ...] = ()
    how: tuple[str, ...] = ()
    stands: str = ""
    maker: str = ""
    plural: bool = False
    weight: float = 1.0


JAX = Topic(
    names=("JAX", "JAX", "Jax", "jax", "the JAX library", "Google JAX"),
    what=(
        "JAX is a Python library for [fast numerical computing|numerical computing and machine learning]. It compiles functions with XLA and runs them on CPU, GPU and TPU.",
        "JAX is a Python library that looks like NumPy and compiles functions for CPU, GPU and TPU with XLA.",
    ),
    why=(
        "People use JAX because it makes Python code fast: it compiles whole functions with XLA, takes gradients, and runs the same code on CPU, GPU and TPU.",
    ),
    how=(
        "JAX traces a Python function once, hands the traced program to XLA, and XLA compiles it for the CPU, GPU or TPU. Transformations such as jit, grad and vmap work on pure functions.",
    ),
    maker="JAX is developed by Google together with an open source community.",
    stands="JAX is a name rather than an acronym today. It grew out of Autograd and XLA.",
    weight=4,
)
XLA = Topic(
    names=("XLA", "XLA", "xla", "the XLA compiler", "Accelerated Linear Algebra"),
    what=(
        "XLA is a compiler for linear algebra. It turns array programs into fast machine code for CPU, GPU and TPU.",
        "XLA is the compiler behind JAX. It fuses operations and generates fast code for CPU, GPU and TPU.",
    ),
    why=(
        "XLA makes programs faster because it fuses many small operations into few large ones, which saves memory traffic.",
    ),
    how=(
        "XLA takes a whole program as a graph of operations, optimises and fuses them, and generates machine code for the device.",
    ),
    maker="XLA was started at Google and is developed in the OpenXLA project.",
    stands="XLA stands for Accelerated Linear Algebra. It is the compiler behind JAX.",
    weight=4,
)
TPU = Topic(
    names=("TPU", "a TPU", "TPUs", "the TPU", "tensor processing unit", "a tensor processing unit"),
    what=(
        "A TPU is a Tensor Processing Unit, a chip made by Google for machine learning. It is very good at large matrix multiplications.",
        "A TPU is a chip that Google designed for machine learning. Its matrix units multiply large matrices very fast.",
    ),
    why=(
        "People use a TPU because it multiplies large matrices very fast, so training and serving big models takes less time and energy.",
    ),
    how=(
        "A TPU streams numbers through a large grid of multipliers, called a systolic array, so matrix multiplications are very fast. Programs for it are compiled by XLA.",
    ),
    maker="TPUs are designed by Google.",
    stands="TPU stands for Tensor Processing Unit. It is a chip made by Google for machine learning.",
    weight=4,
)
TORCHAX = Topic(
    names=("torchax", "torchax", "Torchax", "the torchax library", "torch ax"),
    what=(
        "Torchax is a library that runs PyTorch code on JAX. A PyTorch model can then be compiled by XLA and run on a TPU.",
        "Torchax lets PyTorch models run on JAX: each PyTorch operation is carried out by JAX, so the model code stays unchanged.",
    ),
    why=("Torchax is useful because a PyTorch model can run on a TPU through JAX and XLA without rewriting its code.",),
    how=(
        "Torchax gives PyTorch a tensor type that holds a JAX array and translates every PyTorch operation into JAX operations, which XLA compiles.",
    ),
    maker="Torchax is an open source project from Google.",
    weight=4,
)
PYTORCH = Topic(
    names=("PyTorch", "PyTorch", "Pytorch", "pytorch", "torch", "the PyTorch library"),
    what=(
        "PyTorch is an open source library for machine learning in Python. It offers tensors, automatic gradients and neural network modules.",
        "PyTorch is a popular Python library for building and training neural networks.",
    ),
    why=(
        "People use PyTorch because models are written as plain Python, are easy to debug, and a huge number of published models use it.",
    ),
    how=(
        "PyTorch runs each tensor operation as Python reaches it and records the operations, so that gradients can be computed backwards.",
    ),
    maker="PyTorch was created at Meta and is now run by the PyTorch Foundation.",
    weight=4,
)
JIT = Topic(
    names=(
        "jit",
        "JIT",
        "jax.jit",
        "jit in JAX",
        "just-in-time compilation",
        "jit compilation",
        "the jit function",
        "a jitted function",
        "JIT compiling",
    ),
    what=(
        "In JAX, jit compiles a function with XLA the first time it is called. Later calls run the compiled code and are much faster.",
        "Jit means just-in-time compilation: jax.jit traces a function, compiles it with XLA and reuses the fast program.",
    ),
    why=(
        "Jit makes code faster: the function is compiled by XLA once, and every later call with the same shapes reuses the compiled program.",
    ),
    how=(
        "Jit traces the Python function with abstract values, sends the recorded program to XLA, and keeps the compiled result for calls with the same shapes.",
    ),
    stands="JIT stands for just-in-time compilation. In JAX, jit compiles a function with XLA when it is first called.",
    weight=4,
)
KV_CACHE = Topic(
    names=(
        "KV cache",
        "the KV cache",
        "a KV cache",
        "KV-cache",
        "key-value cache",
        "the key value cache",
        "KV caching",
        "a kv-cache",
    ),
    what=(
        "A KV cache stores the attention keys and values of earlier tokens, so a language model need not compute them again for each new token.",
        "The KV cache is the memory of a language model while it writes: the keys and values of all earlier tokens are kept there and reused.",
    ),
    why=(
        "The KV cache makes generation much faster, because the keys and values of earlier tokens are reused instead of computed again for every new token.",
    ),
    how=(
        "At each step the model computes the key and value of the new token only, appends them to the KV cache, and attends to everything stored there.",
    ),
    stands="KV stands for key and value. The KV cache stores the attention keys and values of earlier tokens.",
    weight=4,
)
STATIC_CACHE = Topic(
    names=(
        "StaticCache",
        "StaticCache",
        "a StaticCache",
        "the StaticCache",
        "static cache",
        "a static cache",
        "a static KV cache",
        "Static Cache",
    ),
    what=(
        "StaticCache is a KV cache of fixed size from the transformers library. Its shapes never change, so a compiled program can be reused for every token.",
        "A StaticCache is a KV cache whose memory is allocated once with a fixed size, which lets XLA compile the decoding step only once.",
    ),
    why=(
        "A StaticCache keeps all shapes fixed, so the compiler does its work once and no token causes a recompilation.",
    ),
    how=(
        "A StaticCache allocates room for the longest sequence at the start and writes each new key and value into its place, so the shapes stay fixed.",
    ),
    maker="StaticCache is part of the transformers library by Hugging Face.",
    weight=4,
)
TENSOR_PARALLELISM = Topic(
    names=(
        "tensor parallelism",
        "tensor parallelism",
        "tensor parallel",
        "tensor-parallelism",
        "model parallelism with tensors",
        "tensor parallel inference",
    ),
    what=(
        "Tensor parallelism splits the weight matrices of a model over several devices, so that each device computes a part of every layer.",
        "Tensor parallelism means that the matrices of each layer are split across several chips that work on the same token together.",
    ),
    why=(
        "Tensor parallelism is used when a model is too large or too slow for one device: memory and work are shared by several chips.",
    ),
    how=(
        "With tensor parallelism each device holds a slice of every weight matrix, computes its part, and the partial results are combined by fast communication between the devices.",
    ),
    weight=4,
)
DIFFUSION = Topic(
    names=(
        "diffusion",
        "diffusion models",
        "a diffusion model",
        "image diffusion",
        "diffusion for images",
        "the diffusion process",
        "text-to-image diffusion",
    ),
    what=(
        "Diffusion is a way to generate images: a model starts from random noise and removes the noise step by step until a picture appears.",
        "A diffusion model makes pictures by starting with pure noise and denoising it in small steps, guided by the prompt.",
    ),
    why=("Diffusion is popular because it makes detailed and varied images and follows a text prompt well.",),
    how=(
        "A diffusion model learns to predict the noise in a noisy image. To make a picture it starts from noise and removes a little of the predicted noise at each step.",
    ),
    weight=4,
)
GRADIO = Topic(
    names=("Gradio", "Gradio", "gradio", "the Gradio library", "a Gradio app"),
    what=(
        "Gradio is a Python library for building web interfaces for machine learning models. This demo uses it for its pages.",
        "Gradio is an open source Python library that turns a model into a web app with a few lines of code.",
    ),
    why=(
        "People use Gradio because a web page for a model takes only a few lines of Python, with no knowledge of web design.",
    ),
    how=(
        "With Gradio you describe inputs, outputs and a Python function. Gradio builds the web page and calls the function when the user clicks.",
    ),
    maker="Gradio is developed by a team at Hugging Face.",
    weight=4,
)
HUGGING_FACE = Topic(
    names=(
        "Hugging Face",
        "Hugging Face",
        "hugging face",
        "huggingface",
        "HuggingFace",
        "the Hugging Face hub",
        "the Hugging Face company",
    ),
    what=(
        "Hugging Face is a company and a community for open machine learning. Its hub shares models, data sets and demos.",
        "Hugging Face runs a hub where people share models and data sets, and makes libraries such as transformers and diffusers.",
    ),
    why=(
        "People use Hugging Face because thousands of models can be found, shared and loaded there with a few lines of code.",
    ),
    how=(
        "Models on the Hugging Face hub are stored in repositories. A library such as transformers downloads the files and loads the model by its name.",
    ),
    maker="Hugging Face was founded in 2016 by Clément Delangue, Julien Chaumond and Thomas Wolf.",
    weight=4,
)


def _short(names: str, what: str, *, plural: bool = False, **more: str | tuple[str, ...]) -> Topic:
    """A smaller topic: names separated by commas, one answer."""
    why, how = more.pop("why", ""), more.pop("how", "")
    return Topic(
        names=tuple(names.split(", ")),
        what=(what,),
        why=(why,) if why else (),
        how=(how,) if how else (),
        plural=plural,
        weight=0.8,
        **more,
    )


MAIN = (
    JAX,
    XLA,
    TPU,
    TORCHAX,
    PYTORCH,
    JIT,
    KV_CACHE,
    STATIC_CACHE,
    TENSOR_PARALLELISM,
    DIFFUSION,
    GRADIO,
    HUGGING_FACE,
)
MORE = (
    _short("Python, python, the Python language", "Python is a programming language. JAX, PyTorch and this demo are used from Python."),
    _short("a tensor, tensors, tensor", "A tensor is an array of numbers with any number of dimensions. Models compute with tensors."),
    _short("batching, a batch, batches", "Batching means that several inputs are computed together, which uses the chip better than one input at a time."),
    _short("time to first token, TTFT", "Time to first token is how long you wait until the first token of an answer appears.", stands="TTFT stands for time to first token."),
    _short("context window, the context window, context length, the context", "The context window is the number of tokens that a model can look at at once, prompt and answer together."),
    _short("an embedding, embeddings, the embedding layer", "An embedding is a list of numbers that stands for a token, so that a network can compute with it."),
    _short("matrix multiplication, matmul, a matrix multiplication", "Matrix multiplication is the main operation of neural networks. A TPU is built to do it fast."),
    _short("transformers, the transformers library, Hugging Face transformers", "Transformers is a Python library by Hugging Face with the code of hundreds of models and the tools to load, run and train them."),
    _short("a transformer, the transformer architecture, transformer models", "A transformer is a neural network built from attention and small feed-forward layers. Language models such as Gemma and Llama are transformers.",
           how="A transformer lets every token look at earlier tokens through attention, and then changes each token with a feed-forward layer, layer after layer."),
    _short("diffusers, the diffusers library, Hugging Face diffusers", "Diffusers is a Python library by Hugging Face for diffusion models such as Stable Diffusion."),
    _short("Stable Diffusion, stable diffusion, the Stable Diffusion model", "Stable Diffusion is a text-to-image model. It removes noise from a small latent image, guided by a prompt, and decodes the result into a picture."),
    _short("Gemma, Gemma 3, the Gemma models", "Gemma is a family of open language models made by Google. My Gemma-style version here is only a tiny one.", maker="Gemma is made by Google."),
    _short("Llama, Llama 3, the Llama models", "Llama is a family of open language models made by Meta. They are transformers that predict the next token.", maker="Llama is made by Meta."),
    _short("safetensors, the safetensors format, a safetensors file", "Safetensors is a file format for model weights. It loads fast and, unlike a pickle file, it can't run code."),
    _short("bfloat16, bf16, the bfloat16 format", "Bfloat16 is a 16-bit number format with the range of float32 and less precision. It halves the memory of a model and is fast on a TPU."),
    _short("float32, fp32", "Float32 is the usual 32-bit number format. It is more precise than bfloat16 and takes twice the memory."),
    _short("quantization, int8 quantization, quantisation", "Quantization stores the weights of a model with fewer bits, such as 8, to save memory and time at a small loss of quality."),
    _short("a token, tokens, tokens in a language model", "A token is a piece of text, such as a short word or a part of a word. A language model reads and writes tokens."),
    _short("a tokenizer, tokenization, the tokenizer", "A tokenizer splits text into tokens and turns each one into a number that the model can read."),
    _short("a prompt, the prompt, prompts", "A prompt is the text that you give to a model. The model continues from it or follows it."),
    _short("a system prompt, the system prompt", "A system prompt is an instruction that stands before the conversation and tells the model how to behave."),
    _short("temperature, the temperature setting, sampling temperature", "Temperature controls how random the answers are. At 0 the model always takes the most likely token, and higher values give more variety."),
    _short("sampling, token sampling, sampling from a model", "Sampling means that the next token is drawn at random from the probabilities that the model gives, instead of always taking the most likely one."),
    _short("top-p, top p, nucleus sampling", "Top-p keeps only the most likely tokens whose probabilities add up to p, and samples from those."),
    _short("top-k, top k, top-k sampling", "Top-k keeps only the k most likely tokens and samples the next token from those."),
    _short("greedy decoding, greedy search", "Greedy decoding means that the model always takes the most likely next token."),
    _short("streaming, streaming tokens, token streaming", "Streaming means that an answer is shown token by token while the model still writes it, so you need not wait for the end."),
    _short("a GPU, GPUs, GPU, graphics processing unit", "A GPU is a graphics processing unit, a chip with many small cores. It is widely used to train and run neural networks.", stands="GPU stands for graphics processing unit."),
    _short("a CPU, CPUs, CPU", "A CPU is the central processing unit, the general chip of a computer. This demo runs on a CPU as well as on a TPU.", stands="CPU stands for central processing unit."),
    _short("an LLM, LLMs, a large language model, a language model, language models", "A language model predicts the next token of a text. A large language model, or LLM, has billions of parameters and is trained on huge amounts of text.", stands="LLM stands for large language model."),
    _short("attention, self-attention, the attention mechanism", "Attention lets a model decide which earlier tokens matter for the current one. It compares queries with keys and mixes the values."),
    _short("sliding window attention, a sliding window, the sliding window", "With sliding window attention, a token looks only at the latest tokens, such as the last 64. It saves time and memory."),
    _short("a neural network, neural networks, neural nets", "A neural network is a program of layers with many numbers, called weights, that are learned from examples."),
    _short("machine learning, ML, deep learning", "Machine learning means that a computer learns from examples instead of following rules written by hand."),
    _short("AI, artificial intelligence", "AI, or artificial intelligence, is the field of making computers do tasks that seem to need intelligence, such as writing or seeing.", stands="AI stands for artificial intelligence."),
    _short("a parameter, parameters, model weights, weights", "Parameters, or weights, are the numbers that a model learns in training. I have only a few million of them."),
    _short("prefill, the prefill phase, prefilling", "Prefill is the first phase of an answer: the model reads the whole prompt and fills the KV cache before it writes the first token."),
    _short("decoding, decode, the decode phase", "Decoding is the phase in which a model writes its answer, one token after the other, using the KV cache."),
    _short("vmap, jax.vmap, vmap in JAX", "In JAX, vmap turns a function for one example into a function for a whole batch, without writing a loop."),
    _short("grad, jax.grad, a gradient, gradients", "A gradient says how a result changes when the inputs change. In JAX, grad turns a function into one that computes its gradient."),
    _short("a pytree, pytrees, JAX pytrees", "A pytree is a nested structure of lists, tuples and dictionaries that holds arrays. JAX functions take and return pytrees."),
    _short("sharding, model sharding, sharded weights", "Sharding means that one array is split over several devices, so that each device holds only a part of it."),
    _short("a mesh, a device mesh, a JAX mesh", "A mesh arranges devices in a grid with named axes. JAX uses it to say how arrays are split over the devices."),
    _short("recompilation, compilation, compiling, ahead-of-time compilation", "Compilation turns a program into fast machine code before it runs. This demo compiles each program once, at the start."),
    _short("a UNet, the UNet, U-Net", "A UNet is the network that predicts the noise in a diffusion model. It shrinks the image, works on it, and enlarges it again."),
    _short("a VAE, the VAE, a variational autoencoder", "A VAE packs an image into a small latent and unpacks it again. Stable Diffusion uses its decoder to make the final picture.", stands="VAE stands for variational autoencoder."),
    _short("guidance scale, the guidance scale, classifier-free guidance", "The guidance scale says how strongly an image model follows the prompt. A high value follows it closely, and a low value gives more freedom."),
    _short("a negative prompt, the negative prompt, negative prompts", "A negative prompt says what should not appear in the picture."),
    _short("a seed, the seed, a random seed", "A seed is the number that starts a random generator. The same seed gives the same picture or the same text."),
    _short("sentiment analysis, sentiment, sentiment classification", "Sentiment analysis decides whether a text is negative, neutral or positive. This demo has a tab for it."),
    _short("DistilBERT, distilbert, the DistilBERT model", "DistilBERT is a small and fast version of BERT. It is often used to classify text, such as its sentiment."),
    _short("fine-tuning, finetuning, fine tuning", "Fine-tuning means that a trained model is trained a little more on new data for a special task."),
    _short("inference, model inference", "Inference means running a trained model to get answers, in contrast to training it."),
    _short("NumPy, numpy", "NumPy is the Python library for arrays. JAX offers much of the same functions and runs them on CPU, GPU and TPU."),
    _short("this demo, this app, hfjax_app, this website, this page", "This demo runs PyTorch models of Hugging Face on JAX through torchax. It has a chat, a sentiment classifier and an image generator."),
)  # fmt: skip
TOPICS = MAIN + MORE
