"""Objects -> YAML, with the same keys as the JSON document. To read it is for model/sources/yaml_reading.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import SvcctlError
from svcctl.render.json import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any


def document(
    noun: str, objects: Iterable[Mapping[str, Any]], extra: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Lines of one YAML document. Raises SvcctlError when PyYAML is not installed."""
    return whole({"schema": SCHEMA, **(extra or {}), noun: list(objects)})


def whole(value: Mapping[str, Any]) -> Iterator[str]:
    """Lines of any object. Raises as `document`."""
    try:
        import yaml
    except ModuleNotFoundError as e:
        raise SvcctlError(
            "output format yaml: PyYAML is not installed", hint="install python3-yaml, or use -o json"
        ) from e
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(
        _plain(dict(value)), Dumper=dumper, sort_keys=False, allow_unicode=True, width=1 << 30
    )
    return iter(text.splitlines())


def _plain(value: Any) -> Any:
    """Only dicts, lists and scalars: the safe dumper has no name for tuples."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
