"""How schemathesis writes the lines of a bulk."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(ctx, value):
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    values = value if isinstance(value, list) else [value]
    return "".join(json.dumps(line) + "\n" for line in values).encode()
