"""The tab Engine's HTML from snapshots and ladders that the tests make up: well-formed, escaped, with the figures."""

from html.parser import HTMLParser

import pytest

from hfjax_app.backends.snapshot import ModelSnapshot, Snapshot
from hfjax_app.chat.engine.stats import PERIODS, EngineActivity, EngineStats, SlotState
from hfjax_app.ladder_result import CHAT, PARTS, LadderResult, PartResult, RungResult
from hfjax_app.runtime.memory import HeldMemory
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.studio.engine_tab import ladder, live, named, programs

HOSTILE = '<img src=x onerror="alert(1)">'
MIB = 1 << 20
_VOID = {"img", "path", "br"}


class Reader(HTMLParser):
    """Collects the text, and fails where tags do not match."""

    def __init__(self, markup: str):
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.feed(markup)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def stats(**changes: int) -> EngineStats:
    return EngineStats(**(dict.fromkeys(EngineStats.__dataclass_fields__, 0) | {"slots": 3, "busy": 2} | changes))


def chat_model(**changes: object) -> ModelSnapshot:
    slots = (
        SlotState(doing="decode", reused=64, prefilled=64, prompt=128, made=128),
        SlotState(doing="prefill", reused=0, prefilled=64, prompt=300),
        SlotState(doing="free", reused=256),
    )
    options: dict[str, object] = {
        "kind": "chat",
        "name": HOSTILE,
        "state": "ready",
        "progress": "ready",
        "memory": HeldMemory(weights=30 * MIB, cache=10 * MIB),
        "temporary": 2 * MIB,
        "programs": (
            ProgramReport(name="chat_decode_4x512", seconds=3.5, source="compiled", traced=1.25),
            ProgramReport(name="chat_clear", seconds=0.05, source="bundle"),
            ProgramReport(name="chat_copy_512", seconds=0.05, source="bundle", traced=0.5, saved=2.0),
            ProgramReport(name="chat_score", seconds=1.25, source="cache", traced=1.0, saved=3.0),
        ),
        "compiled_by_requests": 0,
        "chat": EngineActivity(
            stats=stats(waiting=1),
            slots=slots,
            rates=(*[0.0] * (PERIODS - 2), 120.0, 207.0),
            first_token_s=(0.1, 0.3, 0.12),
        ),
        "context": 512,
    }
    return ModelSnapshot(**(options | changes))


def image_model(compiled: int = 0, rate: float | None = 19.4) -> ModelSnapshot:
    return chat_model(
        kind="images",
        name="images",
        chat=None,
        context=0,
        compiled_by_requests=compiled,
        image_steps_per_s=rate,
        memory=HeldMemory(weights=40 * MIB),
    )


def snapshot(*models: ModelSnapshot, device: str = "TPU v6 lite") -> Snapshot:
    return Snapshot(device=device, memory_used=512 * MIB, memory_limit=1024 * MIB, compilations=0, models=models)


def test_the_live_part_has_the_snapshots_figures() -> None:
    markup = live(snapshot(chat_model(), image_model()))
    read = Reader(markup)
    assert "img" not in read.tags, "a model's name is text"
    for words in (
        "Tokens a second 207 all users",
        "First token 0.12 s median of 3 answers",
        "Image steps 19.4 a second the latest picture",
        f"Compiled on request 0 {HOSTILE} 0 · images 0",
        "512 tokens each: 2 at work in the same step, 1 free, 1 request in line",
        "1 decode 256",
        "2 prefill 64 of 300",
        "3 kept 256",
        "TPU v6 lite · 512.0 MiB of 1.0 GiB in use on each device",
        "42.0 MiB",
    ):
        assert words in read.text
    assert "--re:12.5%;--pre:25.0%;--de:50.0%" in markup
    assert 'aria-label="weights 70.0 MiB, cache 10.0 MiB, temporaries 4.0 MiB"' in markup
    assert len(markup) < 8_000, "it is sent every second"


def test_pictures_of_new_sizes_are_compiled_and_said_so() -> None:
    read = Reader(live(snapshot(chat_model(), image_model(compiled=2))))
    assert f"Compiled on request 2 {HOSTILE} 0 · images 2. Picture sizes that were not warm" in read.text


def test_an_engine_that_warms_up_is_drawn_without_figures() -> None:
    cold = chat_model(state="compiling", progress="program 1 of 4", memory=None, chat=None, programs=())
    read = Reader(
        live(Snapshot(device="starting", memory_used=None, memory_limit=None, compilations=None, models=(cold,)))
    )
    assert "no answer yet" in read.text
    assert "program 1 of 4" in read.text


def test_of_replicas_in_other_processes_the_counters_are_drawn() -> None:
    activity = EngineActivity(stats=stats(slots=16, busy=5), slots=(), rates=(), first_token_s=())
    remote = chat_model(chat=activity, memory=None)
    state = Snapshot(
        device="2 replicas on CPU", memory_used=None, memory_limit=None, compilations=None, models=(remote,)
    )
    read = Reader(live(state))
    assert "Tokens a second – all users" in read.text
    assert "512 tokens each: 5 at work in the same step, 11 free" in read.text
    assert "2 replicas on CPU · the models are in other processes" in read.text
    assert "svg" not in read.tags


def test_many_slots_are_cut() -> None:
    many = chat_model(
        chat=EngineActivity(
            stats=stats(slots=256, busy=0),
            slots=(SlotState(doing="free", reused=0),) * 256,
            rates=(0.0,) * PERIODS,
            first_token_s=(),
        )
    )
    markup = live(snapshot(many))
    assert markup.count('class="slot free"') == 32
    assert "and 224 more" in markup


def test_the_ledger_tells_where_each_program_came_from() -> None:
    read = Reader(programs(snapshot(chat_model())))
    assert "chat decode 4 slots, 512 positions 1.25 s 2.25 s compiled" in read.text
    assert "chat clear – – bundle" in read.text
    assert "chat copy 512 positions 0.50 s 1.50 s bundle" in read.text
    assert "chat score 1.00 s 3.25 s cache" in read.text
    assert "4 in all, 10 s of tracing and compiling" in read.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chat_prefill_64x512", ("chat prefill", "64 tokens, 512 positions")),
        ("chat_speculate_1024", ("chat speculate", "one slot, 1,024 positions")),
        ("classify_8x64", ("classify", "8 texts, 64 tokens")),
        ("classify_1x512", ("classify", "1 text, 512 tokens")),
        ("decode_latents_96x64", ("decode latents", "96 × 64")),
        ("encode_prompt_2", ("encode prompt", "2")),
        ("denoise", ("denoise", "")),
        ("", ("", "")),
    ],
)
def test_names_of_programs_in_words(name: str, words: tuple[str, str]) -> None:
    assert named(name) == words


def kept(**changes: object) -> LadderResult:
    first, static, step, *_ = CHAT.rungs
    rungs = (
        RungResult(id=first.id, first_s=30.0, again_s=6.0, compiled_first=400, made=20, wanted=50, note="stopped"),
        RungResult(id=static.id, first_s=9.0, again_s=6.5, made=50, wanted=50, same=True),
        RungResult(
            id=step.id, first_s=3.0, again_s=0.1, made=50, wanted=50, same=False, note="other tokens " + HOSTILE
        ),
        RungResult(id=CHAT.rungs[3].id, note="can't run: " + HOSTILE),
    )
    part = PartResult(id="chat", model=HOSTILE, dtype="float32", amount=50, rungs=rungs)
    return LadderResult(at="2026-11-26T08:00:00+00:00", device="CPU", versions="jax 0.10.2", parts=(part,))


def test_the_ladder_stands_beside_the_posts_figures() -> None:
    markup = ladder(kept())
    read = Reader(markup)
    assert "img" not in read.tags
    for words in (
        "A text of 50 tokens",
        "Run on CPU, 2026-11-26, jax 0.10.2",
        "1 × 130.9 s 1 × about 6.00 s",
        "1.5 × 88.4 s 0.92 × 6.50 s",
        "8.8 × 14.8 s 60 × 0.10 s other tokens " + HOSTILE,
        "not in the posts can't run: " + HOSTILE,
        "Eager, dynamic cache 130.9 s over 30.0 s 400 about 6.00 s chat.py: eager_dynamic",
        "3.8 × 3.4 ms not run here yet",
    ):
        assert words.replace(" ×", "×") in read.text.replace(" ×", "×"), words


def test_without_a_kept_ladder_the_posts_figures_are_there() -> None:
    read = Reader(ladder(None))
    assert "It has not run on this machine yet: hfjax ladder runs it." in read.text
    for part in PARTS:
        for rung in part.rungs:
            assert rung.title in read.text
            assert rung.says in read.text
