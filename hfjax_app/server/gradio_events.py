"""Gradio's protocol for events, as its pages and `gradio_client` speak it, in place of Gradio's own routes.

A request is checked before it is queued: that its session is the client's own, that the function exists, and that it
has the arguments. Left-out arguments of the API's functions take their defaults.
"""

import html
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr
import orjson
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from hfjax_app.api.http_errors import refusals_as_http
from hfjax_app.client import client_of, sent_by
from hfjax_app.errors import NotFound, RequestRejected, WrongMediaType
from hfjax_app.limits import EVENT_MAX_VALUES, HEARTBEAT_S, SESSION_CHARACTERS
from hfjax_app.runtime.seams.gradio import (
    App,
    BlockFunction,
    CloseStreamMessage,
    EventMessage,
    HeartbeatMessage,
    PredictBodyInternal,
    ProcessCompletedMessage,
    ProcessGeneratingMessage,
    call_process_api,
    cancel_running,
    check_all_files_in_cache,
    compile_gr_request,
    id_of,
)
from hfjax_app.studio.event_queue import FairQueue, Inbox
from hfjax_app.studio.page_states import PageStates
from hfjax_app.validation import quoted

PREFIX = "/gradio_api"
_SESSION = re.compile(rf"[A-Za-z0-9_-]{{1,{SESSION_CHARACTERS}}}")
_GONE = "nothing waits for you here: it ended, was read already, or its results were kept for too long"

Encode = Callable[[EventMessage], str | None]


class GradioEvents:
    """The routes for events.

    Args:
        page: Gradio's app.
        queue: of its events.
        states: of its pages.
    """

    def __init__(self, page: App, queue: FairQueue, states: PageStates):
        self._page, self._queue, self._states = page, queue, states
        self._functions = page.get_blocks().fns
        self._api = {fn.api_name: fn for fn in self._functions.values() if fn.api_visibility == "public"}
        self._signatures = {id_of(fn): _parameters(fn) for fn in self._api.values()}

    def router(self) -> APIRouter:
        router = APIRouter(prefix=PREFIX)
        for path, method, answer in (
            ("/queue/join", "POST", self.join),
            ("/queue/data", "GET", self.data),
            ("/call/{name}", "POST", self.call),
            ("/call/v2/{name}", "POST", self.call_by_name),
            ("/call/{name}/{event_id}", "GET", self.result),
            ("/call/v2/{name}/{event_id}", "GET", self.result),
            ("/cancel", "POST", self.cancel),
            ("/reset", "POST", self.reset),
            ("/run/{name}", "POST", self.run),
        ):
            router.add_api_route(path, answer, methods=[method], include_in_schema=False, response_model=None)
        return router

    async def join(self, request: Request) -> Response:
        """Queue an event of a page or of `gradio_client`: {"data", "fn_index", "session_hash", ...}."""
        with refusals_as_http(shown_as=html.escape):
            body = await json_object(request)
            fn = self._function(body.get("fn_index"))
            if not fn.queue:
                raise RequestRejected(f"fn_index = {id_of(fn)}: this event does not go through the queue")
            session = _session(body.get("session_hash"))
            data = self._arguments(fn, body.get("data"))
            self._refuse_missing(fn, data)
            if fn.api_visibility != "public":
                self._own(session, request)
                self._states.open(session, client_of(request.scope))
            return await self._push(request, fn, data, session, body)

    async def call(self, name: str, request: Request) -> Response:
        """Queue a call of the API: {"data": arguments by place}."""
        with refusals_as_http():
            body = await json_object(request)
            fn = self._api_function(name)
            data = self._arguments(fn, body.get("data", []))
            return await self._call(request, fn, data)

    async def call_by_name(self, name: str, request: Request) -> Response:
        """Queue a call of the API: {argument: value}."""
        with refusals_as_http():
            body = await json_object(request)
            fn = self._api_function(name)
            parameters = self._signatures[id_of(fn)]
            if unknown := next((name for name in body if name not in parameters), None):
                raise RequestRejected(f"argument {quoted(unknown)}: /{name} takes {', '.join(parameters)}")
            data = [body.get(each, parameter.default) for each, parameter in parameters.items()]
            _refuse_many(data, "the body")
            return await self._call(request, fn, data)

    async def _call(self, request: Request, fn: BlockFunction, data: list[Any]) -> Response:
        self._refuse_missing(fn, data)
        if (check := getattr(getattr(fn.fn, "__self__", None), f"check_{fn.api_name}", None)) is not None:
            check(*data)
        return await self._push(request, fn, data, None, {})

    def _refuse_missing(self, fn: BlockFunction, data: list[Any]) -> None:
        """Refuse a call of the API without an argument that has no default."""
        for name, value in zip(self._signatures.get(id_of(fn), ()), data, strict=False):
            if value is inspect.Parameter.empty:
                raise RequestRejected(f"argument {name} of /{fn.api_name} is missing, and has no default")

    async def _push(
        self, request: Request, fn: BlockFunction, data: list[Any], session: str | None, body: dict[str, Any]
    ) -> Response:
        trigger = body.get("trigger_id")
        event = PredictBodyInternal(
            data=data,
            fn_index=id_of(fn),
            session_hash=session,
            event_data=_checked(body.get("event_data")),
            trigger_id=trigger if type(trigger) is int else None,
            simple_format=session is None,
        )
        _, event_id, _ = await self._queue.push(event, request, None)
        return JSONResponse({"event_id": event_id})

    async def data(self, request: Request) -> Response:
        """The stream of a session's messages."""
        with refusals_as_http():
            session = _session(request.query_params.get("session_hash"))
            return self._stream(session, request, _as_message)

    async def result(self, name: str, event_id: str, request: Request) -> Response:
        """The stream of a call's results."""
        with refusals_as_http():
            return self._stream(self._queue.results.session_of(event_id) or "", request, _as_result)

    def _stream(self, session: str, request: Request, encode: Encode) -> Response:
        if (inbox := self._queue.results.get(session)) is None:
            raise NotFound(_GONE)
        self._own(session, request)
        messages, headers = self._messages(session, inbox, encode), {"Cache-Control": "no-store"}
        return StreamingResponse(messages, headers=headers, media_type="text/event-stream")

    async def _messages(self, session: str, inbox: Inbox, encode: Encode) -> AsyncIterator[str]:
        """Until the session's last event has ended and was read. A reader that leaves ends the session's events."""
        inbox.readers += 1
        done = False
        try:
            while (inbox.pending or not inbox.empty()) and not inbox.is_dropped:
                message = await inbox.next(HEARTBEAT_S) or HeartbeatMessage()
                if isinstance(message, ProcessCompletedMessage) and message.event_id:
                    inbox.pending.discard(message.event_id)
                if (text := encode(message)) is not None:
                    yield text
            done = True  # before the last message: a page may leave with it, and have joined its next event already
            if (text := encode(CloseStreamMessage())) is not None:
                yield text
        finally:
            inbox.readers -= 1
            if not done and not inbox.readers:
                await self._queue.forget(session)

    async def cancel(self, request: Request) -> Response:
        """End an event: {"event_id", "session_hash"}."""
        with refusals_as_http():
            body = await json_object(request)
            session, event_id = body.get("session_hash"), body.get("event_id")
            event = self._queue.event_ids_to_events.get(event_id) if isinstance(event_id, str) else None
            if event is not None and event.session_hash == session:
                self._own(event.session_hash, request)
                await self._queue.remove_from_queue(id_of(event))
                await cancel_running(event.session_hash, event.fn)
                inbox = self._queue.results.get(event.session_hash)
                if inbox is not None and id_of(event) in inbox.pending:
                    inbox.put_nowait(ProcessCompletedMessage(output={}, success=True, event_id=id_of(event)))
            return JSONResponse({"success": True})

    async def reset(self) -> Response:
        """Nothing to do: clients say so beside /cancel."""
        return JSONResponse({"success": True})

    async def run(self, name: str, request: Request) -> Response:
        """Run an event of a page that does not go through the queue."""
        with refusals_as_http(shown_as=html.escape):
            body = await json_object(request)
            fn = self._function(body.get("fn_index"))
            if fn.queue or not fn.fn:
                raise NotFound(f"fn_index = {id_of(fn)}: this event goes through the queue")
            session = _session(body.get("session_hash"))
            data = self._arguments(fn, body.get("data"))
            self._own(session, request)
            client = client_of(request.scope)
            self._states.open(session, client)
            event = PredictBodyInternal(data=data, fn_index=id_of(fn), session_hash=session, request=request)
            with self._queue.admission.enter(client, "page"), sent_by(client):
                event_request = compile_gr_request(event, fn=fn, username=None, request=request)
                try:
                    output = await call_process_api(
                        self._page, event, event_request, fn, root_path=self._page.root_path
                    )
                except gr.Error as error:
                    return JSONResponse({"error": error.message, "title": error.title}, status_code=400)
            return Response(orjson.dumps(output, default=str, option=orjson.OPT_SERIALIZE_NUMPY))

    def _own(self, session: str, request: Request) -> None:
        """Refuse another client's session."""
        inbox, client = self._queue.results.get(session), client_of(request.scope).id
        owners = {self._states.client_of(session), None if inbox is None else inbox.client.id}
        if owners - {None, client}:
            raise PermissionError(session)

    def _function(self, index: object) -> BlockFunction:
        fn = self._functions.get(index) if type(index) is int else None
        if fn is None or fn.fn is None:
            raise NotFound(f"fn_index = {quoted(index)}: this page has no such event")
        return fn

    def _api_function(self, name: str) -> BlockFunction:
        if name not in self._api:
            known = ", ".join(f"/{each}" for each in self._api)
            raise NotFound(f"endpoint {quoted(name)} does not exist; there are {known}")
        return self._api[name]

    def _arguments(self, fn: BlockFunction, data: object) -> list[Any]:
        """As many arguments as the function takes: left-out ones of the API's functions are their defaults."""
        if not isinstance(data, list):
            raise RequestRejected(f"data: must be a list of arguments, not {type(data).__name__}")
        _refuse_many(data, "data")
        parameters = self._signatures.get(id_of(fn))
        if parameters is None:
            if fn.cancels or len(data) == len(fn.inputs):
                return data
            raise RequestRejected(f"data has {len(data)} values: this event takes {len(fn.inputs)}")
        if len(data) > len(parameters):
            raise RequestRejected(f"data has {len(data)} values: /{fn.api_name} takes at most {len(parameters)}")
        return [*data, *(each.default for each in list(parameters.values())[len(data) :])]


def _parameters(fn: BlockFunction) -> dict[str, inspect.Parameter]:
    """What a client gives: the function's parameters without those that Gradio fills in."""
    assert fn.fn is not None
    found = list(inspect.signature(fn.fn).parameters.values())[: len(fn.inputs)]
    return {parameter.name: parameter for parameter in found}


def _session(name: object) -> str:
    if not isinstance(name, str) or not _SESSION.fullmatch(name):
        allowed = f"1 to {SESSION_CHARACTERS} letters, digits, _ and -"
        raise RequestRejected(f"session_hash = {quoted(name)}: must be {allowed}")
    return name


def _as_message(message: EventMessage) -> str:
    """For pages and gradio_client."""
    content = message.model_dump()
    try:
        text = orjson.dumps(content, default=str).decode()
    except TypeError:  # half a surrogate pair, which JSON can escape
        text = json.dumps(content, default=str)
    return f"data: {text}\n\n"


def _as_result(message: EventMessage) -> str | None:
    """For curl."""
    data: Any = None
    if isinstance(message, ProcessCompletedMessage | ProcessGeneratingMessage):
        event = "error" if not message.success else "complete"
        if message.success and isinstance(message, ProcessGeneratingMessage):
            event = "generating"
        output = message.model_dump()["output"]
        data = output.get("data") if message.success else output
    elif isinstance(message, HeartbeatMessage):
        event = "heartbeat"
    else:
        return None
    return f"event: {event}\ndata: {json.dumps(data)}\n\n"


def _refuse_many(value: object, name: str) -> None:
    """Refuse data of more values than any page sends: Gradio goes through all of them on the event loop."""
    stack, count = [value], 0
    while stack:
        each = stack.pop()
        count += 1
        stack.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        if count + len(stack) > EVENT_MAX_VALUES:
            raise RequestRejected(f"{name} of more than {EVENT_MAX_VALUES:,} values: send less")


def _checked(details: Any) -> Any:
    """The details of an event, such as which picture of a gallery it was.

    Raises:
        RequestRejected: they are many, or name a file that is not the visitors'. Gradio would refuse it in the queue,
            with a traceback in the log.
    """
    _refuse_many(details, "event_data")
    try:
        check_all_files_in_cache(details)
    except (gr.Error, OSError, ValueError):  # the latter two: no file can have such a path
        raise RequestRejected("event_data: names a file that was not uploaded or made here") from None
    return details


async def json_object(request: Request) -> dict[str, Any]:
    """The body as an object. Numbers may be NaN and infinite: backends refuse them by name.

    Raises:
        WrongMediaType: the body is declared as something else than JSON.
        RequestRejected: it is not JSON, or not an object.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise WrongMediaType("send JSON, with the header Content-Type: application/json")
    try:
        found = json.loads(await request.body())
    except RecursionError:
        raise RequestRejected("the body is nested too deeply") from None
    except ValueError:  # also of bytes that are no text, and of numbers of thousands of digits
        raise RequestRejected("the body is not JSON") from None
    if not isinstance(found, dict):
        raise RequestRejected(f"the body must be an object, not {type(found).__name__}")
    return found
