# syntax=docker/dockerfile:1
# Two stages: the wheel and its dependencies are installed into an environment of their own, and only that is taken over.
#
#   docker build -t warmroute .
#   docker run --network host warmroute                                        a demo: simulated fleet and gateway
#   docker run -p 8000:8000 -v ./warmroute.yaml:/etc/warmroute/warmroute.yaml:ro warmroute \
#       serve --config /etc/warmroute/warmroute.yaml
#
# For -p the config must bind an address other than loopback: listen: {host: 0.0.0.0}, and tenants with keys.

FROM python:3.11-slim AS build
WORKDIR /src
RUN python -m venv /opt/warmroute
COPY pyproject.toml README.md LICENSE ./
COPY backends backends
COPY gateway gateway
COPY prefix_index prefix_index
COPY routing routing
COPY vocabulary vocabulary
RUN --mount=type=cache,target=/root/.cache/pip /opt/warmroute/bin/pip install ".[fast,kubernetes]"

FROM python:3.11-slim
LABEL org.opencontainers.image.title="warmroute" org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin warmroute
COPY --from=build /opt/warmroute /opt/warmroute
COPY configs /etc/warmroute/examples
ENV PATH=/opt/warmroute/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    WARMROUTE_LIVEZ=http://127.0.0.1:8000/livez
USER 10001
EXPOSE 8000
# a config with another port sets WARMROUTE_LIVEZ
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(os.environ['WARMROUTE_LIVEZ'], timeout=4).close()"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["warmroute"]
CMD ["demo"]
