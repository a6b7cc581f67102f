"""The sections that describe the gateway itself: addresses, state, limits, probes, logs."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from gateway.config.access import Tls
from gateway.config.addresses import CalledHost, Cidr, Host, HostPort, PassedPath, Port, UrlPath
from gateway.config.fields import Count, Seconds, SecondsOrZero, Section
from gateway.config.secrets import Secret, SecretFile


class Listen(Section):
    """Where clients come in."""

    host: Host = Field(default="127.0.0.1", description="Address that clients connect to.")
    port: Port = Field(default=8000, description="0 takes a free port.")
    allow_unauthenticated: bool = Field(
        default=False,
        description="Must be true to bind an address other than loopback without keys: anyone who reaches it may use"
        " the fleet.",
    )
    tls: Tls | None = Field(default=None, description="Serve https.")
    trusted_proxies: tuple[Cidr, ...] = Field(
        default=(),
        description="Networks of proxies whose forwarded and x-forwarded-* headers are believed and passed on. Those of"
        " others are removed.",
        examples=[["10.0.0.0/8"]],
    )
    paths: tuple[PassedPath, ...] = Field(
        default=(),
        description="Further /v1 paths that backends may be asked for, by load alone; a * at the end takes all below.",
        examples=[["/v1/pooling", "/v1/images/*"]],
    )
    keep_alive_s: Seconds = Field(
        default=75.0,
        description="An idle client connection is closed after this. Longer than that of the proxy in front.",
    )
    max_body_mb: Annotated[float, Field(gt=0, le=4096)] = Field(
        default=64.0,
        description="Larger request bodies are refused with 413, while they are read (1 MB = 1,000,000 bytes).",
    )
    max_buffered_mb: Annotated[float, Field(gt=0, le=1_000_000)] = Field(
        default=1024.0,
        description="Request bodies in memory, of all connections together; a request beyond is refused with 503.",
    )
    max_header_kb: Annotated[float, Field(ge=1, le=1024)] = Field(
        default=64.0, description="Larger request heads are refused with 431."
    )
    max_connections: Count | None = Field(
        default=None,
        description="Further ones get 503 and are closed. Unset: as many as the limit of open files has room for.",
        examples=[10_000],
    )
    header_timeout_s: Seconds = Field(
        default=10.0, description="A request head must be complete this long after its first byte, or after connecting."
    )
    body_timeout_s: Seconds = Field(
        default=30.0, description="Longest pause of a client in the middle of its request body."
    )
    write_timeout_s: Seconds = Field(
        default=60.0, description="A client that takes no byte of its answer for this long is cut off."
    )
    drain_delay_s: SecondsOrZero = Field(
        default=5.0,
        description="After SIGTERM: not ready, but still serving, for this long, so that load balancers notice.",
    )
    grace_s: SecondsOrZero = Field(
        default=30.0, description="After that: running requests may take this long to finish."
    )

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 1_000_000)

    @property
    def max_buffered_bytes(self) -> int:
        return int(self.max_buffered_mb * 1_000_000)


class Admin(Section):
    """Metrics and the admin API."""

    host: Host = Field(default="127.0.0.1", description="Any other than a loopback address needs a token.")
    port: Port = Field(default=8001, description="0 takes a free port.")
    token: Secret = Field(
        default=None,
        description="Bearer token for everything but /livez and /readyz. Unset: loopback callers need none.",
        examples=["${WARMROUTE_ADMIN_TOKEN}"],
    )
    token_file: SecretFile = Field(
        default=None, description="The same from a file.", examples=["/run/secrets/warmroute-admin"]
    )
    hosts: tuple[CalledHost, ...] = Field(
        default=(),
        description="Names by which it may be called, besides its address and the loopback ones. Others are refused.",
        examples=[["gateway.internal"]],
    )
    metrics_bind: HostPort | None = Field(
        default=None,
        description="A further address that serves /metrics, without token, and nothing else.",
        examples=["0.0.0.0:9100"],
    )
    tls: Tls | None = Field(default=None, description="Serve https here too.")

    @property
    def credential(self) -> SecretStr | None:
        return self.token or self.token_file


class Store(Section):
    """Where shared state lives."""

    url: str = Field(default="memory", description="memory: in this process, gone when it ends.")
    max_entries: Count = Field(
        default=2_000_000,
        description="Upper bound of (block, backend) pairs in the prefix index, some 150 bytes each; the least recently"
        " used go first.",
    )
    secret: Secret = Field(
        default=None,
        description="Deployment secret: keys the digests of prompts and sessions. Unset: random, new at each start.",
        examples=["${WARMROUTE_SECRET}"],
    )
    secret_file: SecretFile = Field(
        default=None, description="The same from a file.", examples=["/run/secrets/warmroute"]
    )


class Sessions(Section):
    """Requests that extend one another."""

    idle_ttl_s: Seconds = Field(default=3600.0, description="A session without a request for this long is forgotten.")
    max_sessions: Count = Field(
        default=200_000, description="Beyond this the session that was idle longest is forgotten."
    )
    lineage: bool = Field(
        default=True, description="Requests without a session id continue the session whose last prompt they extend."
    )


class Limits(Section):
    """Of one request, and of the connections to backends. There is no limit on the total time of a request."""

    connect_timeout_s: Seconds = Field(default=5.0, description="To open a connection to a backend, TLS included.")
    first_byte_timeout_s: Seconds = Field(
        default=600.0,
        description="From the request sent to the first byte of the response: queueing and prefill count here.",
    )
    idle_timeout_s: Seconds = Field(default=600.0, description="Longest silence in the middle of a response.")
    max_attempts: Annotated[int, Field(ge=1, le=10)] = Field(
        default=3, description="Backends tried per request, as long as nothing was sent to the client."
    )
    retry_statuses: tuple[Annotated[int, Field(ge=500, le=599)], ...] = Field(
        default=(502, 503),
        description="Answers of a backend after which another one is asked. All others pass as they are.",
    )
    keepalive_idle_s: Seconds = Field(
        default=60.0,
        description="An idle connection to a backend is closed after this. Shorter than the engine's own time.",
    )
    max_idle_connections: Annotated[int, Field(ge=0, le=65_535)] = Field(
        default=256, description="Idle connections kept per backend."
    )


class Health(Section):
    """Probes, passive ejection, and reading of the engines' metrics."""

    path: UrlPath | None = Field(
        default=None,
        description="Probed on every backend; any 2xx is healthy. Unset: /health, or else the model list.",
        examples=["/health"],
    )
    interval_s: Seconds = Field(default=5.0, description="Time between two probes of a backend.")
    timeout_s: Seconds = Field(default=5.0, description="A probe without an answer by then has failed.")
    fail_threshold: Annotated[int, Field(ge=1, le=100)] = Field(
        default=3, description="Failed probes in a row that take a backend out."
    )
    pass_threshold: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="Passed probes in a row that bring it back."
    )
    eject_after_failures: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=5,
        description="Failed requests in a row that eject a backend. 4xx answers and clients that leave never count.",
    )
    eject_s: Seconds = Field(
        default=10.0, description="Ejected for this long; then one request is let through as a trial."
    )
    metrics_interval_s: Seconds = Field(default=2.0, description="Time between two readings of a backend's /metrics.")
    slow_start_s: SecondsOrZero = Field(
        default=20.0,
        description="A new or returned backend gets its full share of new sessions only after this. 0: at once.",
    )
    fail_open: bool = Field(
        default=False,
        description="true: when probes or failures have taken out every backend of a model, requests are sent all the"
        " same. false: they are refused with 503.",
    )


class Telemetry(Section):
    """Logs and response headers. Prompts, keys and session ids are in neither."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error."
    )
    log_format: Literal["json", "console"] = Field(
        default="json", description="json: one object per line. console: for people."
    )
    decision_headers: bool = Field(
        default=True,
        description="Responses carry x-warmroute-backend, x-warmroute-decision and x-warmroute-cached-tokens.",
    )
    ask_usage: bool = Field(
        default=True,
        description="Ask vLLM, SGLang and TensorRT-LLM for the usage of streams whose clients did not, and take it out"
        " of the stream: else nobody learns how much of their prompts was cached.",
    )
