"""The log and the metrics of a running studio: every request once, and nothing of what visitors wrote."""

import re
import time

from prometheus_client.parser import text_string_to_metric_families

from .conftest import LIMIT_S, Studio, http
from .test_api import call, post

SECRET = "zebra-crossing-seventeen"


def values(studio: Studio) -> dict[str, float]:
    """Samples by name with their labels."""
    answer = http.get(f"{studio.url}/metrics")
    assert answer.status_code == 200
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def nobody_inside(studio: Studio) -> None:
    """Wait until all requests have left and are logged, which they are a moment after their last message."""
    deadline = time.monotonic() + LIMIT_S
    while any(value for name, value in values(studio).items() if name.startswith("hfjax_requests")):
        assert time.monotonic() < deadline, values(studio)
        time.sleep(0.05)


def test_requests_are_logged_and_counted(studio: Studio) -> None:
    nobody_inside(studio)
    logged, before = len(studio.output.read_text()), values(studio)
    message = [{"role": "user", "content": f"Say {SECRET}!"}]
    event, [reply] = call(studio, "chat", message, "", 6, 0.0)
    assert event == "complete"
    event, _ = call(studio, "classify", f"I love {SECRET}.")
    assert event == "complete"
    assert post(studio, "chat", message, "", -1).status_code == 422
    assert http.get(f"{studio.url}/nowhere/{SECRET}").status_code == 404
    nobody_inside(studio)
    after, log = values(studio), studio.output.read_text()[logged:]

    assert SECRET not in log
    used = f"prompt_tokens={reply['prompt_tokens']} tokens={reply['tokens']}"
    assert re.search(rf"Z route=event chat client=address:127.0.0.1 status=200 seconds=[\d.]+ {used}\n", log), log
    assert re.search(r"route=event classify client=address:127.0.0.1 status=200 seconds=[\d.]+\n", log), log
    assert re.search(r"route=POST /gradio_api/call/\{name\} client=\S+ status=422 ", log), log
    assert re.search(r"route=GET other client=\S+ status=404 ", log), log
    assert log.count("route=event") == 2

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("hfjax_prompt_tokens_total") == reply["prompt_tokens"]
    assert grown("hfjax_tokens_total,kind=made,model=chat-gemma") == reply["tokens"]
    assert grown("hfjax_time_to_first_token_seconds_count") == 1
    assert grown("hfjax_texts_total,model=sentiment") == 1
    assert grown("hfjax_http_requests_total,method=POST,route=/gradio_api/call/{name},status=422") == 1
    assert grown("hfjax_time_in_line_seconds_count,line=chat") == 1
    assert after["hfjax_compilations_since_warm_up_total"] == before["hfjax_compilations_since_warm_up_total"]
    assert after["hfjax_requests,line=chat"] == after["hfjax_requests_waiting,line=chat"] == 0
    assert after["hfjax_chat_slots,model=chat-gemma,state=free"] == 4
    assert after["hfjax_model_ready,kind=images,model=images"] == 1
    for name in ("hfjax_image_steps_total,model=images", "hfjax_restarts_total,kind=chat,model=chat-gemma"):
        assert name in after
