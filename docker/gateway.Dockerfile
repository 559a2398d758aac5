# The gateway and the command line: `docker build -f docker/gateway.Dockerfile -t forebay-gateway:0.1.0 .` at the root.
#
# Without torch: the embedding model in its package runs on onnxruntime. For an embedder.model of one's own, build with
# --build-arg LEFT_OUT= and, where pip's index has no CPU build of torch, --build-arg TORCH_INDEX=<PyTorch's CPU index>.
ARG PYTHON=3.11.14-slim-bookworm

FROM python:${PYTHON} AS build
ARG LEFT_OUT="torch sentence-transformers transformers"
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# Packages first: they change less often than the sources.
COPY requirements/gateway.lock requirements/gateway.lock
RUN python -m venv /opt/forebay \
 && cp requirements/gateway.lock wanted.txt \
 && for name in ${LEFT_OUT}; do sed -i "/^${name}==/d" wanted.txt; done \
 && /opt/forebay/bin/pip install --no-deps ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} -r wanted.txt
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY cache cache
COPY router router
COPY capacity capacity
COPY gateway gateway
COPY deploy deploy
COPY helm helm
COPY bench bench
COPY forebay forebay
RUN /opt/forebay/bin/pip install --no-deps --no-build-isolation .

FROM python:${PYTHON}
RUN groupadd --gid 10001 forebay \
 && useradd --uid 10001 --gid forebay --home-dir /var/lib/forebay --create-home --shell /usr/sbin/nologin forebay
COPY --from=build /opt/forebay /opt/forebay
# Nothing is written outside the home folder and the folder for temporary files: the root may be read-only.
ENV PATH=/opt/forebay/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/var/lib/forebay
WORKDIR /var/lib/forebay
USER 10001:10001
EXPOSE 8080 9090
ENTRYPOINT ["forebay"]
CMD ["serve", "--config", "/etc/forebay/forebay.yaml"]
