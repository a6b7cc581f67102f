"""The sections that say where engines publish what their caches hold."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from gateway.config.addresses import ConnectedEndpoint, EventEndpoint, Port
from gateway.config.fields import Section, fault, text

_TOPIC: Final = "[ -~]{0,256}"


def _topic(value: str) -> str:
    if not re.fullmatch(_TOPIC, value):
        raise fault("must be printable ASCII, at most 256 characters")
    return value


Topic = Annotated[str, AfterValidator(_topic), text(_TOPIC)]


class KvEvents(Section):
    """ZMQ events of the engine (vLLM, SGLang: --kv-events-config). Needs encoding: tokens with its block size."""

    endpoint: EventEndpoint = Field(
        description="tcp://HOST:PORT of its publisher. With * as host the gateway listens and the engine connects.",
        examples=["tcp://127.0.0.1:5557"],
    )
    replay_endpoint: ConnectedEndpoint | None = Field(
        default=None,
        description="Its replay_endpoint: what was missed is asked for there. Unset: it is unknown for good.",
        examples=["tcp://127.0.0.1:5558"],
    )
    topic: Topic | None = Field(
        default=None, description="Only events whose topic begins so. Unset: all.", examples=["kv-events"]
    )
    bind: bool = Field(
        default=False, description="true: the gateway listens at endpoint, for an engine that connects to it."
    )

    @property
    def binds(self) -> bool:
        return self.bind or self.endpoint.startswith("tcp://*:")


class FoundKvEvents(Section):
    """ZMQ events of all that is found, on its own host. Needs encoding: tokens with its block size."""

    port: Annotated[Port, Field(ge=1)] = Field(description="Of its publisher.", examples=[5557])
    replay_port: Annotated[Port, Field(ge=1)] | None = Field(
        default=None, description="Of its replay_endpoint.", examples=[5558]
    )
    topic: Topic | None = Field(
        default=None, description="Only events whose topic begins so. Unset: all.", examples=["kv-events"]
    )
