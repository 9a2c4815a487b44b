"""The command line, run within the process of the test."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner, Result

from tangentless.cli import app


def run(*arguments: Any, **options: Any) -> Result:
    """Run `tangentless` with arguments of any type; `options` are those of `CliRunner.invoke`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def succeed(*arguments: Any) -> str:
    """Run a command that must succeed, and return what it printed."""
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output
