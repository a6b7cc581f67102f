"""The config file: one YAML file, checked as a whole, every problem with `file:line:column`.

    load(path, environ) -> Config           raises ConfigErrors with all problems
    loads(text, name, environ=..., base=...) -> Config
    default_config(**sections) -> Config    for code: demo, tests

A Config is immutable. Adding a knob: one field with a description in sections.py or fleet.py, then
`python -m gateway.config.full configs/full.yaml`.
"""

from gateway.config.fleet import Backend, Model, Policy, Route
from gateway.config.loader import default_config, load, loads
from gateway.config.problems import ConfigErrors, Problem
from gateway.config.root import DEFAULT_ROUTE, Config
from gateway.config.sections import Admin, Health, Limits, Listen, Sessions, Store, Telemetry

__all__ = [
    "DEFAULT_ROUTE",
    "Admin",
    "Backend",
    "Config",
    "ConfigErrors",
    "Health",
    "Limits",
    "Listen",
    "Model",
    "Policy",
    "Problem",
    "Route",
    "Sessions",
    "Store",
    "Telemetry",
    "default_config",
    "load",
    "loads",
]
