"""Generation parameters as the text of Stable Diffusion web UIs: the prompt, the negative prompt, a line of the others.

AUTOMATIC1111's web UI, its relatives and civitai write it. Does not know what a name means: `foreign_parameters.py`
does.
"""

import json
import re
from collections.abc import Mapping

_NEGATIVE = "Negative prompt:"
# A parameter begins after a comma: without this, the search would begin at each letter of a long word.
_PARAMETER = re.compile(r'(?:^|(?<=,))\s*([A-Za-z][\w /-]*):\s*("(?:\\.|[^\\"])*"|[^,]*)(?:,|$)')
_FEWEST = 3  # parameters in a line that is not a part of the prompt
# A prompt's own line that would be read as the beginning of the negative prompt has one more space in the text.
_LIKE_NEGATIVE = re.compile(f"^( *)(?={_NEGATIVE})", re.MULTILINE)


def write(prompt: str, negative_prompt: str, parameters: Mapping[str, object]) -> str:
    """The text. Parameters that are None are left out."""
    lines = [_LIKE_NEGATIVE.sub(r" \1", prompt)]
    if negative_prompt:
        lines.append(f"{_NEGATIVE} {negative_prompt}")
    named = (f"{name}: {_quoted(str(value))}" for name, value in parameters.items() if value is not None)
    lines.append(", ".join(named))
    return "\n".join(lines)


def read(text: str) -> dict[str, str] | None:
    """The parameters by their names in the text, with "Prompt" and "Negative prompt"; None where it has no such line.

    Lines below that of the parameters are parameters too.
    """
    lines = text.strip("\r\n ").splitlines()
    found = {}
    for at in reversed(range(len(lines))):
        found = dict(_PARAMETER.findall(lines[at].strip()))
        if len(found) >= _FEWEST:
            break
    else:
        return None
    more = dict(pair for line in lines[at + 1 :] for pair in [line.partition(":")[::2]] if pair[0].strip())
    begins = next((row for row in range(at) if lines[row].startswith(_NEGATIVE)), at)
    prompt = "\n".join(lines[:begins])
    negative = "\n".join(lines[begins:at]).removeprefix(_NEGATIVE)
    values = {name: _unquoted(value.strip()) for name, value in (found | more).items()}
    prompts = {"Prompt": _LIKE_NEGATIVE.sub(lambda spaces: spaces[1][1:], prompt), _NEGATIVE[:-1]: negative}
    return {name: value.strip() for name, value in prompts.items()} | values


def _quoted(value: str) -> str:
    """The value, in quotes where it would end the parameter, as in the web UI."""
    return json.dumps(value, ensure_ascii=False) if set(value) & set(',:\n"') else value


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value
