"""What planning finds out about one model: facts from its config, and its programs as the compiler sees them."""

from dataclasses import dataclass

from hfjax_app.runtime.programs import ProgramReport


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A model as its config and tokenizer describe it.

    Args:
        architecture: the class that runs it.
        parameters: how many.
        bytes: of all weights in `dtype`, together.
        dtype: in words.
        has_template: whether it has a chat template; None where it is no chat model, or has no tokenizer here.
        end_tokens: ids that end an answer; None where it is no chat model.
        has_tokenizer: whether one is here. Plans do without; whoever serves needs it.
    """

    architecture: str
    parameters: int
    bytes: int
    dtype: str
    has_template: bool | None = None
    end_tokens: tuple[int, ...] | None = None
    has_tokenizer: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """A model compiled for some devices.

    Args:
        weights: bytes on each device that holds it, by arithmetic on shapes.
        resident: bytes of all that stays on such a device, by the compiler: layouts of the chip pad.
        programs: the compiler's reports.
        too_large: which program the compiler refused and why; those after it were not tried, and `resident` is
            arithmetic. None where it refused none.
    """

    weights: int
    resident: int
    programs: tuple[ProgramReport, ...]
    too_large: str | None = None

    @property
    def temporary(self) -> int:
        """Bytes of the largest temporary of a program: one runs at a time."""
        return max((program.temporary for program in self.programs), default=0)

    @property
    def peak(self) -> int:
        return self.resident + self.temporary
