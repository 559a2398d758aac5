#!/bin/sh
# usage: litellm.sh PROGRAM PORT ENGINE [cached]
# LiteLLM's proxy as its documentation tunes it, in front of a scripted engine; `cached`: with its cache in memory.
# Its key is the one of bench.overhead: clients of the gateway have one too.
set -eu
cache=
[ "${4:-}" != cached ] || cache='cache: true, cache_params: {type: local}, '
config=$(mktemp)
cat > "$config" <<YAML
model_list:
  - model_name: scripted
    litellm_params: {model: openai/scripted, api_base: "$3/v1", api_key: none}
litellm_settings: {${cache}drop_params: true, set_verbose: false, callbacks: [], request_timeout: 60}
general_settings: {master_key: sk-forebay-bench-overhead-0123456789abcdef, disable_spend_logs: true, disable_error_logs: true}
YAML
export LITELLM_LOG=ERROR LITELLM_MODE=PRODUCTION LITELLM_LOCAL_MODEL_COST_MAP=True
exec "$1" --config "$config" --host 127.0.0.1 --port "$2" --num_workers 1 --telemetry False
