"""Named tuples that are cheap to declare: what typing.NamedTuple is to a type checker, at a tenth of its cost.

typing.NamedTuple compiles code for each class it makes, 0.15 to 0.4 ms a class, and one command declares thirty.
"""

from __future__ import annotations

__all__ = ["Record"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as Record
else:
    from _operator import itemgetter

    class _Declared(type):
        """Turns the annotations of a class into its fields, and keeps instances as small as tuples."""

        def __new__(mcs, name, bases, space):
            fields = tuple(space.get("__annotations__", ()))
            space.setdefault("__slots__", ())
            if fields:  # none: a class that only adds methods
                space["_field_defaults"] = {field: space[field] for field in fields if field in space}
                space["_fields"] = space["__match_args__"] = fields
                space.update((field, property(itemgetter(index))) for index, field in enumerate(fields))
            return super().__new__(mcs, name, bases, space)

    class Record(tuple, metaclass=_Declared):
        """Base of a class of named fields, in the order of their annotations; values given there are defaults."""

        _fields = ()
        _field_defaults = {}  # noqa: RUF012

        def __new__(cls, *values, **named):
            """Fields by position, by name, or from the defaults. Raises TypeError as a function would."""
            if named or len(values) != len(cls._fields):
                rest = cls._fields[len(values) :]
                known = cls._field_defaults | named
                missing = [name for name in rest if name not in known]
                wrong = [name for name in named if name not in rest]
                if missing or wrong or len(values) > len(cls._fields):
                    raise TypeError(
                        f"{cls.__name__}: takes {', '.join(cls._fields)}; missing {missing}, not taken {wrong}"
                    )
                values = (*values, *[known[name] for name in rest])
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values):
            """From an iterable of all fields."""
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"{cls.__name__}: {len(made)} values for {len(cls._fields)} fields")
            return made

        def _replace(self, **named):
            """A copy with some fields changed. Raises ValueError for a name it does not have."""
            made = self._make(map(named.pop, self._fields, self))
            if named:
                raise ValueError(f"{type(self).__name__} has no {', '.join(named)}")
            return made

        def _asdict(self):
            """Field -> value."""
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self):
            """For copy and pickle."""
            return tuple(self)

        def __repr__(self):
            """`Name(field=value, ...)`."""
            fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({fields})"
