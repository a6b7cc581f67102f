"""The config file: one YAML file, checked as a whole, every problem with `file:line:column`.

    load(path, environ) -> Config           raises ConfigErrors with all problems
    loads(text, name, environ=..., base=...) -> Config
    default_config(**sections) -> Config    for code: demo, tests
    changes(old, new) -> tuple[Change, ...]

A Config is immutable. Adding a knob: one field with a description in its section, then
`python -m gateway.config.full configs/full.yaml`; if only a restart applies it, its path in diff.RESTART too.
"""

from gateway.config.access import Auth, Jwt, Tenant, Tls
from gateway.config.diff import Change, changes
from gateway.config.discovery import Discovery
from gateway.config.fleet import Backend, Model, Policy, Route
from gateway.config.loader import default_config, load, loads
from gateway.config.problems import ConfigErrors, Problem
from gateway.config.root import DEFAULT_ROUTE, Config
from gateway.config.sections import Admin, Health, Limits, Listen, Sessions, Store, Telemetry

__all__ = [
    "DEFAULT_ROUTE",
    "Admin",
    "Auth",
    "Backend",
    "Change",
    "Config",
    "ConfigErrors",
    "Discovery",
    "Health",
    "Jwt",
    "Limits",
    "Listen",
    "Model",
    "Policy",
    "Problem",
    "Route",
    "Sessions",
    "Store",
    "Telemetry",
    "Tenant",
    "Tls",
    "changes",
    "default_config",
    "load",
    "loads",
]
