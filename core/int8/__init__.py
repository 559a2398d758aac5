"""The packaged MiniLM in eight bits on onnxruntime."""
