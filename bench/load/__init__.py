"""The load generator behind `forebay bench`: requests on a schedule, and what came back.

`run(load) -> Measured` (bench.load.crew) sends them, `document(measured, …)` (bench.load.measures) says what it means.
"""
