"""The section that finds backends which the file does not list."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.addresses import Host, PortOrName
from gateway.config.fields import SHOWN, Count, ModelName, Name, Seconds, Section, Words
from gateway.config.files import CertificateFile, ExistingFile, WatchedFile
from gateway.config.fleet import EngineKind
from gateway.config.kv_events import FoundKvEvents
from gateway.config.secrets import Secret, SecretFile


class Discovery(Section):
    """A source of backends. Those that appear are probed before they get traffic; those that vanish are drained."""

    name: Name = Field(description="Unique; begins the names of what it finds.", examples=["pool-a"])
    kind: Literal["dns", "file", "kubernetes"] = Field(
        description="dns: A, AAAA or SRV records. file: a watched list. kubernetes: EndpointSlices.", examples=["dns"]
    )
    host: Host | None = Field(
        default=None,
        description="dns: the name to ask for; an SRV name begins with an underscore.",
        examples=["vllm.internal"],
        json_schema_extra=SHOWN,
    )
    path: WatchedFile | None = Field(
        default=None,
        description="file: YAML or JSON, a list of {name, url, models}; read again when it changes.",
        examples=["backends.yaml"],
    )
    service: Name | None = Field(
        default=None, description="kubernetes: the service whose endpoints they are.", examples=["vllm"]
    )
    selector: Words | None = Field(
        default=None,
        description="kubernetes: or a label selector of EndpointSlices.",
        examples=["app=vllm"],
    )
    namespace: Name | None = Field(
        default=None,
        description="kubernetes: their namespace; unset: that of the gateway's own pod.",
        examples=["inference"],
    )
    kubeconfig: ExistingFile | None = Field(
        default=None,
        description="kubernetes: how to reach the API server; unset: as a pod does.",
        examples=["kubeconfig.yaml"],
    )
    port: PortOrName | None = Field(
        default=None,
        description="dns (A and AAAA): the port. kubernetes: number or name of the port; unset: the only one.",
        examples=[8000],
        json_schema_extra=SHOWN,
    )
    scheme: Literal["http", "https"] = Field(default="http", description="How what is found is spoken to.")
    refresh_s: Seconds = Field(
        default=30.0,
        description="dns: asked at least this often, sooner when the TTL ends. file: looked at this often.",
    )
    models: Annotated[tuple[ModelName, ...], Field(min_length=1)] | None = Field(
        default=None, description="As of a backend, for all that is found.", examples=[["llama-3.1-8b"]]
    )
    engine: EngineKind = Field(default="auto", description="As of a backend, for all that is found.")
    api_key: Secret = Field(
        default=None, description="As of a backend, for all that is found.", examples=["${POOL_A_KEY}"]
    )
    api_key_file: SecretFile = Field(
        default=None, description="The same from a file.", examples=["/run/secrets/pool-a"]
    )
    ca_file: CertificateFile | None = Field(
        default=None, description="As of a backend, for all that is found.", examples=["ca.pem"]
    )
    kv_events: FoundKvEvents | None = Field(
        default=None, description="As of a backend, for all that is found, each on its own host."
    )
    max_backends: Count = Field(
        default=256, description="More are not taken: a wrong answer must not fill the gateway. Logged and shown."
    )
