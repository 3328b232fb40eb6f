"""The command line. `orchestrator --help` lists the commands; `commands.py` has their names and flags, the modules beside it what they do.

Exit codes: 0 it is done; 1 the world is not as it must be (Redis away or full, no local server, a check of `doctor` failed); 2 what was
asked for is wrong (a flag, a setting, a name, an id); 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from orchestrator.errors import OrchestratorError

__all__ = ["main"]

AWAY, WRONG, CUT = 1, 2, 130
NOW_NOT = 503
"""Errors of this status say that the same may work later."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. What goes wrong is one sentence on standard error, which says what to do."""
    import typer

    from orchestrator.cli.commands import app

    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = int(app(args=given, prog_name="orchestrator", standalone_mode=False) or 0)
        sys.stdout.flush()  # here, where a reader that has gone is understood
        return code
    except OrchestratorError as wrong:
        return _said(str(wrong), AWAY if wrong.status == NOW_NOT else WRONG)
    except typer.TyperException as misused:
        where = getattr(getattr(misused, "ctx", None), "command_path", "orchestrator")
        said = misused.format_message()
        return _said(f"{said}{'' if said.endswith(('.', '?')) else '.'} See `{where} --help`.", misused.exit_code)
    except BrokenPipeError:  # whoever read us has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return CUT
    except Exception as broken:
        # Known by its name: only the journal may import the client.
        if type(broken).__module__.partition(".")[0] != "redis":
            raise
        return _said(
            f"Redis refuses a command: {str(broken).rstrip('.')}. Give its user the rights that docs/operations.md lists.",
            AWAY,
        )


def _said(text: str, code: int) -> int:
    print(" ".join(text.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
