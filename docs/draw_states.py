"""Draws ``session-states.svg`` from the transition tables of the session core; ``--check`` says whether it is stale."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from xml.sax.saxutils import escape

from duologue.sessions import response
from duologue.sessions.turns import silence

TARGET = Path(__file__).with_name("session-states.svg")
WIDTH, ROW, BOX_W, BOX_H, GAP = 860, 210, 110, 40, 190

Edge = tuple[str, str, str]


def edges_of(table: Mapping[tuple[Enum, object], Enum]) -> list[Edge]:
    """(from, label, to) for every move of a transition table."""
    return [
        (source.value, getattr(label, "__name__", str(label)), target.value)
        for (source, label), target in table.items()
    ]


def draw_row(title: str, edges: list[Edge], top: int) -> list[str]:
    """One machine: its states in a row, moves to the right above them, moves to the left below."""
    states = list(dict.fromkeys(state for source, _, target in edges for state in (source, target)))
    x = {state: 90 + index * (BOX_W + GAP) for index, state in enumerate(states)}
    middle = top + ROW // 2
    parts = [f'<text x="20" y="{top + 22}" class="title">{escape(title)}</text>']
    for state in states:
        parts.append(f'<rect x="{x[state]}" y="{middle - BOX_H // 2}" width="{BOX_W}" height="{BOX_H}" rx="8"/>')
        parts.append(f'<text x="{x[state] + BOX_W // 2}" y="{middle + 5}" class="state">{escape(state)}</text>')
    for source, label, target in edges:
        if source == target:
            centre, low = x[source] + BOX_W // 2, middle + BOX_H // 2
            loop = f"M {centre + 25} {low} C {centre + 45} {low + 50} {centre - 45} {low + 50} {centre - 25} {low}"
            parts.append(f'<path d="{loop}" marker-end="url(#arrow)"/>')
            parts.append(f'<text x="{centre}" y="{low + 56}" class="move">{escape(label)}</text>')
            continue
        right = x[target] > x[source]
        near = abs(states.index(target) - states.index(source)) == 1
        start = x[source] + (BOX_W if right and near else 0 if near else BOX_W // 2)
        end = x[target] + (0 if right and near else BOX_W if near else BOX_W // 2)
        side = -1 if right else 1
        y = middle + side * (10 if near else BOX_H // 2)
        bend = y + side * (24 if near else 90)
        label_y = (y + bend) // 2 + side * 6 + (0 if side < 0 else 8)
        parts.append(f'<path d="M {start} {y} Q {(start + end) // 2} {bend} {end} {y}" marker-end="url(#arrow)"/>')
        parts.append(f'<text x="{(start + end) // 2}" y="{label_y}" class="move">{escape(label)}</text>')
    return parts


def drawing() -> str:
    """The whole picture as SVG."""
    machines = [
        ("Turn of the user (sessions/turns/silence.py)", edges_of(silence.TRANSITIONS)),
        ("Response (sessions/response.py)", edges_of(response.TRANSITIONS)),
    ]
    body = [part for row, (title, edges) in enumerate(machines) for part in draw_row(title, edges, row * ROW)]
    style = (
        "text{font:13px sans-serif;fill:#222}.title{font-weight:bold}.state,.move{text-anchor:middle}"
        ".move{font-size:12px;fill:#555}rect{fill:#eef4ff;stroke:#446}path{fill:none;stroke:#446}"
    )
    arrow = (
        '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" style="fill:#446"/></marker>'
    )
    height = ROW * len(machines)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
    background = '<rect x="0" y="0" width="100%" height="100%" style="fill:#fff;stroke:none"/>'
    return "\n".join([head, f"<style>{style}</style><defs>{arrow}</defs>", background, *body, "</svg>", ""])


if __name__ == "__main__":
    stale = not TARGET.exists() or TARGET.read_text() != drawing()
    if "--check" in sys.argv:
        sys.exit(f"{TARGET.name} is stale: run python docs/draw_states.py" if stale else 0)
    TARGET.write_text(drawing())
