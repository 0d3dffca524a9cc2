"""The values that Gradio keeps for each page, bounded for each client; API calls share one empty state.

Gradio makes a state for every new session, also of an API call, which takes 10 ms of the event loop, and forgets the
oldest of all clients' when there are too many.
"""

import threading
from collections import Counter

import gradio as gr

from hfjax_app.client import Client
from hfjax_app.limits import SESSIONS, SESSIONS_OF_A_CLIENT
from hfjax_app.runtime.seams.gradio import SessionState, StateHolder


class PageStates(StateHolder):
    """The states of pages, by session.

    Sessions that `open` was not called for get the shared state: the API's functions have no components and store
    nothing in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._clients: dict[str, str] = {}  # session -> client
        self._shared: SessionState | None = None
        self._opening = threading.Lock()

    def set_blocks(self, blocks: gr.Blocks) -> None:
        super().set_blocks(blocks)
        self._shared = SessionState(blocks)

    def open(self, session: str, client: Client) -> None:
        """Keep values for this session, in the place of the client's oldest ones where it has too many."""
        with self._opening:
            if session in self._clients:
                return
            self._clients[session] = client.id
            self._clients = {name: owner for name, owner in self._clients.items() if name in self or name == session}
            owners = Counter(self._clients.values())
            if owners[client.id] > SESSIONS_OF_A_CLIENT:
                self._drop_oldest(client.id)
            elif len(self._clients) > SESSIONS:
                self._drop_oldest(owners.most_common(1)[0][0])
        super().__getitem__(session)

    def client_of(self, session: str) -> str | None:
        """The id of the client whose page this is; None: no page is known by this name."""
        return self._clients.get(session)

    def __getitem__(self, session_id: str) -> SessionState:
        if session_id in self._clients:
            return super().__getitem__(session_id)
        assert self._shared is not None, "set_blocks comes first"
        return self._shared

    def _drop_oldest(self, client: str) -> None:
        oldest = next((name for name in self.session_data if self._clients.get(name) == client), None)
        if oldest is not None:
            del self._clients[oldest], self.session_data[oldest]
            self.time_last_used.pop(oldest, None)
