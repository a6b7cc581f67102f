"""One generation request on one connection: its choices write tokens as the engine core makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from backends.engine.rendering import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backends.engine.generation import Output
    from backends.engine.http import Connection
    from backends.engine.rendering import Format
    from backends.engine.sequence import Request, Seq

STREAM_HEADERS: Final = (("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked"))


@dataclass(frozen=True, slots=True)
class Job:
    """One choice to generate. `ids`: token ids of prompt and output, 4 bytes each, where someone reads them."""

    prompt_tokens: int
    max_tokens: int
    hashes: list[int]
    output: Output
    finish_reason: str
    ids: bytes = b""
    salt: str = ""
    adapter: str = ""
    adapter_id: int | None = None
    """Its number in vLLM's deprecated field, from 1."""


class Choice(Protocol):
    """Payload of a core request."""

    job: Job

    def token(self, seq: Seq) -> None:
        """`seq` got a token (or several, when its reader was slow)."""
        ...


class Exchange:
    """Ends by itself when all choices are done, or by `close` when the client leaves."""

    def __init__(
        self,
        connection: Connection,
        form: Format,
        *,
        include_usage: bool,
        abort: Callable[[str], object],
        first_token: Callable[[], None],
        reset_after: int | None,
    ) -> None:
        self.connection = connection
        self.form = form
        self.reset_after = reset_after
        self.first_token = first_token
        self.closed = False
        self._include_usage = include_usage
        self._abort = abort
        self._requests: list[Request] = []
        self._streams: list[StreamChoice] = []
        self._done: dict[str, tuple[Seq, Job]] = {}
        self._started = False

    def stream(self, index: int, job: Job) -> StreamChoice:
        choice = StreamChoice(self, index, job)
        self._streams.append(choice)
        return choice

    def whole(self, job: Job) -> WholeChoice:
        return WholeChoice(self, job)

    def start(self, requests: list[Request], *, stream: bool) -> None:
        """The engine took the requests; a stream's head goes out."""
        self._requests = requests
        if stream:
            self.connection.start(200, STREAM_HEADERS)

    def started(self) -> None:
        if not self._started:
            self._started = True
            self.first_token()

    def finished(self, seq: Seq, job: Job) -> None:
        self._done[seq.request.request_id] = (seq, job)
        if len(self._done) < len(self._requests):
            return
        self.closed = True
        if self._streams:
            self.connection.write(self.form.end(self._usage(), include_usage=self._include_usage))
            self.connection.finish()
        else:
            self._answer()

    def close(self) -> None:
        """The client left or the engine went down: the core forgets the requests."""
        if not self.closed:
            self.closed = True
            for request in self._requests:
                self._abort(request.request_id)

    def resume(self) -> None:
        """The client reads again."""
        for choice in self._streams:
            choice.catch_up()

    def _answer(self) -> None:
        ordered = [self._done[request.request_id] for request in self._requests]
        texts = [(job.output.text(0, seq.generated), job.finish_reason) for seq, job in ordered]
        body = self.form.whole(texts, self._usage())
        if self.reset_after is None:
            self.connection.respond(200, body)
        else:
            self.connection.start(200, (("content-type", "application/json"), ("content-length", str(len(body)))))
            self.connection.write(body[: len(body) // 2])
            self.connection.reset()

    def _usage(self) -> Usage:
        return usage_of([seq for seq, _ in self._done.values()])


def usage_of(seqs: Sequence[Seq]) -> Usage:
    """So far."""
    return Usage(
        sum(seq.request.prompt_tokens for seq in seqs),
        sum(seq.generated for seq in seqs),
        sum(seq.cached_tokens or 0 for seq in seqs),
    )


class StreamChoice:
    """One write per token. While the client does not read, text gathers and goes out as one chunk."""

    __slots__ = ("_exchange", "_generated", "_output", "_reset_after", "_sent", "_template", "_write", "job")

    def __init__(self, exchange: Exchange, index: int, job: Job) -> None:
        self.job = job
        self._exchange = exchange
        self._output = job.output
        self._template = exchange.form.stream(index, job.finish_reason)
        self._write = exchange.connection.write
        self._reset_after = exchange.reset_after
        self._generated = 0
        self._sent = 0

    def token(self, seq: Seq) -> None:
        exchange = self._exchange
        if exchange.closed:
            return
        self._generated = generated = seq.generated
        sent = self._sent
        if self._reset_after is not None and generated >= self._reset_after:
            self._cut()
        elif seq.finished:
            self._sent = generated
            opening = b"" if sent else self._template.opening(usage_of([seq]))
            if not sent:
                exchange.started()
            self._write(opening + self._template.last(self._output.text(sent, generated)))
            exchange.finished(seq, self.job)
        elif not sent:
            exchange.started()
            self._sent = generated
            self._write(self._template.first(self._output.text(0, generated), usage_of([seq])))
        elif not exchange.connection.paused:
            self._sent = generated
            output = self._output
            text = output.word(sent) if generated - sent == 1 else output.text(sent, generated)
            self._write(self._template.chunk(text))

    def _cut(self) -> None:
        """The fault: the connection dies in the middle of the stream."""
        if self._reset_after:
            self.catch_up()
        self._exchange.close()
        self._exchange.connection.reset()

    def catch_up(self) -> None:
        if self._generated > self._sent and not self._exchange.closed:
            self._write(self._template.chunk(self._output.text(self._sent, self._generated)))
            self._sent = self._generated


class WholeChoice:
    """Waits for its last token."""

    __slots__ = ("_exchange", "job")

    def __init__(self, exchange: Exchange, job: Job) -> None:
        self._exchange = exchange
        self.job = job

    def token(self, seq: Seq) -> None:
        if self._exchange.closed:
            return
        self._exchange.started()
        if seq.finished:
            self._exchange.finished(seq, self.job)
