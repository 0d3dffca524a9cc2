"""GET /docs: what /openapi.json says, as a page without scripts."""

import html
import json
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 54rem; padding: 2rem 1rem; }
h2 { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); font-size: 1.1rem; padding-top: 1.2rem; }
pre { background: color-mix(in srgb, currentColor 7%, transparent); border-radius: 6px; overflow: auto; padding: 1em; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
:root { color-scheme: light dark; }
"""


def docs_page(openapi: dict[str, Any], root: str) -> str:
    """The page.

    Args:
        openapi: the app's description.
        root: the address of the app, for the examples.
    """
    parts = []
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(openapi, path, method, operation, root))
    title = html.escape(openapi["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><h1>{title}</h1>'
        f"<p>{html.escape(openapi['info']['description'])} "
        f'<a href="openapi.json">openapi.json</a> has the same for programs.</p>{"".join(parts)}</body></html>'
    )


def _operation(openapi: dict[str, Any], path: str, method: str, operation: dict[str, Any], root: str) -> str:
    schema, kind = _body(openapi, operation)
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(_type(openapi, field))}"
        f"{', needed' if name in schema.get('required', ()) else ''}</td>"
        f"<td>{html.escape(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    )
    table = f"<table><tr><th>Field</th><th>Type</th><th></th></tr>{rows}</table>" if rows else ""
    example = schema.get("example")
    call = f"curl {root}{path}" if example is None else _curl(f"{root}{path}", example)
    shown = "" if kind == "multipart/form-data" else f"<pre>{html.escape(call)}</pre>"
    about = html.escape(operation.get("description", ""))
    return f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{about}</p>{shown}{table}"


def _curl(url: str, body: Any) -> str:
    return f"curl {url} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"


def _body(openapi: dict[str, Any], operation: dict[str, Any]) -> tuple[dict[str, Any], str]:
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        return _resolved(openapi, content["schema"]), kind
    return {}, ""


def _resolved(openapi: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if (reference := schema.get("$ref")) is None:
        return schema
    found: dict[str, Any] = openapi["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def _type(openapi: dict[str, Any], field: dict[str, Any]) -> str:
    if "$ref" in field:
        return str(_resolved(openapi, field).get("title", "object"))
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(openapi, each) for each in field["anyOf"] if each.get("type") != "null"))
    if "const" in field or "enum" in field:
        return ", ".join(json.dumps(value) for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(openapi, field.get('items', {}))}"
    return str(field.get("type", "any"))
