"""The command line, run within the process of the test."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner, Result

from tangentless.cli import app


def run(*arguments: Any, **options: Any) -> Result:
    """Run `tangentless` with arguments of any type; `options` are those of `CliRunner.invoke`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)
