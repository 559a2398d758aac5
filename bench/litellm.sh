#!/bin/sh
# usage: litellm.sh PROGRAM PORT ENGINE [cached]
# LiteLLM's proxy as its documentation tunes it, in front of a scripted engine; `cached`: with its cache in memory.
set -eu
cache=
[ "${4:-}" != cached ] || cache='cache: true, cache_params: {type: local}, '
config=$(mktemp)
cat > "$config" <<YAML
model_list:
  - model_name: scripted
    litellm_params: {model: openai/scripted, api_base: "$3/v1", api_key: none}
litellm_settings: {${cache}drop_params: true, set_verbose: false, callbacks: [], request_timeout: 60}
general_settings: {disable_spend_logs: true, disable_error_logs: true}
YAML
# It listens on the loopback for the length of a measurement; a key would cost it time that ours is not asked for.
export LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true
export LITELLM_LOG=ERROR LITELLM_MODE=PRODUCTION LITELLM_LOCAL_MODEL_COST_MAP=True
exec "$1" --config "$config" --host 127.0.0.1 --port "$2" --num_workers 1 --telemetry False
