"""What the chat tab shows around the conversation: the list beside it, its head, the first screen, the box's foot."""

import html
from typing import Any

from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS
from hfjax_app.studio.icons import CROSS, SLIDERS, icon, icon_button, mark
from hfjax_app.studio.model_card import model_card

_EMBEDDED = (
    "It has 4&nbsp;million parameters and was made for this app: a demo that chats about JAX and its neighbours, adds "
    "small numbers and tells short stories."
)
_OTHER = "The code is the model's own, unchanged, and every program was compiled before you came."
_REAL_MODEL = """<h3>Run a real model</h3>
<p>A model from the hub, or a folder in Hugging Face format, takes this one's place:</p>
<pre tabindex="0" role="region" aria-label="Command"><code>HFJAX_CHAT_MODEL=HuggingFaceTB/SmolLM2-135M-Instruct make run
</code></pre><p>Only safetensors are loaded, and no code from a checkpoint is ever run. Every decoder of transformers
goes the same way: its own code is traced once, and XLA compiles it.</p>"""


_PLUS, _LENS = '<path d="M12 5v14M5 12h14"/>', '<circle cx="11" cy="11" r="6.5"/><path d="m16 16 4 4"/>'
_LIST = '<path d="M4 7h16M4 12h16M4 17h10"/>'
_CLIP = '<path d="M19 12.5 12.6 19a4.2 4.2 0 0 1-6-6l7-7a2.8 2.8 0 0 1 4 4l-6.9 6.9a1.4 1.4 0 0 1-2-2L15 8.6"/>'
_CAMERA = '<path d="M4 8h3.5L9 5.5h6L16.5 8H20v11H4z"/><circle cx="12" cy="13" r="3.5"/>'
_PICTURE = (
    '<rect x="4" y="5" width="16" height="14" rx="2"/><circle cx="9" cy="10" r="1.6"/><path d="m5 18 5-5 3 3 3-3 3 3"/>'
)
_DOTS = '<path d="M5 12h.01M12 12h.01M19 12h.01" stroke-width="2.6"/>'

# assets/chat_list.js fills the list.
LEFT = f"""<div class="panel-head only-drawer"><h2>Conversations</h2>
{icon_button("Close conversations", CROSS, 'data-flip="chat-left"')}</div>
<div class="left-top"><button class="btn" type="button" data-do="new">{icon(_PLUS)}New chat</button>
<div class="search">{icon(_LENS)}<input type="search" id="search-chats" placeholder="Search conversations"
 aria-label="Search conversations"></div></div>
<nav id="chat-list" aria-label="Conversations" tabindex="0"></nav>
<footer class="left-foot"><span>Kept in this browser only, nothing on the server</span>
<button class="icon" type="button" popovertarget="chats-menu" aria-label="Export, import or delete all conversations"
 title="Export, import or delete all">{icon(_DOTS)}</button></footer>
<div class="menu" id="chats-menu" popover>
<button type="button" data-do="export-all">Export all as JSON</button>
<button type="button" data-do="import">Import …</button>
<button type="button" data-do="delete-all" class="danger">Delete all</button></div>
<input type="file" id="import-chats" accept=".json,application/json" hidden aria-label="A file of conversations">"""

# Before and behind the list of models.
HEAD_START = f"""<div class="talk-bar">
{icon_button("Conversations", _LIST, 'data-flip="chat-left" aria-controls="chat-left"')}</div>"""
HEAD = f"""<div class="talk-bar"><span class="chat-title" id="chat-title"></span>
{icon_button("Settings", SLIDERS, 'data-flip="chat-settings" aria-controls="chat-settings"')}</div>"""

# assets/chat_pictures.js shows there what is attached; its button is hidden for models that do not see.
ATTACHED = '<div id="attached"></div>'
UNDER_BOX = f"""<div class="under"><button class="icon" type="button" data-do="file" aria-label="Paste a text file"
 title="Paste a text file">{icon(_CLIP)}</button>
{icon_button("Add a picture", _PICTURE, 'data-do="picture"')}
{icon_button("Take a picture", _CAMERA, 'data-do="camera"')}
<input type="file" id="picture-files" accept="image/*" multiple hidden aria-label="Pictures">
<input type="file" id="picture-camera" accept="image/*" capture="environment" hidden aria-label="Camera">
<input type="file" id="paste-file" accept="text/*,.md,.py,.json,.csv,.log" hidden aria-label="A text file">
<span class="ctx" id="context"></span></div>"""

HINT = """<p class="hint"><span class="keys"><kbd>Enter</kbd> sends · <kbd>Shift</kbd> <kbd>Enter</kbd> new line ·
 <kbd>Esc</kbd> stops · </span>kept in this browser, nothing on the server</p>"""

# The bridge carries facts about the model to the page's scripts, and their commands back.
BRIDGE_JS = "studio.chat.connect(trigger, props, watch)"

_IDEAS = (
    ("What is JAX?", "a fact it knows"),
    ("My name is Ada. What can you do?", "it remembers names"),
    ("Tell me a short story about a fox.", "a few sentences"),
    ("What is 17 plus 25?", "numbers up to 100"),
)
_OTHER_IDEAS = (
    ("What is JAX?", "a short answer"),
    ("Explain recursion with an example in Python.", "an answer with code"),
    ("Tell me a short story about a fox.", "watch it stream"),
    ("Write a haiku about static shapes.", "three lines"),
)


def hello(backend: "Backend[Any]") -> str:
    """The first screen of a conversation: what this is, which model answers, what it can do."""
    name = html.escape(backend.name)
    is_embedded = backend.model in MODELS
    about = _EMBEDDED if is_embedded else _OTHER
    ideas = "".join(
        f'<li><button type="button" data-ask="{html.escape(text)}"><b>{html.escape(text)}</b><span>{why}</span>'
        "</button></li>"
        for text, why in (_IDEAS if is_embedded else _OTHER_IDEAS)
    )
    link, sheet = model_card(backend, "chat-model-card")
    before = f"{link} · " if link else ""
    return f"""<div class="hello">{mark()}<h2>Ask {name}</h2>
<p>A Hugging Face PyTorch model, computed by JAX on this machine. {about}</p><ul class="ideas">{ideas}</ul>
<p class="links">{before}<button type="button" class="link" popovertarget="real-model">Run a real model, one
 line</button> · <a class="link" href="#engine">See how it runs</a></p>
{sheet}<div class="sheet" id="real-model" popover>{_REAL_MODEL}</div></div>"""
