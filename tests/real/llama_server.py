"""A llama.cpp server as a process of its own: MODEL.gguf PORT ALIAS SLOTS CACHE_MIB. Port 0: any free one.

Prints its address and ends when its standard input does, so that it never outlives the tests.
"""

from __future__ import annotations

import os
import sys

import xllamacpp


def main(model: str, port: str, alias: str, slots: str, cache_mib: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {alias}
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_parallel = int(slots)
    params.n_ctx = 32768
    params.kv_unified = True  # else each slot has an equal part of the context
    params.cache_ram_mib = int(cache_mib)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = params.endpoint_slots = True
    params.warmup = params.fit_params = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # its destructor would wait for answers under way


if __name__ == "__main__":
    main(*sys.argv[1:])
