# One image for every stage: `docker run kvroute run router`. Needs no BuildKit.
FROM python:3.12-slim-bookworm AS build
ENV UV_PROJECT_ENVIRONMENT=/opt/kvroute UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1
RUN pip install --no-cache-dir --disable-pip-version-check "uv>=0.8"
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --quiet --locked --no-install-project --extra postgres --extra s3
COPY schemas schemas
COPY migrations migrations
COPY services services
RUN uv sync --quiet --locked --no-editable --extra postgres --extra s3

FROM python:3.12-slim-bookworm
LABEL org.opencontainers.image.title="kvroute" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/kvroute/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    KVROUTE_DATA_DIR=/var/lib/kvroute KVROUTE_LOG_FORMAT=json \
    KVROUTE_HEALTH_HOST=0.0.0.0 KVROUTE_HEALTH_PORT=8080 KVROUTE_GATEWAY_HOST=0.0.0.0
RUN useradd --system --uid 10001 --home-dir /var/lib/kvroute --create-home --shell /usr/sbin/nologin kvroute
COPY --from=build /opt/kvroute /opt/kvroute
USER 10001
WORKDIR /var/lib/kvroute
VOLUME /var/lib/kvroute
EXPOSE 8000 8080
STOPSIGNAL SIGTERM
# A stage is ready when its projections are caught up. One-shot commands end before the first check.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['KVROUTE_HEALTH_PORT'] + '/readyz', timeout=2)"]
ENTRYPOINT ["kvroute"]
CMD ["--help"]
