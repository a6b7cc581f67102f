"""The sections that describe the fleet: models, backends, and which policy routes what."""

import difflib
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SecretStr,
    WithJsonSchema,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from backends.engine.setups import SETUPS
from gateway.config.addresses import BackendUrl
from gateway.config.fields import COMMENTED, Count, ModelName, Name, Seconds, SecondsOrZero, Section, fault
from gateway.config.files import CertificateFile, ExistingFile, TokenizerFile, matching_key
from gateway.config.kv_events import KvEvents
from gateway.config.secrets import Secret, SecretFile


def _setup(value: str) -> str:
    if value not in SETUPS:
        near = difflib.get_close_matches(value, SETUPS, 1)
        raise fault("no such set-up", f"did you mean {near[0]}?" if near else f"one of: {', '.join(SETUPS)}")
    return value


class Model(Section):
    """How prompts of one model are turned into block keys. A model that is not listed is encoded as bytes."""

    name: ModelName = Field(description="As clients send it in `model`.", examples=["llama-3.1-8b"])
    aliases: tuple[ModelName, ...] = Field(default=(), description="Further names of the same model.")
    encoding: Literal["bytes", "tokens", "engine"] = Field(
        default="bytes",
        description="bytes: from the text, no files needed. tokens: exact, with the model's own tokenizer. engine:"
        " exact, each prompt's tokens are asked from a backend.",
    )
    tokenizer: TokenizerFile | None = Field(
        default=None,
        description="tokenizer.json of the model, relative to this file. Needed by encoding: tokens.",
        examples=["tokenizer.json"],
    )
    chat_template: ExistingFile | None = Field(
        default=None,
        description="Its chat template: Jinja, or a JSON file with chat_template. Unset: chat_template.jinja beside the"
        " tokenizer, else as tokenizer_config.json there has it. Without one chats are routed by load.",
        examples=["chat_template.jinja"],
    )
    encode_timeout_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=50,
        description="With encoding: engine, how long a request waits for its tokens; then it is routed by load.",
        json_schema_extra=COMMENTED,
    )
    block_size: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=16,
        description="Tokens per block, as the engine caches them. Not with encoding: bytes.",
        json_schema_extra=COMMENTED,
    )
    prefill_s_per_token: Annotated[float, Field(gt=0, le=1)] = Field(
        default=2.2e-5, description="Start value: prefill seconds per uncached token. Then learned per backend."
    )
    prefill_s_per_token2: Annotated[float, Field(ge=0, le=1e-3)] = Field(
        default=9e-10, description="Start value: prefill seconds per uncached token and token of context before it."
    )


EngineKind = Literal["auto", "vllm", "sglang", "trtllm", "llamacpp", "openai"]


class Backend(Section):
    """One engine endpoint."""

    name: Name = Field(description="Unique; stands in logs, metrics and headers.", examples=["gpu-1"])
    url: BackendUrl = Field(description="Scheme, host and port.", examples=["http://127.0.0.1:8100"])
    models: Annotated[tuple[ModelName, ...], Field(min_length=1)] | None = Field(
        default=None, description="Models it serves. Unset: asked from its /v1/models.", examples=[["llama-3.1-8b"]]
    )
    engine: EngineKind = Field(
        default="auto",
        description="What it runs. auto: its answers tell. openai: any other one, which gets no cache_salt and is asked"
        " for nothing but its models. Otherwise vllm, sglang, trtllm or llamacpp.",
    )
    api_key: Secret = Field(
        default=None,
        description="Sent to it as bearer token. Unset: no credential is sent, never the client's.",
        examples=["${GPU_1_KEY}"],
    )
    api_key_file: SecretFile = Field(default=None, description="The same from a file.", examples=["/run/secrets/gpu-1"])
    ca_file: CertificateFile | None = Field(
        default=None,
        description="CA certificates (PEM) for its https url. Unset: those of the system.",
        examples=["ca.pem"],
    )
    cert_file: CertificateFile | None = Field(
        default=None,
        description="Certificate (PEM) that the gateway shows to it (mTLS), read again when it changes.",
        examples=["client.pem"],
    )
    key_file: ExistingFile | None = Field(
        default=None, description="Private key of cert_file (PEM), without a password.", examples=["client.key"]
    )
    tls_verify: bool = Field(default=True, description="false accepts any certificate.")
    capacity_tokens: Count | None = Field(
        default=None, description="Size of its KV cache. Unset: as the engine reports it.", examples=[450_000]
    )
    prefill_cap_tokens: Count | None = Field(
        default=None,
        description="Its long-prefill cap per step (vLLM: --long-prefill-token-threshold). Unset: none.",
        examples=[2048],
    )
    scheduling: Literal["fcfs", "priority"] = Field(
        default="fcfs", description="As the engine runs (vLLM: --scheduling-policy)."
    )
    setup: Annotated[str, AfterValidator(_setup), WithJsonSchema({"enum": list(SETUPS)})] | None = Field(
        default=None,
        description=f"Start values of prefill times from a known set-up, before the model's: {', '.join(SETUPS)}.",
        examples=["llama-3.1-8b"],
    )
    kv_events: KvEvents | None = Field(
        default=None,
        description="The engine's own word on what it has cached (ZMQ; vLLM and SGLang: --kv-events-config). Its model"
        " must be encoded as tokens, in blocks of the engine's size.",
    )

    _key = field_validator("key_file")(matching_key)

    @property
    def credential(self) -> SecretStr | None:
        """What goes upstream as bearer token."""
        return self.api_key or self.api_key_file


PolicyName = Literal[
    "warm", "round_robin", "random", "least_requests", "power_of_two", "session_hash", "longest_prefix", "lmetric"
]


class Policy(Section):
    """A routing policy and its parameters. All parameters are of `warm`."""

    name: PolicyName = Field(
        default="warm",
        description="warm, round_robin, random, least_requests, power_of_two, session_hash, longest_prefix or lmetric.",
    )
    crowd_s: Annotated[SecondsOrZero, Field(le=10)] = Field(
        default=0.02, description="Cost in seconds of each request that runs on the backend."
    )
    move_s: Annotated[SecondsOrZero, Field(le=60)] = Field(
        default=0.2, description="Cost in seconds of taking a session away from the backend that served it last."
    )
    settle_share: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.05,
        description="For a new session: the share of the live sessions' prefill time that a backend costs.",
    )
    displace_threshold: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.8,
        description="Share of a backend's KV cache from which on the caches of live sessions are worth sparing.",
    )
    live_window_s: Seconds = Field(
        default=300.0, description="A session is live for this long after its last request. The same on all routes."
    )


def _policy(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class _OrName:
    """The JSON Schema of what `_policy` takes."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": list(get_args(PolicyName))}, handler(core)]}


class Route(Section):
    """Which policy places the requests for which models. The first route that matches counts."""

    name: Name = Field(description="Unique; the route label of metrics.", examples=["default"])
    models: Annotated[tuple[ModelName, ...], Field(min_length=1)] | None = Field(
        default=None, description="Models it is for, by name or alias. Unset: all.", examples=[["llama-3.1-8b"]]
    )
    policy: Annotated[Policy, BeforeValidator(_policy), _OrName()] = Field(
        default=Policy(), description="A name, or a name with parameters."
    )
