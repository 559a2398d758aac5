"""The conformance engine: prefill and decode roles that enforce the rules of handing KV blocks over.

In a test:

    fabric = Fabric()
    prefill = HandoffEngine("prefill", fabric, name="p1")
    decode = HandoffEngine("decode", fabric, name="d1")
    ...  # an orchestrator in front of `decode` asks `prefill`; both are ASGI applications
    assert prefill.blocks.orphaned == 0 and not prefill.violations
"""

from bench.handoff.engine import Fabric, Fault, HandoffEngine
from bench.handoff.kv import Blocks, KvLost

__all__ = ["Blocks", "Fabric", "Fault", "HandoffEngine", "KvLost"]
