"""One life of a simulated engine: a core, its pace and its figures. A restart makes a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import xxhash

from backends.engine.core import EngineCore, StepResult
from backends.engine.encoding import chain, root
from backends.engine.errors import ApiError
from backends.engine.exchange import Choice, Exchange, Job
from backends.engine.generation import Output
from backends.engine.messages import MessageFormat
from backends.engine.metrics import Histogram
from backends.engine.pacing import Pacer
from backends.engine.rendering import Head, OpenAIFormat
from backends.engine.responses import ResponseFormat
from backends.engine.sequence import Request

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from backends.engine.bodies import Call
    from backends.engine.encoding import Encoding, Prompt
    from backends.engine.events import EventPublisher
    from backends.engine.http import Connection
    from backends.engine.options import EngineOptions
    from backends.engine.rendering import Format


class Instance:
    """Takes prepared calls and lets the core serve them in real time."""

    def __init__(
        self,
        options: EngineOptions,
        encoding: Encoding,
        publisher: EventPublisher | None,
        loop: asyncio.AbstractEventLoop,
        wall_clock: Callable[[], float],
    ) -> None:
        self._options = options
        self._encoding = encoding
        self._publisher = publisher
        self._loop = loop
        self._wall_clock = wall_clock
        self._calls = 0
        self.started_at_s = wall_clock()
        self.ttft = Histogram()
        self.core = EngineCore(
            options.hardware,
            block_size=options.block_size,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            policy=options.scheduling_policy,
            kv_tokens=options.capacity_tokens,
            record_events=publisher is not None,
        )
        self.pacer = Pacer(self.core, options.speed, loop, self._deliver)

    def prepare(self, call: Call) -> list[Job]:
        """Length, output and block hashes of each choice: pure, so it may run in a thread. ApiError if one is too
        long.
        """
        return [self._job(call, prompt) for prompt in call.prompts]

    def submit(self, call: Call, jobs: Sequence[Job], connection: Connection, *, reset_after: int | None) -> None:
        """Queue all choices of a call; `connection` gets the answer. ApiError when the queue is full."""
        limit = self._options.max_num_queued_reqs
        if limit is not None and self.core.waiting + len(jobs) > limit:
            message = "too many queued requests (max_num_queued_reqs)"
            raise ApiError(503, message, "ServiceUnavailableError", retry_after_s=1)
        self._calls += 1
        name = connection.request_id or f"{int(self.started_at_s * 1000):x}{self._calls:06x}"
        arrival_s = self._loop.time()
        exchange = Exchange(
            connection,
            self._form(call, name),
            include_usage=call.include_usage,
            abort=self.core.abort,
            first_token=lambda: self.ttft.observe(self._loop.time() - arrival_s),
            reset_after=reset_after,
        )
        requests = [
            Request(
                f"{self._calls}-{index}",
                job.prompt_tokens,
                job.max_tokens,
                job.hashes,
                call.priority,
                exchange.stream(index, job) if call.stream else exchange.whole(job),
            )
            for index, job in enumerate(jobs)
        ]
        for request in requests:
            self.core.add(request)
        exchange.start(requests, stream=call.stream)
        connection.on_leave = exchange.close
        connection.on_resume = exchange.resume
        self.pacer.kick()

    def _form(self, call: Call, name: str) -> Format:
        created = int(self._wall_clock())
        if call.api == "messages":
            return MessageFormat(f"msg_{name}", call.model)
        if call.api == "responses":
            return ResponseFormat(f"resp_{name}", call.model, created)
        chat = call.api == "chat"
        return OpenAIFormat(Head(f"{'chatcmpl' if chat else 'cmpl'}-{name}", call.model, created, chat))

    def _job(self, call: Call, prompt: Prompt) -> Job:
        room = self._options.model_len - prompt.tokens
        if room < (call.max_tokens or 1):
            asked = f" and {call.max_tokens} in the completion" if call.max_tokens else ""
            raise ApiError(
                400,
                f"This model's maximum context length is {self._options.model_len} tokens. However, you requested "
                f"{prompt.tokens} tokens in the prompt{asked}. Please reduce the length.",
                param={"completions": "prompt", "responses": "input"}.get(call.api, "messages"),
            )
        max_tokens = call.max_tokens or min(room, self._options.output_tokens)
        adapters = self._options.adapters
        adapter = call.model if call.model in adapters else ""
        start = root(adapter, call.salt)
        output = Output(self._encoding.vocabulary, xxhash.xxh3_64_intdigest(prompt.ids, start))
        ids = prompt.ids + prompt.reply_head + output.ids(max_tokens)
        block_size = self._options.block_size
        return Job(
            prompt_tokens=prompt.tokens,
            max_tokens=max_tokens,
            hashes=chain(start, ids, block_size, (prompt.tokens + max_tokens) // block_size),
            output=output,
            finish_reason="length" if call.max_tokens else "stop",
            ids=ids if self._publisher is not None else b"",
            salt=call.salt,
            adapter=adapter,
            adapter_id=adapters.index(adapter) + 1 if adapter else None,
        )

    def _deliver(self, step: StepResult) -> None:
        if self._publisher is not None:
            self._publisher.publish(step.events)
        for seq in step.served:
            cast("Choice", seq.request.payload).token(seq)
