# v8 as an image. What it writes lies in /data, the only place that need be writable, and belongs to the user 10001.
#
#     docker build --tag v8 --build-arg V8_COMMIT="$(git rev-parse --short=12 HEAD)" .
#     docker run --rm --read-only --tmpfs /tmp --volume v8:/data v8 run --source demo --smoke
#     docker run --rm --read-only --tmpfs /tmp --volume v8:/data --publish 127.0.0.1:8008:8008 --env V8_APP_TOKEN v8
#
# compose.yaml lets it train, forecast, update and serve. scripts/image builds and tries it.
#
# The target `serve` forecasts with models that have ONNX files and holds no TensorFlow and no Keras:
#
#     docker build --tag v8-serve --target serve --build-arg V8_COMMIT="$(git rev-parse --short=12 HEAD)" .
FROM python:3.13-slim AS build
ARG V8_COMMIT=""
WORKDIR /src
COPY . .
RUN python -m venv /opt/v8 && /opt/v8/bin/python -m pip install --no-cache-dir ".[app,onnx]"

FROM python:3.13-slim AS build-serve
ARG V8_COMMIT=""
WORKDIR /src
COPY . .
RUN python -m venv /opt/v8 && \
    /opt/v8/bin/python -m pip install --no-cache-dir --requirement requirements-serve.txt && \
    /opt/v8/bin/python -m pip install --no-cache-dir --no-deps .

FROM python:3.13-slim AS runtime
RUN install --directory --owner=10001 --group=10001 /data
ENV HOME=/data PATH=/opt/v8/bin:$PATH PYTHONUNBUFFERED=1 V8_COMMAND=v8
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8008
HEALTHCHECK --interval=30s --timeout=10s --start-period=3m \
    CMD ["python", "-c", "from http.client import HTTPConnection as To; to = To('127.0.0.1', 8008, timeout=8); to.request('GET', '/api/health'); raise SystemExit(to.getresponse().status != 200)"]
ENTRYPOINT ["v8"]
CMD ["app", "runs/frontier", "--host", "0.0.0.0"]

FROM runtime AS serve
COPY --from=build-serve /opt/v8 /opt/v8

FROM runtime
COPY --from=build /opt/v8 /opt/v8
