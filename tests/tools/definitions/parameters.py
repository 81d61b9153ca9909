"""Search parameters of FHIR R4 as element paths: the elements of each token or date parameter of a type.

A published parameter says so in FHIRPath, of which R4's parameters use a few forms; another form is refused, so that
nothing is misread in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from deployments.sandbox.common.definitions.schema import Definition, ElementContent, load_schema
from tests.tools.definitions.build import Json, SourceError

KINDS = ("token", "date")
ANY = "Resource"
"""The type whose parameters every type has."""
_PATH = re.compile(r"(?P<path>[A-Za-z]+(\.[A-Za-z]+)*)")
_AS = re.compile(r"\((?P<path>[A-Za-z.]+) as (?P<type>[A-Za-z]+)\)|(?P<path2>[A-Za-z.]+)\.as\((?P<type2>[A-Za-z]+)\)")
_WHERE = re.compile(r"(?P<path>[A-Za-z.]+)\.where\((?P<name>[a-z]+)='(?P<value>[a-z]+)'\)")
_EXTENSION = re.compile(r"(?P<path>[A-Za-z]+)\.extension\('(?P<url>[^']+)'\)")
_DEAD = "Patient.deceased.exists() and Patient.deceased != false"


def search_parameters(published: Iterable[Json]) -> tuple[Json, list[str]]:
    """Return the table, and the names of what could not be taken over with the reason. Raises ``SourceError``.

    Parameters of examples and of packages of extensions without a type are none of R4's.
    """
    table: dict[str, dict[str, dict[str, list[Json]]]] = {}
    left_out: list[str] = []
    for each in published:
        if each["type"] not in KINDS or "derivedFrom" in each or "base" not in each:
            continue
        for base in each["base"]:
            name = f"{base}.{each['code']}"
            if "expression" not in each:
                left_out.append(f"the search parameter {name}: it has no expression")
                continue
            parts = [part for part in each["expression"].split(" | ") if _is_about(part.strip(), base)]
            if parts == [_DEAD]:
                left_out.append(f"the search parameter {name}: {_DEAD}")
                continue
            if not parts:
                raise SourceError(f"{name}: {each['expression']!r} says nothing about {base}")
            paths = [_path(part.strip(), base) for part in parts]
            table.setdefault(base, {}).setdefault(each["type"], {})[each["code"]] = paths
    ordered = {
        base: {kind: dict(sorted(known.items())) for kind, known in sorted(kinds.items())}
        for base, kinds in sorted(table.items())
    }
    return {"parameters": ordered}, sorted(left_out)


def _is_about(part: str, base: str) -> bool:
    return part.lstrip("(").startswith(f"{base}.") or base == ANY


def _path(part: str, base: str) -> Json:
    """``path``, and where a step has a condition ``where`` and what is below it, ``then``."""
    if match := _EXTENSION.fullmatch(part):
        return {"path": ["extension"], "where": ["url", match["url"]], "then": ["value[x]"]}
    if match := _WHERE.fullmatch(part):
        steps = _steps(match["path"], base)
        return {"path": steps, "where": [match["name"], match["value"]], "then": []}
    if match := _AS.fullmatch(part):
        return {"path": _steps(match["path"] or match["path2"], base, match["type"] or match["type2"])}
    if match := _PATH.fullmatch(part):
        return {"path": _steps(match["path"], base)}
    raise SourceError(f"{part!r} of {base} is of a form that is not known")


def _steps(path: str, base: str, kind: str | None = None) -> list[str]:
    """Return the steps below the type, with ``[x]`` at choices, or the name of one of its types at the last one."""
    names = path.removeprefix(f"{base}.").split(".")
    definition: Definition | None = load_schema().definitions["Patient" if base == ANY else base]
    steps = []
    for number, name in enumerate(names):
        if definition is None:
            raise SourceError(f"{path}: there is nothing below {names[number - 1]}")
        step = name
        if name in definition.choices:
            step = f"{name}[x]"
            if kind is not None and number == len(names) - 1:
                step = name + kind[0].upper() + kind[1:]
                if step not in definition.properties:
                    raise SourceError(f"{path} cannot be {kind}")
            definition = None
        elif (found := definition.properties.get(name)) is None:
            raise SourceError(f"{path}: there is no {name}")
        else:
            definition = load_schema().definitions[found.type] if found.content is ElementContent.COMPLEX else None
        steps.append(step)
    return steps
