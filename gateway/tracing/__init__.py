"""Traces of requests in OpenTelemetry's words, sent to a collector over OTLP."""
