"""The engines that are known, by name. Each is one small module behind `protocol.Engine`; none keeps state."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from backends.engines.llamacpp import LlamaCpp
from backends.engines.openai import OpenAI
from backends.engines.protocol import Ask, Engine, EngineName, EventPublisher, Page, PriorityField
from backends.engines.sglang import SgLang
from backends.engines.trtllm import TrtLlm
from backends.engines.vllm import Vllm

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENGINES", "Ask", "Engine", "EngineName", "EventPublisher", "Page", "PriorityField"]

ENGINES: Final[Mapping[EngineName, Engine]] = MappingProxyType(
    {engine.name: engine for engine in (Vllm(), SgLang(), TrtLlm(), LlamaCpp(), OpenAI())}
)
