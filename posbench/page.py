"""One HTML page that needs nothing beside it: style and figures are inside."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from jinja2 import Environment, StrictUndefined

from posbench.tables import Table, plain

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 2rem auto; max-width: 100rem;
  padding: 0 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 0; }
dt { color: #555; } dd { margin: 0; overflow-wrap: anywhere; }
.warning { border-left: 4px solid #b35900; background: #fff6ec; padding: .5rem .9rem; margin: 1rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; border-top: 2px solid #222;
  border-bottom: 2px solid #222; }
th, td { padding: .28rem .7rem; text-align: right; vertical-align: baseline; white-space: pre-line; }
td { white-space: pre; } td.text { white-space: pre-line; text-align: left; overflow-wrap: anywhere; }
th:first-child { text-align: left; position: sticky; left: 0; background: #fff; font-weight: 600; white-space: nowrap; }
thead th { border-bottom: 1px solid #222; vertical-align: bottom; } tbody tr:nth-child(even) { background: #f6f6f6; }
tbody tr:nth-child(even) th { background: #f6f6f6; }
.left { text-align: left; }
tfoot { border-top: 1px solid #222; color: #444; } tfoot th { font-weight: 400; }
ul { color: #444; font-size: .9rem; padding-left: 1.2rem; max-width: 80rem; } img { max-width: 100%; height: auto; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<dl>{% for name, text in header %}<dt>{{ name }}</dt><dd>{{ text }}</dd>
{% endfor %}</dl>
{% if warnings %}<div class="warning">{% for text in warnings %}<div>{{ text }}</div>{% endfor %}</div>{% endif %}
{% for kind, part in parts %}
<h2>{{ part.title }}</h2>
{% if kind == "table" %}
<div class="wide"><table>
<thead><tr>{% for head in part.columns -%}
<th scope="col"{% if loop.index0 in part.texts %} class="left"{% endif %}>{{ head }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in part.rows %}
<tr>{% for cell in row %}{% if loop.first %}<th scope="row">{{ cell }}</th>{% else -%}
<td{% if cell|length > 30 %} class="text"{% elif loop.index0 in part.texts %} class="left"{% endif %}>
{{- cell }}</td>{% endif %}{% endfor %}</tr>{% endfor %}
</tbody>
{% if part.footer %}<tfoot>{% for row in part.footer %}
<tr>{% for cell in row %}{% if loop.first %}<th scope="row">{{ cell }}</th>{% else %}<td>{{ cell }}</td>{% endif %}
{%- endfor %}</tr>{% endfor %}
</tfoot>{% endif %}
</table></div>
{% if part.notes %}<ul>{% for note in part.notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
{% else %}
<img alt="{{ part.title }}" src="data:image/png;base64,{{ part.data }}">
{% endif %}
{% endfor %}
</body>
</html>
"""


def page(
    *,
    title: str,
    header: Sequence[tuple[str, str]],
    warnings: Sequence[str],
    parts: Sequence[Table | tuple[str, bytes]],
) -> str:
    """The page as text.

    Args:
        title: of the page.
        header: names and texts above the tables.
        warnings: what must be read first.
        parts: tables, and figures as (title, PNG bytes), in order.
    """
    # Texts reach the template as values only, so that '{{7*7}}' or a tag in one of them is shown and never run.
    template = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True).from_string(_PAGE)
    shown: list[tuple[str, Table | Mapping[str, str]]] = [
        ("table", part) if isinstance(part, Table)
        else ("figure", {"title": part[0], "data": base64.b64encode(part[1]).decode()})
        for part in parts
    ]
    return plain(template.render(title=title, header=header, warnings=warnings, parts=shown))
