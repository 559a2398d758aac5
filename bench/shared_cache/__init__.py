"""The shared cache at full size: two gateway processes over a real Redis or Valkey."""
