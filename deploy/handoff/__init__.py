"""Prefill and decode apart: the decode side owns a request and asks a prefill replica for the KV of its prompt.

    client ──▶ Decoder ── 1 measure ──▶ engine /tokenize
                  │ ───── 2 slot, then one token of it ──▶ a prefill replica: computes, pins its blocks for a lease
                  │ ───── 3 the client's body and what to read ──▶ engine: reads the blocks, generates
                  └────── or the client's body alone ──▶ engine: computes the prompt itself

Nothing here knows Ray: a prefill replica is a `Peer`, the engine an ASGI application.
"""

from deploy.handoff.decoder import Decoder
from deploy.handoff.group import Ask, Meter, Peer, PrefillGroup, Reply, Settings

__all__ = ["Ask", "Decoder", "Meter", "Peer", "PrefillGroup", "Reply", "Settings"]
