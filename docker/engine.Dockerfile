# Ray's head and workers with vLLM: `docker build -f docker/engine.Dockerfile -t forebay-engine:0.1.0 .` at the root.
#
# vLLM's official image has CUDA, torch and vLLM; Ray names the vLLM release that it was tested with.
ARG VLLM=v0.29.0

FROM vllm/vllm-openai:${VLLM} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
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
RUN python3 -m pip wheel --no-deps --wheel-dir /wheels .

FROM vllm/vllm-openai:${VLLM}
ARG RAY=2.60.0
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY --from=build /wheels /wheels
# vLLM stays what it is: a Ray that wants another one fails here.
RUN python3 -c "import importlib.metadata as m; print('vllm==' + m.version('vllm'))" > /wheels/kept.txt \
 && python3 -m pip install --constraint /wheels/kept.txt "ray[serve,llm]==${RAY}" "httpx>=0.28" "psutil>=6.0" "pyyaml>=6.0" \
 && python3 -m pip install --no-deps /wheels/*.whl \
 && rm -r /wheels \
 && groupadd --gid 10001 forebay \
 && useradd --uid 10001 --gid forebay --home-dir /var/lib/forebay --create-home --shell /bin/bash forebay
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/var/lib/forebay RAY_USAGE_STATS_ENABLED=0
WORKDIR /var/lib/forebay
USER 10001:10001
EXPOSE 8000 8080
# KubeRay puts its own command here; docker/compose.yaml too.
ENTRYPOINT []
CMD ["ray", "start", "--head", "--block"]
