"""The values of the Helm chart as records, and what is made of them.

    python -m bench.chart            # writes values.yaml, values.schema.json and the table in README.md
    python -m bench.chart --check    # exit code 1 where a file is not what would be written

`gateway`, `engines` and `platform` are the records: every value with its type, default and description. `schema` makes
one strict JSON Schema of them, with the configuration's own schema and Kubernetes' definitions in it; `pages` makes the
rest.
"""
