"""The engine's HTTP surface: paths to answers, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from backends.engine import metrics
from backends.engine.bodies import Api as ApiName
from backends.engine.bodies import Call, parse, read_call, read_chat, read_prompts, served_model
from backends.engine.embeddings import embeddings
from backends.engine.encoding import to_ids
from backends.engine.errors import ApiError, as_api_error
from backends.engine.faults import Fault
from backends.engine.messages import error_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from backends.engine.encoding import Encoding
    from backends.engine.exchange import Job
    from backends.engine.faults import FaultBoard
    from backends.engine.http import Connection, HttpRequest
    from backends.engine.instance import Instance
    from backends.engine.options import EngineOptions

VERSION: Final = "0.33.0+simulated"
_INLINE_BODY_BYTES: Final = 16_384
_GENERATION: Final[Mapping[str, ApiName]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
}
_COUNT_TOKENS: Final = "/v1/messages/count_tokens"


class Api:
    """Answers requests of all connections. `instance` is asked for at each request: a restart changes it."""

    def __init__(
        self,
        options: EngineOptions,
        encoding: Encoding,
        executor: Executor,
        board: FaultBoard,
        instance: Callable[[], Instance],
        set_fault: Callable[[Fault], None],
    ) -> None:
        self._options = options
        self._encoding = encoding
        self._executor = executor
        self._board = board
        self._instance = instance
        self._set_fault = set_fault
        self._served = (*options.models, *options.adapters)
        self._tasks: set[asyncio.Task[None]] = set()
        self._parked: dict[Connection, HttpRequest] = {}
        self._routes: dict[str, dict[str, Callable[[HttpRequest, Connection], None]]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health},
            "/version": {"GET": self._version},
            "/v1/models": {"GET": self._models},
            "/metrics": {"GET": self._metrics},
            "/tokenize": {"POST": self._tokenize},
            _COUNT_TOKENS: {"POST": self._count_tokens},
            "/v1/embeddings": {"POST": self._embeddings},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
            "/faults": {"GET": self._list_faults, "POST": self._post_fault},
            **{path: {"POST": self._generate} for path in _GENERATION},
        }

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Root of every request: whatever happens, it is answered."""
        hang = None if request.path == "/faults" else self._board.active("hang")
        if hang is not None and (hang.health or request.path in _GENERATION):
            self._parked[connection] = request
            connection.on_leave = lambda: self._parked.pop(connection, None)
            return
        try:
            self._route(request)(request, connection)
        except Exception as error:
            self.reject(as_api_error(error), connection)

    def reject(self, error: ApiError, connection: Connection) -> None:
        headers = [] if error.retry_after_s is None else [("retry-after", str(error.retry_after_s))]
        body = error_body(error) if connection.path.startswith("/v1/messages") else error.body
        connection.respond(error.status, msgspec.json.encode(body), headers=headers)

    def unpark(self) -> None:
        """The hang is over: answer those who still wait."""
        parked, self._parked = self._parked, {}
        for connection, request in parked.items():
            connection.on_leave = None
            self.handle(request, connection)

    async def aclose(self) -> None:
        """End the work that is off the loop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _route(self, request: HttpRequest) -> Callable[[HttpRequest, Connection], None]:
        methods = self._routes.get(request.path)
        if methods is None:
            raise ApiError(404, "Not Found", "NotFoundError")
        handler = methods.get(request.method)
        if handler is None:
            raise ApiError(405, f"use {' or '.join(methods)}", "MethodNotAllowedError")
        return handler

    def _generate(self, request: HttpRequest, connection: Connection) -> None:
        if (fault := self._board.take("status")) is not None:
            message = "a fault was set on this engine"
            raise ApiError(fault.code, message, "SimulatedError", retry_after_s=fault.retry_after_s)
        if self._board.active("slow_start") is not None:
            raise ApiError(503, "the engine is starting", "ServiceUnavailableError")
        if not self._encoding.costly or len(request.body) <= _INLINE_BODY_BYTES:
            self._submit(*self._prepare(request), connection)
            return
        task = asyncio.get_running_loop().create_task(self._generate_later(request, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection.on_leave = task.cancel

    async def _generate_later(self, request: HttpRequest, connection: Connection) -> None:
        try:
            prepared = await asyncio.get_running_loop().run_in_executor(self._executor, self._prepare, request)
            self._submit(*prepared, connection)
        except Exception as error:
            self.reject(as_api_error(error), connection)

    def _prepare(self, request: HttpRequest) -> tuple[Call, list[Job]]:
        body = parse(request.body)
        model = served_model(body, self._served, self._served[0])
        if (priority := request.headers.get("x-vllm-priority")) is not None:
            body.setdefault("priority", _number(priority))
        call = read_call(body, model, self._encoding, _GENERATION[request.path])
        return call, self._instance().prepare(call)

    def _submit(self, call: Call, jobs: list[Job], connection: Connection) -> None:
        cut = self._board.active("reset_mid_stream")
        self._instance().submit(call, jobs, connection, reset_after=None if cut is None else cut.after_chunks)
        self._board.take("reset_mid_stream")

    def _health(self, request: HttpRequest, connection: Connection) -> None:
        starting = self._board.active("slow_start") is not None
        connection.respond(503 if starting else 200, b"", "text/plain; charset=utf-8")

    def _version(self, request: HttpRequest, connection: Connection) -> None:
        _json(connection, {"version": VERSION})

    def _models(self, request: HttpRequest, connection: Connection) -> None:
        instance, base = self._instance(), self._options.models[0]
        fields = {"object": "model", "created": int(instance.started_at_s), "owned_by": "vllm"}
        length = {"max_model_len": self._options.model_len}
        data = [{"id": name, **fields, "root": base, "parent": None, **length} for name in self._options.models]
        data += [{"id": name, **fields, "root": name, "parent": base, **length} for name in self._options.adapters]
        _json(connection, {"object": "list", "data": data})

    def _metrics(self, request: HttpRequest, connection: Connection) -> None:
        instance = self._instance()
        text = metrics.render(instance.core, self._options.models[0], instance.ttft, instance.started_at_s)
        connection.respond(200, text, "text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self, request: HttpRequest, connection: Connection) -> None:
        body = parse(request.body)
        served_model(body, self._served, self._served[0])
        prompt = read_chat(body, self._encoding) if "messages" in body else read_prompts(body, self._encoding)[0]
        tokens = to_ids(prompt.ids)
        _json(connection, {"count": len(tokens), "max_model_len": self._options.model_len, "tokens": tokens})

    def _count_tokens(self, request: HttpRequest, connection: Connection) -> None:
        body = parse(request.body)
        served_model(body, self._served, self._served[0])
        _json(connection, {"input_tokens": read_chat(body, self._encoding, "messages").tokens})

    def _embeddings(self, request: HttpRequest, connection: Connection) -> None:
        body = parse(request.body)
        model = served_model(body, self._served, self._served[0])
        connection.respond(200, embeddings(body, model, self._encoding))

    def _reset_prefix_cache(self, request: HttpRequest, connection: Connection) -> None:
        _json(connection, {"success": self._instance().core.reset_cache()})

    def _list_faults(self, request: HttpRequest, connection: Connection) -> None:
        _json(connection, {"faults": self._board.list()})

    def _post_fault(self, request: HttpRequest, connection: Connection) -> None:
        fault = Fault.read(parse(request.body))
        _json(connection, {"kind": fault.kind})
        asyncio.get_running_loop().call_soon(self._set_fault, fault)  # a restart cuts this connection too


def _number(header: str) -> int:
    try:
        return int(header)
    except ValueError:
        raise ApiError(400, "x-vllm-priority must be an integer", param="priority") from None


def _json(connection: Connection, value: dict[str, Any]) -> None:
    connection.respond(200, msgspec.json.encode(value))
