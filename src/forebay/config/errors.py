"""What is wrong with a configuration, said so that it can be put right without reading our code.

One `ConfigError` carries every problem found, each with where it is (file and line, environment variable or
command-line option), which key, what was found and what is allowed. Values of secret keys never appear.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ConfigError", "ConfigProblem"]


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing to put right."""

    source: str
    """A file name, an environment variable, or an option."""
    key: str
    """Path of the key, as in `pools[0].endpoints`; empty for the document as a whole."""
    message: str
    line: int | None = None
    """Counted from 1; None where lines mean nothing."""
    column: int | None = None

    def __str__(self) -> str:
        place = self.source
        if self.line is not None:
            place += f":{self.line}"
            if self.column is not None:
                place += f":{self.column}"
        if not self.key or self.source.startswith("--"):
            # An option's name says it all; the key would only say it again in other words.
            return f"{place}: {self.message}"
        return f"{place}: {self.key}: {self.message}"


class ConfigError(Exception):
    """The configuration cannot be used; `problems` says why, all of them at once."""

    def __init__(self, problems: list[ConfigProblem], warnings: tuple[str, ...] = ()) -> None:
        self.problems = problems
        self.warnings = warnings
        """What else was noticed: a misspelt variable is often the reason of a problem."""
        super().__init__("\n".join(str(problem) for problem in problems))
