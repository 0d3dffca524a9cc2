"""The rungs of the ladder in order, in words, with the figures of the blog posts.

Imports nothing heavy: the page reads it too. The code of a rung is in the module that it names.
"""

from dataclasses import dataclass

USERS = 8  # of the engine's rung


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One way to compute the same thing.

    Args:
        id: unique, and the module below `hfjax_app/ladder/` with dots for slashes.
        title: a few words.
        says: what is done differently from the rung before, in a sentence.
        posts_s: seconds in the blog posts; None: they have no such rung.
        users: answers that a run makes at once; its time is shared by them.
    """

    id: str
    title: str
    says: str
    posts_s: float | None = None
    users: int = 1

    @property
    def file(self) -> str:
        """The file with its code, from the repository's root."""
        return f"hfjax_app/ladder/{self.id.replace('.', '/')}.py"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rungs that compute the same thing.

    Args:
        id: unique.
        title: what they compute.
        unit: what a run makes, in the singular.
        posts: what the posts ran on which machine.
        rungs: from the bottom.
        is_each: whether times are those of one unit, and not of a run.
    """

    id: str
    title: str
    unit: str
    posts: str
    rungs: tuple[Rung, ...]
    is_each: bool = False


CHAT = Part(
    id="chat",
    title="A text",
    unit="token",
    posts="Llama 2 7B, 50 tokens, eight TPU v6e chips; each a first run, with what it compiles",
    rungs=(
        Rung(
            id="chat.eager_dynamic",
            title="Eager, dynamic cache",
            says="One operator at a time. The cache grows with each token, so each step has new shapes to compile for.",
            posts_s=130.9,
        ),
        Rung(
            id="chat.eager_static",
            title="Eager, static cache",
            says="The cache has its full size from the start, so shapes stay the same.",
            posts_s=88.4,
        ),
        Rung(
            id="chat.one_step",
            title="One compiled step",
            says="A whole step is one program, and the weights are its arguments.",
            posts_s=14.8,
        ),
        Rung(
            id="chat.several_steps",
            title="Several steps a call",
            says="A loop inside of the program makes 16 tokens before the host looks at them.",
        ),
        Rung(
            id="chat.slots",
            title="Eight users in slots",
            says="This app's engine: one step makes a token for each of eight users. The time is that of one answer, "
            "an eighth of all.",
            users=USERS,
        ),
    ),
)
DEVICES = Part(
    id="devices",
    title="More devices",
    unit="forward",
    posts="Llama 2 7B, a forward of a prompt, one and eight TPU v6e chips; again, compiled before",
    rungs=(
        Rung(
            id="chat.one_device",
            title="A forward on one device",
            says="The prompt's forward as one program.",
            posts_s=0.013,
        ),
        Rung(
            id="chat.several_devices",
            title="A forward on all devices",
            says="Each device holds a part of every layer, and XLA adds the sums between them.",
            posts_s=0.0034,
        ),
    ),
    is_each=True,
)
IMAGES = Part(
    id="images",
    title="A picture",
    unit="step",
    posts="Stable Diffusion 2, 512 x 512 pixels, 20 steps, one A100 GPU; again, compiled before",
    rungs=(
        Rung(
            id="images.eager_pipeline",
            title="Eager pipeline",
            says="diffusers' pipeline as it is, one operator at a time.",
        ),
        Rung(
            id="images.compiled_networks",
            title="UNet and text encoder compiled",
            says="Each of them is one program; the decoder is still eager.",
            posts_s=5.9,
        ),
        Rung(
            id="images.compiled_decoder",
            title="The decoder compiled too",
            says="The pipeline calls the VAE's decode, not its forward, so that is the method to compile.",
            posts_s=1.07,
        ),
        Rung(
            id="images.this_app",
            title="This app's step",
            says="Guidance and the scheduler are in the program as well.",
        ),
    ),
)
PARTS = (CHAT, DEVICES, IMAGES)
